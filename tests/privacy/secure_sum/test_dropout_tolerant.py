"""Sums of a round under masks: opened although sites fall silent, once; and how one would try to see through them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vitrail.core.errors import Problem, VitrailError
from vitrail.privacy.secure_sum import dropout_tolerant
from vitrail.privacy.secure_sum.dropout_tolerant import (
    ALL_PAIRS,
    DRAWN,
    NEIGHBOURS,
    OPENING,
    REPORT,
    SumKeys,
    SumOpening,
    SumParticipant,
    groups,
    needed,
)
from vitrail.privacy.secure_sum.fixed_point import fewest_of
from vitrail.privacy.secure_sum.shamir import P, join, split
from vitrail.privacy.secure_sum.spec import SumSpec
from vitrail.storage.journal import DecisionRecord

SHAPES = {"change": (30, 4), "weight": ()}
TERMS = SumSpec("study run 0 3 0", SHAPES, {"change": 2.0**24, "weight": 2.0**24}, most=64)


class Round:
    """Some sites at one sum. `change`: what the coordinator does to what it carries."""

    def __init__(self, root: Path, names: Sequence[str], terms: SumSpec = TERMS) -> None:
        self.names, self.terms, self.root = list(names), terms, root
        self.keys = {n: Ed25519PrivateKey.generate() for n in names}
        self.run = {n: X25519PrivateKey.generate() for n in names}
        self.public = {n: k.public_key().public_bytes_raw() for n, k in self.run.items()}
        self.ends = {n: self.end(n) for n in names}
        rng = np.random.default_rng(7)
        self.values = {n: {k: rng.normal(0, 3, shape) for k, shape in SHAPES.items()} for n in names}

    def end(self, name: str) -> SumParticipant:
        return SumParticipant(name, self.terms, self.root / name, self.keys[name].sign, self.run[name], self.public)

    def check(self, site: str, text: bytes, signature: bytes) -> None:
        try:
            self.keys[site].public_key().verify(signature, text)
        except (InvalidSignature, KeyError):
            raise VitrailError("a key was refused", [Problem(site, "not signed")]) from None

    def draw(self, names: Iterable[str] | None = None) -> dict[str, SumKeys]:
        return {n: self.ends[n].draw(self.names) for n in names or self.names}

    def report(self, drawn: Mapping[str, SumKeys], name: str, told: str = "w") -> np.ndarray:
        said = self.ends[name].report(lambda: self.values[name], list(drawn), told, drawn, self.check)
        return np.concatenate([np.ravel(said[k]) for k in self.terms.summed])

    def shares(self, drawn: Mapping[str, SumKeys], said: Sequence[str], holders: Iterable[str]) -> dict[str, Any]:
        sealed = {h: {n: d.sealed[h] for n, d in drawn.items() if h in d.sealed} for h in holders}
        return {h: self.ends[h].open(said, sealed[h], self.lists(said), self.check) for h in holders}

    def lists(self, said: Sequence[str]) -> dict[str, bytes]:
        """Signatures of those who reported, under the list that they reported to."""
        return {n: self.ends[n].signed_list() for n in said if (self.root / n / f"{REPORT}.said").exists()}

    def total(self, said: Iterable[str]) -> dict[str, np.ndarray]:
        return {k: sum(self.values[n][k] for n in said) for k in SHAPES}  # type: ignore[misc]

    def sum(self, drawn: Mapping[str, SumKeys], said: Sequence[str], holders: Sequence[str]) -> dict[str, np.ndarray]:
        reported = sum(self.report(drawn, n) for n in said)
        return SumOpening(self.terms, self.names, drawn, said, "w").open(reported, self.shares(drawn, said, holders))


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return all(np.abs(one[k] - other[k]).max() < 1e-6 for k in SHAPES)


@pytest.fixture
def five(tmp_path: Path) -> Round:
    return Round(tmp_path, list("abcde"))


@pytest.mark.parametrize(
    ("keys", "said", "open_"),
    [
        ("abcde", "abcde", "abcde"),  # nobody is silent
        ("abcd", "abcd", "abcd"),  # before the keys
        ("abcde", "abcd", "abcd"),  # between the legs
        ("abcde", "acd", "acd"),  # two of them
        ("abcde", "abcde", "abd"),  # after the report
        ("abcde", "abcd", "bcd"),  # between and after
        ("abcd", "abc", "abc"),  # before and between
    ],
)
def test_the_sum_is_that_of_who_reported(five: Round, keys: str, said: str, open_: str) -> None:
    assert same(five.sum(five.draw(keys), list(said), list(open_)), five.total(said))


def test_neighbours_in_a_large_federation(tmp_path: Path) -> None:
    names = [f"s{i:02d}" for i in range(ALL_PAIRS + 10)]
    many = Round(tmp_path, names)
    ring = groups(TERMS.about, names)
    assert {len(g) for g in ring.values()} == {NEIGHBOURS + 1}
    assert all((a in ring[b]) == (b in ring[a]) for a in names for b in names)
    assert ring != groups("another sum", names)
    said = names[:-4]
    assert same(many.sum(many.draw(), said, said[:-2]), many.total(said))
    assert len(many.ends["s00"].draw(names).sealed) == NEIGHBOURS


def test_a_single_report_is_noise(five: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same test reads a report without masks at once."""

    def readable(numbers: np.ndarray, site: str) -> float:
        values = np.concatenate([np.ravel(five.values[site][k]) for k in SHAPES])
        return float(abs(np.corrcoef(numbers.view(np.int64)[: len(values)].astype(float), values)[0, 1]))

    drawn = five.draw()
    reports = {name: five.report(drawn, name) for name in "abcde"}
    for name, numbers in reports.items():
        assert readable(numbers, name) < 0.4  # of 121 numbers: more than four standard errors
        assert np.abs(numbers.view(np.int64).astype(float)).mean() > 2.0**61  # values would fill 40 of 64 bits
    assert readable(reports["a"] + reports["b"] + reports["c"], "a") < 0.4  # nor what some of them add up to
    monkeypatch.setattr(dropout_tolerant, "draw", lambda key, count: np.zeros(count, dtype=np.uint64))
    bare = Round(five.root / "bare", list("abcde"))
    bare.values = five.values
    assert readable(bare.report(bare.draw(), "a"), "a") > 0.999


