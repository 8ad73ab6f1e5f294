"""Sums under masks: what they are worth, and how one would try to see through them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.errors import Problem, VitrailError
from vitrail.privacy.secure_sum import pairwise
from vitrail.privacy.secure_sum.fixed_point import ZERO
from vitrail.privacy.secure_sum.pairwise import PairwiseSummand, SumOffer, SumSpec, draw, open_sum

SHAPES = {"products": (40, 40), "rows": (), "none": (0,)}
TERMS = SumSpec("study run sum", SHAPES, {"products": 1e6, "rows": 1e3, "none": 1.0}, most=8)


class Sites:
    """Some sites, each with a key that the others know it by."""

    def __init__(self, root: Path, names: list[str], terms: SumSpec = TERMS) -> None:
        self.keys = {n: Ed25519PrivateKey.generate() for n in names}
        self.terms, self.root = terms, root
        self.ends = {n: self.end(n) for n in names}
        rng = np.random.default_rng(7)
        self.values = {
            n: {k: rng.uniform(-1, 1, shape) * terms.clip[k] for k, shape in terms.shapes.items()} for n in names
        }

    def end(self, name: str) -> PairwiseSummand:
        return PairwiseSummand(name, self.terms, self.root / name, self.keys[name].sign)

    def check(self, site: str, text: bytes, signature: bytes) -> None:
        try:
            self.keys[site].public_key().verify(signature, text)
        except (InvalidSignature, KeyError):
            raise VitrailError("a key was refused", [Problem(site, "not signed")]) from None

    def offers(self) -> dict[str, SumOffer]:
        return {n: end.offer() for n, end in self.ends.items()}

    def reports(self, offers: Mapping[str, SumOffer]) -> dict[str, pairwise.Masked]:
        return {n: self.ends[n].report(self.values[n], offers, self.check) for n in offers}


@pytest.fixture
def four(tmp_path: Path) -> Sites:
    return Sites(tmp_path, ["a", "b", "c", "d"])


def total(sites: Sites, names: Any) -> dict[str, np.ndarray]:
    return {k: sum(sites.values[n][k] for n in names) for k in SHAPES}  # type: ignore[misc]


def test_the_sum_is_the_plain_sum(four: Sites) -> None:
    opened = open_sum(four.reports(four.offers()), TERMS)
    for k, plain in total(four, four.values).items():
        assert opened[k].shape == SHAPES[k]
        assert np.abs(opened[k] - plain).max(initial=0) < 1e-9 * TERMS.clip[k]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-5.0, 5.0), min_size=3, max_size=7), st.floats(5.0, 1e9))
def test_any_values_up_to_the_clip(tmp_path_factory: Any, values: list[float], clip: float) -> None:
    terms = SumSpec("x", {"v": (1,)}, {"v": clip}, most=7)
    sites = Sites(tmp_path_factory.mktemp("s"), [f"s{i}" for i in range(len(values))], terms)
    given_ = [*values[:-1], clip if values[-1] > 0 else -clip]  # one of them at the very edge
    sites.values = {n: {"v": np.array([v])} for n, v in zip(sites.ends, given_, strict=True)}
    opened = open_sum(sites.reports(sites.offers()), terms)
    assert abs(opened["v"][0] - sum(given_)) < 1e-6 * clip


def test_a_single_report_is_noise(four: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same test reads a report without masks at once."""

    def readable(said: pairwise.Masked, site: str) -> float:
        numbers = said["products"].view(np.int64).astype(float).ravel()
        return float(abs(np.corrcoef(numbers, four.values[site]["products"].ravel())[0, 1]))

    said = four.reports(four.offers())
    for site in said:
        assert readable(said[site], site) < 0.1  # of 1600 numbers: four standard errors
        counts = np.bincount(said[site]["products"].view(np.uint8).ravel(), minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 255 + 6 * np.sqrt(2 * 255)  # every byte as often
    for pair in (("a", "b"), ("a", "b", "c")):  # nor what some of them add up to
        some = {"products": sum(said[n]["products"] for n in pair[1:])}
        assert readable(some, pair[1]) < 0.1
    monkeypatch.setattr(pairwise, "draw", lambda key, count: np.zeros(count, dtype=np.uint64))
    bare = Sites(four.root / "bare", list(four.values))
    bare.values = four.values
    assert readable(bare.reports(bare.offers())["a"], "a") > 0.999


def test_who_is_missing_is_noticed(four: Sites) -> None:
    said = four.reports(four.offers())
    del said["c"]
    with pytest.raises(VitrailError, match="do not cancel"):
        open_sum(said, TERMS)


@pytest.mark.parametrize("part", ["products", ZERO])
def test_a_report_that_was_changed(four: Sites, part: str) -> None:
    """Of the values nobody can tell, of the masks one can."""
    said = four.reports(four.offers())
    said["b"][part] = said["b"][part] + np.uint64(1 << 40)
    if part == ZERO:
        with pytest.raises(VitrailError, match="do not cancel"):
            open_sum(said, TERMS)
    else:
        assert not np.allclose(open_sum(said, TERMS)["products"], total(four, said)["products"])


def test_a_coordinator_in_the_middle_is_noticed(four: Sites) -> None:
    """It would put keys of its own in place of the others' and take every mask off."""
    offers, own = four.offers(), X25519PrivateKey.generate().public_key().public_bytes_raw()
    for swapped in (SumOffer(own, offers["b"].signature), offers["b"]._replace(signature=bytes(64)), offers["c"]):
        with pytest.raises(VitrailError, match=r"not signed|same key"):
            four.ends["a"].report(four.values["a"], {**offers, "b": swapped}, four.check)
    # a key that was signed for another sum
    other = Sites(four.root / "other", [], SumSpec("study run another", SHAPES, TERMS.clip, 8))
    other.keys = four.keys
    old = other.end("b").offer()
    with pytest.raises(VitrailError, match="not signed"):
        four.ends["a"].report(four.values["a"], {**offers, "b": old}, four.check)
    assert not (four.root / "a" / pairwise.SAID).exists()


def test_swapped_keys_are_readable_without_signatures(four: Sites) -> None:
    """Positive control: who owns the keys of all others takes the masks off."""
    offers = four.offers()
    mine = {n: X25519PrivateKey.generate() for n in "bcd"}
    faked = {**offers, **{n: SumOffer(k.public_key().public_bytes_raw(), b"") for n, k in mine.items()}}
    said = four.ends["a"].report(four.values["a"], faked, lambda *_: None)
    masked = {n: PairwiseSummand(n, TERMS, four.root / f"fake {n}", lambda _: b"") for n in mine}
    others = []
    for n, end in masked.items():
        end.folder.mkdir()
        known = {"private": mine[n].private_bytes_raw().hex(), "public": faked[n].key.hex(), "signature": ""}
        (end.folder / pairwise.DRAWN).write_text(json.dumps(known))
        others.append(end.report({k: np.zeros(s) for k, s in SHAPES.items()}, faked, lambda *_: None))
    opened = open_sum({"a": said, **dict(zip(mine, others, strict=True))}, TERMS)
    assert np.allclose(opened["products"], four.values["a"]["products"])


def test_two_lists_of_sites_would_tell_one_sites_values(four: Sites) -> None:
    """So a site adds its values to one list; and without that rule the attack works."""
    offers = four.offers()
    all_four = open_sum(four.reports(offers), TERMS)
    without_d = {n: o for n, o in offers.items() if n != "d"}
    for site in without_d:
        with pytest.raises(VitrailError, match="another list"):
            four.ends[site].report(four.values[site], without_d, four.check)
        fresh = four.end(site)  # nor after a restart
        with pytest.raises(VitrailError, match="another list"):
            fresh.report(four.values[site], without_d, four.check)
    forgetful = Sites(four.root / "forgetful", ["a", "b", "c"])
    forgetful.values = four.values
    three = open_sum(forgetful.reports(forgetful.offers()), TERMS)
    assert np.allclose(all_four["products"] - three["products"], four.values["d"]["products"])


def test_asked_again_it_says_the_same_and_its_key_is_gone(four: Sites) -> None:
    offers = four.offers()
    first = four.ends["a"].report(four.values["a"], offers, four.check)
    assert "private" not in json.loads((four.root / "a" / pairwise.DRAWN).read_text())
    again = four.end("a")
    assert again.offer() == offers["a"]
    other = {k: v + 1 for k, v in four.values["a"].items()}
    for k, v in again.report(other, offers, four.check).items():
        assert np.array_equal(v, first[k])  # not the new values: the difference would be plain


def test_killed_between_saying_and_forgetting(four: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    offers, whole = four.offers(), pairwise.write_atomically

    def killed(path: Path, *said: Any, **how: Any) -> None:
        if path.name == pairwise.DRAWN:
            raise KeyboardInterrupt
        whole(path, *said, **how)

    monkeypatch.setattr(pairwise, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        four.ends["a"].report(four.values["a"], offers, four.check)
    monkeypatch.setattr(pairwise, "write_atomically", whole)
    said = {n: four.end(n).report(four.values[n], offers, four.check) for n in offers}
    assert np.allclose(open_sum(said, TERMS)["products"], total(four, offers)["products"])


def refuses(change: Callable[[dict[str, np.ndarray]], Any], four: Sites, match: str) -> None:
    values = {k: v.copy() for k, v in four.values["a"].items()}
    change(values)
    with pytest.raises(VitrailError, match=match):
        four.ends["a"].report(values, four.offers(), four.check)
    assert not (four.root / "a" / pairwise.SAID).exists()


@pytest.mark.parametrize("bad", [1.01e6, -1e300, np.inf, np.nan])
def test_beyond_the_clip_nothing_is_sent(bad: float, four: Sites) -> None:
    refuses(lambda v: v["products"].__setitem__((3, 3), bad), four, "larger than")


def test_other_names_or_shapes(four: Sites) -> None:
    refuses(lambda v: v.pop("rows"), four, "rows")
    refuses(lambda v: v.update(products=np.zeros(3)), four, "products")
    refuses(lambda v: v.update(more=np.zeros(3)), four, "more")


def test_lists_that_are_none(four: Sites) -> None:
    offers, end, values = four.offers(), four.ends["a"], four.values["a"]
    many = {**offers, **{f"e{i}": SumOffer(bytes([i]) * 32, b"") for i in range(5)}}
    for bad, match in (
        ({n: offers[n] for n in "ab"}, "3 are the fewest"),
        ({n: offers[n] for n in "bcd"}, "the key that this site drew"),
        ({**offers, "a": SumOffer(bytes(32), b"")}, "the key that this site drew"),
        (many, "were agreed on"),
    ):
        with pytest.raises(VitrailError, match=match):
            end.report(values, bad, four.check)
    with pytest.raises(VitrailError, match="expected a public key"):  # every partner of this point has the same secret
        end.report(values, {**offers, "b": SumOffer(bytes(32), b"")}, lambda *_: None)
    with pytest.raises(VitrailError, match="no key was drawn"):
        PairwiseSummand("z", TERMS, four.root / "z", lambda _: b"").report(values, offers, four.check)


def test_told_different_keys_nothing_opens(four: Sites) -> None:
    """A coordinator that tells each site another list, all of them rightly signed, gets noise."""
    five = Sites(four.root / "five", ["a", "b", "c", "d", "e"])
    offers = five.offers()
    some = {n: offers[n] for n in "abcd"}
    said = {n: five.ends[n].report(five.values[n], offers if n == "a" else some, five.check) for n in "abcd"}
    with pytest.raises(VitrailError, match="do not cancel"):
        open_sum(said, TERMS)


def test_reports_of_another_form_are_named(four: Sites) -> None:
    said = four.reports(four.offers())
    for bad in ({k: v for k, v in said["c"].items() if k != "rows"}, {**said["c"], "rows": np.zeros(2, np.uint64)}):
        with pytest.raises(VitrailError, match="c: its report"):
            open_sum({**said, "c": bad}, TERMS)
    with pytest.raises(VitrailError, match="2 reports came"):
        open_sum({n: said[n] for n in "ab"}, TERMS)


def test_what_lies_on_disk_is_the_owners(four: Sites) -> None:
    four.reports(four.offers())
    for file in (four.root / "a").iterdir():
        assert file.stat().st_mode & 0o077 == 0


def test_streams_differ_by_key() -> None:
    one, other = draw(bytes(32), 1000), draw(bytes(31) + b"\1", 1000)
    assert len(np.intersect1d(one, other)) == 0
    assert np.array_equal(one, draw(bytes(32), 1000))
