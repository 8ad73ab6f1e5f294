"""Sealed letters: who can open which, and what is refused."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vitrail.core.errors import KeyRefused, VitrailError
from vitrail.deploy.identity.party_keys import public
from vitrail.deploy.identity.sealing import SealedSession, SealingKeys
from vitrail.privacy.key_agreement import TAG

NAMES = ("clinic", "lab", "insurer")
TEXT = b"the answer about patient 17 is level 3"


def session(
    lasting: dict[str, X25519PrivateKey], about: str = "run 1", told: dict[tuple[str, str], bytes] | None = None
) -> dict[str, SealedSession]:
    """All ends of one session; `told`: (to whom, about whom) another lasting key than the right one."""
    drawn = {n: X25519PrivateKey.generate() for n in NAMES}
    right = {n: public(lasting[n]) for n in NAMES}
    return {
        n: SealedSession(
            n,
            lasting[n],
            drawn[n],
            {o: SealingKeys((told or {}).get((n, o), right[o]), public(drawn[o])) for o in NAMES if o != n},
            about,
        )
        for n in NAMES
    }


@pytest.fixture
def lasting() -> dict[str, X25519PrivateKey]:
    return {n: X25519PrivateKey.generate() for n in NAMES}


def refused(match: str, seals: SealedSession, sender: str, number: int, data: bytes) -> None:
    before = dict(seals.opened)
    with pytest.raises(VitrailError, match="a sealed letter was refused") as caught:
        seals.open(sender, number, data)
    assert match in str(caught.value), caught.value
    assert seals.opened == before, "nothing of it was used"


def test_the_receiver_alone_opens_it(lasting: dict[str, X25519PrivateKey]) -> None:
    ends = session(lasting)
    number, sealed = ends["lab"].seal("clinic", TEXT)
    assert len(sealed) == len(TEXT) + TAG
    assert TEXT[:8] not in sealed
    refused("not sealed with the expected key", ends["insurer"], "lab", number, sealed)
    refused("not sealed with the expected key", ends["clinic"], "insurer", number, sealed)
    assert ends["clinic"].open("lab", number, sealed) == TEXT


def test_it_is_not_the_senders_own_way_back(lasting: dict[str, X25519PrivateKey]) -> None:
    """A letter cannot be reflected: each direction has its key."""
    ends = session(lasting)
    number, sealed = ends["lab"].seal("clinic", TEXT)
    refused("not sealed with the expected key", ends["lab"], "clinic", number, sealed)


@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_changed_byte(lasting: dict[str, X25519PrivateKey], place: int) -> None:
    ends = session(lasting)
    number, sealed = ends["lab"].seal("clinic", TEXT)
    changed = bytearray(sealed)
    changed[place] ^= 1
    refused("not sealed with the expected key", ends["clinic"], "lab", number, bytes(changed))
    refused("not sealed with the expected key", ends["clinic"], "lab", number, sealed[:-1])
    refused("not sealed with the expected key", ends["clinic"], "lab", number, b"")
    assert ends["clinic"].open("lab", number, sealed) == TEXT


def test_order_and_repetition(lasting: dict[str, X25519PrivateKey]) -> None:
    ends = session(lasting)
    (a, one), (b, two) = (ends["lab"].seal("clinic", text) for text in (b"one", b"two"))
    refused("expected letter number 0 next", ends["clinic"], "lab", b, two)
    refused("not sealed with the expected key", ends["clinic"], "lab", a, two)  # renumbered
    assert ends["clinic"].open("lab", a, one) == b"one"
    refused("this letter was received before", ends["clinic"], "lab", a, one)
    refused("not sealed with the expected key", ends["clinic"], "lab", b, one)  # again, under the next number
    assert ends["clinic"].open("lab", b, two) == b"two"


def test_no_stream_comes_twice(lasting: dict[str, X25519PrivateKey]) -> None:
    """The same text, sealed again: to another, next, in another session, in the other direction."""
    text = bytes(64)
    first, again = session(lasting), session(lasting)
    sealed = [first["lab"].seal("clinic", text)[1] for _ in range(3)]
    sealed += [first["lab"].seal("insurer", text)[1], first["clinic"].seal("lab", text)[1]]
    sealed += [again["lab"].seal("clinic", text)[1], again["clinic"].seal("lab", text)[1]]
    assert len({s[:16] for s in sealed}) == len(sealed)


def test_an_old_session_fits_no_new_one(lasting: dict[str, X25519PrivateKey]) -> None:
    """Also where the coordinator gives both the same number, and where it holds back one end's new key."""
    old, new = session(lasting), session(lasting)
    number, sealed = old["lab"].seal("clinic", TEXT)
    refused("not sealed with the expected key", new["clinic"], "lab", number, sealed)
    drawn = X25519PrivateKey.generate()
    half = SealedSession(
        "clinic", lasting["clinic"], drawn, {"lab": SealingKeys(public(lasting["lab"]), bytes([9] + 31 * [0]))}, "x"
    )
    refused("not sealed with the expected key", half, "lab", number, sealed)


def test_another_agreement_fits_not(lasting: dict[str, X25519PrivateKey]) -> None:
    drawn = {n: X25519PrivateKey.generate() for n in NAMES}
    lab, same, other = (
        SealedSession(me, lasting[me], drawn[me], {to: SealingKeys(public(lasting[to]), public(drawn[to]))}, about)
        for me, to, about in (("lab", "clinic", "a"), ("clinic", "lab", "a"), ("clinic", "lab", "b"))
    )
    number, sealed = lab.seal("clinic", TEXT)
    refused("not sealed with the expected key", other, "lab", number, sealed)
    assert same.open("lab", number, sealed) == TEXT


def test_who_swaps_both_keys_reads_it(lasting: dict[str, X25519PrivateKey]) -> None:
    """The positive control of cards: sealing alone does not help where a party was told a wrong lasting key."""
    evil = X25519PrivateKey.generate()
    mixed = session(lasting, told={("lab", "clinic"): public(evil)})
    number, sealed = mixed["lab"].seal("clinic", TEXT)
    refused("not sealed with the expected key", mixed["clinic"], "lab", number, sealed)
    drawn = {n: X25519PrivateKey.generate() for n in ("lab", "evil")}
    lab = SealedSession(
        "lab", lasting["lab"], drawn["lab"], {"clinic": SealingKeys(public(evil), public(drawn["evil"]))}, "x"
    )
    reader = SealedSession(
        "clinic", evil, drawn["evil"], {"lab": SealingKeys(public(lasting["lab"]), public(drawn["lab"]))}, "x"
    )
    assert reader.open("lab", *lab.seal("clinic", TEXT)) == TEXT


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32)])
def test_keys_that_are_none(lasting: dict[str, X25519PrivateKey], key: bytes) -> None:
    for keys in (SealingKeys(key, public(lasting["lab"])), SealingKeys(public(lasting["lab"]), key)):
        with pytest.raises(KeyRefused, match="lab: expected a public key of 32 bytes"):
            SealedSession("clinic", lasting["clinic"], X25519PrivateKey.generate(), {"lab": keys}, "x")