def test_not_both_shares_of_one_site(five: Round) -> None:
    """A coordinator that has a site's report says that it was lost, to some or to all."""
    drawn = five.draw()
    reported = {n: five.report(drawn, n) for n in "abcde"}
    assert five.shares(drawn, list("abcde"), "abc")
    for holder in "abc":
        with pytest.raises(VitrailError, match="opening: it was asked before in this run with other contents"):
            five.shares(drawn, list("abcd"), [holder])
    later = five.shares(drawn, list("abcd"), "d")  # who has not answered yet believes it: too few
    opening = SumOpening(TERMS, five.names, drawn, list("abcd"), "w")
    assert opening.lacks(later)
    with pytest.raises(VitrailError, match="shares of its secret"):
        opening.open(sum(reported[n] for n in "abcd"), later)
    again = five.shares(drawn, list("abcde"), "abc")
    assert again == five.shares(drawn, list("abcde"), "abc"), "asked the same, it says the same"


def test_two_kinds_of_shares_would_tell_a_report(five: Round) -> None:
    """The control: had five holders told both, e's values could be read from its report."""
    drawn = five.draw()
    report, said = five.report(drawn, "e"), list("abcd")
    for n in said:
        five.report(drawn, n)
    keys = five.shares(drawn, said, said)
    for n in said:
        (five.root / n / f"{OPENING}.said").unlink()  # it forgets
    selves = five.shares(drawn, list("abcde"), said)
    opening, alone = (
        SumOpening(TERMS, five.names, drawn, said, "w"),
        SumOpening(TERMS, five.names, drawn, list("abcde"), "w"),
    )
    private, mask = opening._secret("e", keys), alone._secret("e", selves)
    from vitrail.privacy.secure_sum.dropout_tolerant import _towards, self_stream

    bare = report - self_stream(mask, TERMS)
    for other in "abcd":
        key = X25519PrivateKey.from_private_bytes(private)
        zero = _towards(np.zeros_like(bare), key, "e", other, drawn[other].key, TERMS, list(drawn), "w")
        bare = bare - zero
    values = TERMS.apart(bare)["change"].view(np.int64) / 2.0 ** TERMS.places("change")
    assert np.abs(values - five.values["e"]["change"]).max() < 1e-6


