"""Parties enrol: their keys for sealed letters, and a coordinator who puts another in the place of one."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support.deploy.enrolment import ask, change, refused
from tests.support.vertical.parties import study
from vitrail.deploy.identity import enrolment, party_keys
from vitrail.deploy.identity.certificates import StudyAuthority, own_key
from vitrail.deploy.identity.coordinator_folder import approval_of
from vitrail.deploy.vertical.agreement import PartyAgreement

PARTIES = ("hospital", "lab", "insurer")


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Path, dict[str, enrolment.EnrolmentRequest]]:
    """The coordinator's folder, and a request of each party; none is approved yet."""
    file = tmp_path / "c" / "study.toml"
    file.parent.mkdir()
    study(PARTIES[1:]).save(file)
    folder = enrolment.invite(file, [], "localhost:8102")
    return folder, {party: ask(folder, party, tmp_path / party) for party in PARTIES}


def approve_all(folder: Path, made: dict[str, enrolment.EnrolmentRequest]) -> None:
    for request in made.values():
        enrolment.approve(folder, request.file)


def pact(kit: Path) -> PartyAgreement:
    own = enrolment.load_kit(kit)
    return PartyAgreement(own.study, own.seed, json.loads((kit / party_keys.CARDS).read_text()))


def test_everyone_has_the_same_keys(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]]) -> None:
    folder, made = asked
    approve_all(folder, made)
    agreed = set()
    for party, request in made.items():
        enrolment.accept(request.kit, approval_of(folder, party))
        found = pact(request.kit)
        assert found.keys[party] == party_keys.public(party_keys.sealing_key(request.kit))
        assert found.marks[party] == request.fingerprint
        agreed.add(found.hash)
        assert stat.S_IMODE((request.kit / party_keys.SEALING).stat().st_mode) == 0o600
    assert len(agreed) == 1
    assert agreed != {enrolment.load_kit(made["lab"].kit).invitation["agreement"]}, (
        "with the keys it is another hash than without"
    )


def test_the_private_key_is_in_no_paper(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]]) -> None:
    folder, made = asked
    approve_all(folder, made)
    private = {p: (r.kit / party_keys.SEALING).read_text().strip() for p, r in made.items()}
    sent = b"".join(f.read_bytes() for f in [*folder.rglob("*"), *(r.file for r in made.values())] if f.is_file())
    for party, key in private.items():
        assert key.encode() not in sent
        assert party_keys.public(party_keys.sealing_key(made[party].kit)).hex().encode() in sent, (
            "the search finds the public one"
        )


def test_an_early_approval_is_no_use(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]]) -> None:
    folder, made = asked
    first = enrolment.approve(folder, made["lab"].file)
    told = refused("not all parties are enrolled yet", enrolment.accept, made["lab"].kit, first.file)
    assert "hospital and insurer" in str(told)
    approve_all(folder, made)
    enrolment.accept(made["lab"].kit, first.file)  # the same file, written anew


def test_the_sites_are_the_parties(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    study(PARTIES[1:]).save(file)
    told = refused("no invitation was written", enrolment.invite, file, ["hospital", "Basel"], "localhost:8102")
    assert "hospital, lab, insurer" in str(told)


def swapped(folder: Path, made: dict[str, enrolment.EnrolmentRequest], forge: str) -> tuple[Path, str]:
    """What a coordinator sends the lab to be able to read its letters to the hospital: an approval with another key
    in the hospital's card, by its old signature, or signed by a key that the coordinator certified."""
    approve_all(folder, made)
    file = approval_of(folder, "lab")
    card = json.loads(file.read_text())["cards"]
    evil = party_keys.public(X25519PrivateKey.generate()).hex()
    if forge == "key":
        card["hospital"]["key"] = evil
    elif forge == "none":
        evil = card["hospital"]["key"]
    elif forge == "party":
        kit = folder / "evil"
        kit.mkdir()
        key = own_key(kit / "key.pem")
        mark = enrolment.load_coordinator(folder).authority_fingerprint
        who = enrolment.identity_of("hospital")
        signed = StudyAuthority(folder).sign(key.public_key(), who, "site", [who])
        card["hospital"] = {**party_keys.make_card(kit, "hospital", mark), "certificate": signed}
        evil = card["hospital"]["key"]
    return change(file, cards=card), evil


def test_a_swapped_key_is_refused(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]]) -> None:
    folder, made = asked
    file, _ = swapped(folder, made, "key")
    told = refused("a party's card was refused", enrolment.accept, made["lab"].kit, file)
    assert "not signed with the key with which 'hospital' enrolled" in str(told)
    assert not (made["lab"].kit / party_keys.CARDS).exists()


def test_the_right_key_is_taken(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]]) -> None:
    """The positive control: the same way, nothing swapped."""
    folder, made = asked
    file, key = swapped(folder, made, "none")
    enrolment.accept(made["lab"].kit, file)
    assert pact(made["lab"].kit).keys["hospital"].hex() == key


def test_a_made_up_party_is_another_agreement(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]]) -> None:
    """The coordinator certifies whom it likes: only people who compare can tell. Its fingerprint is not the one that
    the hospital reads out, the agreement is not the one that the hospital has, nor the one that the lab accepted."""
    folder, made = asked
    approve_all(folder, made)
    for party in ("lab", "hospital"):
        enrolment.accept(made[party].kit, approval_of(folder, party))
    accepted = pact(made["lab"].kit)
    assert accepted.hash == pact(made["hospital"].kit).hash
    file, key = swapped(folder, made, "party")
    enrolment.accept(made["lab"].kit, file)
    found = pact(made["lab"].kit)
    assert found.keys["hospital"].hex() == key, "no machine can know better"
    assert found.marks["hospital"] != made["hospital"].fingerprint == accepted.marks["hospital"]
    assert found.hash != accepted.hash


@pytest.mark.parametrize(
    "card",
    [None, {}, {"site": "lab", "key": "00", "signature": "00"}, {"site": "lab", "key": 1, "signature": []}, "card"],
)
def test_requests_without_a_card(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]], card: Any) -> None:
    folder, made = asked
    refused("a party's card was refused", enrolment.approve, folder, change(made["lab"].file, card=card))


def test_a_card_of_another(asked: tuple[Path, dict[str, enrolment.EnrolmentRequest]]) -> None:
    folder, made = asked
    theirs = json.loads(made["insurer"].file.read_text())["card"]
    for card in (theirs, {**theirs, "site": "lab"}):
        refused("a party's card was refused", enrolment.approve, folder, change(made["lab"].file, card=card))