@pytest.mark.parametrize(("least", "reads"), [(3, True), (fewest_of(5, 3), False)])
def test_an_accomplice_and_two_stories(least: int, reads: bool, tmp_path: Path) -> None:
    """The coordinator says to some that e reported, to others that it fell silent; c tells it both shares. Where more
    than half of the shares tell a secret, that is enough to read e (the control); with two thirds it is not."""
    five = Round(tmp_path, list("abcde"), replace(TERMS, least=least))
    drawn, everyone = five.draw(), list("abcde")
    for name in everyone:
        five.report(drawn, name)
    selves = five.shares(drawn, everyone, "aec")
    (five.root / "c" / f"{OPENING}.said").unlink()  # the accomplice forgets
    keys = five.shares(drawn, list("abcd"), "bdc")
    whole = (
        SumOpening(five.terms, five.names, drawn, everyone, "w"),
        SumOpening(five.terms, five.names, drawn, list("abcd"), "w"),
    )
    assert ["e" not in one.lacks(told) for one, told in zip(whole, (selves, keys), strict=True)] == [reads, reads]


def test_one_list_in_a_round(five: Round) -> None:
    """No share is told before everybody who is said to have reported signed the very same list."""
    drawn, everyone = five.draw(), list("abcde")
    shorter = {n: d for n, d in drawn.items() if n != "e"}
    for name in "abc":
        five.report(drawn, name)
    five.report(shorter, "d")  # another list for d
    lists, sealed = five.lists("abcd"), {n: d.sealed["a"] for n, d in drawn.items() if "a" in d.sealed}
    with pytest.raises(VitrailError, match="a key was refused"):
        five.ends["a"].open(list("abcd"), sealed, lists, five.check)
    with pytest.raises(VitrailError, match="did not sign the list"):
        five.ends["a"].open(everyone, sealed, {k: v for k, v in lists.items() if k != "d"}, five.check)
    with pytest.raises(VitrailError, match="a key was refused"):  # nor one that another site signed
        five.ends["a"].open(list("abcd"), sealed, {**lists, "d": lists["c"]}, five.check)
    other = Round(five.root / "later", everyone, replace(TERMS, about="study run 0 4 0"))
    other.keys = five.keys
    other.ends = {n: other.end(n) for n in everyone}
    again = other.draw()
    for name in everyone:
        other.report(again, name)
    with pytest.raises(VitrailError, match="a key was refused"):  # nor that of another round
        five.ends["a"].open(list("abcd"), sealed, {**lists, "d": other.lists("d")["d"]}, five.check)
    assert not (five.root / "a" / f"{OPENING}.said").exists()
    assert five.ends["a"].open(list("abc"), sealed, lists, five.check), "the control: three signed the same"


def test_a_site_reports_once(five: Round) -> None:
    """Two sums of the same values over lists that differ by one site would tell that site's values."""
    drawn = five.draw()
    first = five.report(drawn, "a")
    assert (five.report(drawn, "a") == first).all(), "asked the same again, also by another process"
    five.ends["a"] = five.end("a")
    assert (five.report(drawn, "a") == first).all()
    with pytest.raises(VitrailError, match="report: it was asked before in this run with other contents"):
        five.report({n: d for n, d in drawn.items() if n != "e"}, "a")
    with pytest.raises(VitrailError, match="with other contents"):
        five.report(drawn, "a", "v")
    five.names = list("abcd")
    with pytest.raises(VitrailError, match="another list"):
        five.draw("a")
    kept = json.loads((five.root / "a" / DRAWN).read_text())
    assert not {"private", "self"} & kept.keys(), "its keys are gone"


def test_sites_that_were_told_different_models_have_masks_that_do_not_cancel(five: Round) -> None:
    """Or a model by which all others report nothing would leave one site's report alone in the sum."""
    drawn = five.draw()
    reported = sum(five.report(drawn, n, "x" if n == "b" else "w") for n in "abcde")
    with pytest.raises(VitrailError, match="a key was refused"):  # nor does anybody open it
        five.shares(drawn, list("abcde"), "abcde")
    five.check = lambda *given: None  # type: ignore[method-assign]
    with pytest.raises(VitrailError, match="sent different things"):
        SumOpening(TERMS, five.names, drawn, list("abcde"), "w").open(
            reported, five.shares(drawn, list("abcde"), "abcde")
        )


def test_a_coordinator_in_the_middle_is_noticed(five: Round) -> None:
    drawn = five.draw()
    mine = X25519PrivateKey.generate().public_key().public_bytes_raw()
    for name in "bcde":
        put = {**drawn, name: drawn[name]._replace(key=mine)}
        with pytest.raises(VitrailError, match="a key was refused"):
            five.report(put, "a")
    with pytest.raises(VitrailError, match="same key"):
        five.report({**drawn, "b": drawn["c"]}, "a")
    other = Round(five.root / "other", list("abcde"), replace(TERMS, about="study run another"))
    other.keys = five.keys
    with pytest.raises(VitrailError, match="a key was refused"):  # a key that was signed for another sum
        five.report({**drawn, "b": other.end("b").draw(five.names)}, "a")


def test_killed_between_reporting_and_forgetting(five: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is on the disk before the keys go: the other way round a crash would end the sum."""
    drawn, whole = five.draw(), DecisionRecord.replace

    def killed(self: DecisionRecord, decisions: dict[str, Any]) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(DecisionRecord, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        five.report(drawn, "a")
    monkeypatch.setattr(DecisionRecord, "replace", whole)
    assert "private" in json.loads((five.root / "a" / DRAWN).read_text())
    five.ends["a"] = five.end("a")
    assert same(five.sum(drawn, list("abcde"), list("abcde")), five.total("abcde"))
    assert "private" not in json.loads((five.root / "a" / DRAWN).read_text())


def test_what_lies_on_disk_is_the_owners(five: Round) -> None:
    five.sum(five.draw(), list("abcde"), list("abcde"))
    files = [file for name in "abcde" for file in (five.root / name).iterdir()]
    assert len(files) == 3 * 5
    assert not any(file.stat().st_mode & 0o077 for file in files)


@pytest.mark.parametrize("name", [DRAWN, f"{REPORT}.said", f"{OPENING}.said"])
@pytest.mark.parametrize("size", [0, 10, 40])
def test_a_damaged_file_is_said_and_nothing_is_told_anew(name: str, size: int, five: Round) -> None:
    drawn, everyone = five.draw(), list("abcde")
    reports = {n: five.report(drawn, n) for n in everyone}
    shares = five.shares(drawn, everyone, everyone)
    file = five.root / "a" / name
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(VitrailError):
        five.shares(drawn, everyone, "a")
    with pytest.raises(VitrailError):
        five.shares(drawn, list("abcd"), "a")
    del shares["a"]
    reported = sum(reports.values())
    assert same(SumOpening(TERMS, five.names, drawn, everyone, "w").open(reported, shares), five.total(everyone))


@pytest.mark.parametrize(
    ("roster", "why"), [("ab", "At least 3"), ("bcd", "this one among them"), ("abcz", "that have distributed shares")]
)
def test_lists_that_are_none(five: Round, roster: str, why: str) -> None:
    drawn = five.draw()
    with pytest.raises(VitrailError, match=why):
        five.report({n: drawn.get(n, drawn["e"]) for n in roster}, "a")
    assert not (five.root / "a" / f"{REPORT}.said").exists()


@pytest.mark.parametrize("names", ["ab", "bcde", "aabc"])
def test_lists_for_shares_that_are_none(five: Round, names: str) -> None:
    with pytest.raises(VitrailError, match="a masked sum was refused"):
        five.ends["a"].draw(list(names))


@pytest.mark.parametrize("said", ["ab", "bcd", "abcz"])
def test_lists_of_who_reported_that_are_none(five: Round, said: str) -> None:
    drawn = five.draw()
    five.report(drawn, "a")
    with pytest.raises(VitrailError, match="At least 3"):
        five.shares(drawn, list(said), "a")
    with pytest.raises(VitrailError, match="added nothing"):
        five.shares(drawn, list("abc"), "b")


def test_beyond_the_limit_nothing_is_sent(five: Round) -> None:
    drawn = five.draw()
    for bad in (2.0**24 * 1.01, np.nan, -np.inf):
        five.values["a"]["change"][3, 2] = bad
        with pytest.raises(VitrailError, match="larger than the agreed") as error:
            five.report(drawn, "a")
        assert [p.where for p in error.value.problems] == ["change"]
    assert not (five.root / "a" / f"{REPORT}.said").exists()


def test_shares_that_were_changed_are_refused_and_false_ones_passed_over(five: Round) -> None:
    drawn, everyone = five.draw(), list("abcde")
    reported = sum(five.report(drawn, n) for n in everyone)
    spoilt = bytearray(drawn["b"].sealed["a"])
    spoilt[20] ^= 1
    with pytest.raises(VitrailError, match="it was changed"):
        five.ends["a"].open(everyone, {"b": bytes(spoilt)}, five.lists(everyone), five.check)
    with pytest.raises(VitrailError, match="it was not sealed with the expected key"):
        five.ends["a"].open(everyone, {"b": drawn["b"].sealed["c"]}, five.lists(everyone), five.check)
    shares = five.shares(drawn, everyone, everyone)
    shares["c"] = {n: bytes(33) for n in shares["c"]}  # a holder that lies
    opening = SumOpening(TERMS, five.names, drawn, everyone, "w")
    assert same(opening.open(reported, shares), five.total(everyone))
    shares["d"] = shares["e"] = shares["c"]
    with pytest.raises(VitrailError, match="do not fit together"):
        opening.open(reported, shares)


def test_a_report_that_was_changed_is_not_opened(five: Round) -> None:
    drawn, everyone = five.draw(), list("abcde")
    reported = sum(five.report(drawn, n) for n in everyone)
    reported[-1] += np.uint64(5)
    with pytest.raises(VitrailError, match="do not cancel"):
        SumOpening(TERMS, five.names, drawn, everyone, "w").open(reported, five.shares(drawn, everyone, everyone))


@pytest.mark.parametrize("sites", range(3, 41))
def test_so_many_shares_that_nobody_gets_both(sites: int) -> None:
    names = [f"s{i}" for i in range(sites)]
    for group in groups("x", names).values():
        for least in (3, fewest_of(sites, 3)):
            assert 2 * needed(group, names, least) > len(group)
            assert 3 <= needed(group, names, least) <= len(group)
        accomplices = 2 * needed(group, names, fewest_of(sites, 3)) - len(group)
        assert accomplices >= min(len(group) / 3, 5), "so many would have to tell both kinds"


def test_fewer_shares_than_needed_tell_nothing() -> None:
    secret = bytes(range(32))
    shares = split(secret, range(1, 8), 4)
    assert join({x: shares[x] for x in (1, 3, 6, 7)}) == secret
    assert join({x: shares[x] for x in (1, 2, 3, 4, 5)}) == secret
    assert join({x: shares[x] for x in (1, 3, 6)}) != secret
    # with one share less than needed every secret is possible: another fourth share fits each of them
    others = {join({1: shares[1], 3: shares[3], 6: shares[6], 7: (y % P).to_bytes(33, "big")}) for y in range(50)}
    assert len(others) == 50
