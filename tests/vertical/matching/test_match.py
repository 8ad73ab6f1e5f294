"""Matching: the plain intersection, whatever the order of rows; the number before places; and what an end can learn."""

from __future__ import annotations

import hashlib
import json
import secrets
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitrail as vt
from tests.support.vertical.parties import guest_table, host_table, names, study
from vitrail.data.schema import Matching
from vitrail.vertical.matching.curve import lock, points
from vitrail.vertical.matching.match import consent, fingerprint
from vitrail.vertical.matching.protocol import Count, End, List, Places, path

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RULES = Matching(at_least=1)
HOST, LAB = names(0, 150), names(100, 220)


def tables(host: list[str] = HOST, lab: list[str] = LAB) -> dict[str, pd.DataFrame]:
    return {"hospital": host_table(host), "lab": guest_table(lab)}


def joined(found: vt.Match, given: dict[str, pd.DataFrame]) -> pd.DataFrame:
    taken = found.take(given)
    parts = [frame.reset_index(drop=True).add_prefix(f"{party}.") for party, frame in sorted(taken.items())]
    return pd.concat(parts, axis=1)


def test_the_number_the_rows_and_what_crossed() -> None:
    given = tables()
    found = vt.match(study(), given)
    both = joined(found, given)
    assert found.common == len(both) == 50
    assert both["hospital.patient"].tolist() == both["lab.pid"].tolist()
    assert set(both["lab.pid"]) == set(HOST) & set(LAB)
    assert found.rows == {"hospital": 150, "lab": 120}
    assert found.answered == {"hospital": 120, "lab": 150}
    lists = [(c.sender, c.receiver, c.what, c.bytes) for c in found.crossed]
    assert lists[:6] == [
        ("hospital", "lab", "length of the list of hospital", 4),
        ("lab", "hospital", "length of the list of lab", 4),
        ("hospital", "lab", "list of hospital", 150 * 32 + 8),
        ("lab", "hospital", "list of hospital", 150 * 32 + 8),
        ("lab", "hospital", "list of lab", 120 * 32 + 3),
        ("hospital", "lab", "number in common", 20),
    ]
    assert [c[:2] for c in lists[6:]] == [("hospital", "lab"), ("lab", "hospital"), ("hospital", "lab")]


def test_before_consent_there_are_no_places() -> None:
    found = vt.match(study(), tables(), places=False)
    assert (found.common, found.places) == (50, {})
    assert not any("places" in crossed.what for crossed in found.crossed)
    with pytest.raises(vt.VitrailError, match="consent"):
        found.take(tables())


IDS = st.lists(st.text("ab01 ", min_size=1, max_size=3).filter(str.strip), min_size=1, max_size=12, unique_by=str.strip)


@FUZZ
@given(st.lists(IDS, min_size=2, max_size=4), st.randoms())
def test_it_is_the_plain_intersection(lists: list[list[str]], draw: object) -> None:
    guests = [f"guest {i}" for i in range(1, len(lists))]
    given = {"hospital": host_table(lists[0])} | {g: guest_table(ids) for g, ids in zip(guests, lists[1:], strict=True)}
    sets = [{one.strip() for one in ids} for ids in lists]
    common = set.intersection(*sets)
    agreed = study(guests, {"ratio": 100})
    if not common:
        with pytest.raises(vt.VitrailError, match="fewer than 1 ids are in common"):
            vt.match(agreed, given)
        return
    found = vt.match(agreed, given)
    taken = found.take(given)
    spelled = [[one.strip() for one in frame.iloc[:, 0]] for frame in taken.values()]
    assert set(spelled[0]) == common
    assert all(one == spelled[0] for one in spelled)
    for some, rows in found.with_some.items():
        assert rows == len(set.intersection(sets[0], *(sets[guests.index(g) + 1] for g in some)))


@pytest.mark.parametrize("whose", ["hospital", "lab", "both"])
def test_the_order_of_rows_changes_places_alone(whose: str) -> None:
    given, agreed, draw = tables(), study(), np.random.default_rng(3)
    moved = {p: f.iloc[draw.permutation(len(f))] if whose in (p, "both") else f for p, f in given.items()}
    one, other = vt.match(agreed, given), vt.match(agreed, moved)
    assert (one.common, one.mark) == (other.common, other.mark)
    pd.testing.assert_frame_equal(joined(one, given), joined(other, moved))
    for party in given:
        changed = whose in (party, "both")
        assert (one.places[party].tolist() != other.places[party].tolist()) == changed


def test_so_does_the_order_of_parties() -> None:
    guests, ids = ["lab", "insurer", "registry"], {"lab": LAB, "insurer": names(80, 160), "registry": names(0, 140)}
    given = {"hospital": host_table(HOST)} | {g: guest_table(ids[g]) for g in guests}
    all_ = [joined(vt.match(study(order), given), given) for order in permutations(guests)]
    assert len(all_[0]) == 40
    for other in all_[1:]:
        pd.testing.assert_frame_equal(all_[0], other)


def test_several_guests_what_each_would_add() -> None:
    given = {"hospital": host_table(HOST), "lab": guest_table(LAB), "registry": guest_table(names(0, 120))}
    found = vt.match(study(["lab", "registry"]), given)
    assert found.common == 20
    assert found.with_some == {("lab",): 50, ("registry",): 120}
    assert "Only you learn how many" in " ".join(consent(study(["lab", "registry"]), "hospital"))
    assert "hospital could also count how many ids you share" in " ".join(consent(study(["lab", "registry"]), "lab"))


def test_the_common_order_tells_nothing_and_is_another_with_other_secrets() -> None:
    ids = names(0, 400)
    given = tables(ids, ids)
    orders = []
    for _ in range(2):
        drawn = {party: secrets.token_bytes(32) for party in given}
        orders.append(vt.match(study(), given, secrets=drawn).places["lab"])  # rows are in the order of ids here
    assert all(abs(np.corrcoef(order, np.arange(400))[0, 1]) < 0.25 for order in orders)  # 5 standard deviations
    assert orders[0].tolist() != orders[1].tolist()
    again = [vt.match(study(), given).places["lab"].tolist() for _ in range(2)]
    assert again[0] == again[1]  # a simulation can be repeated


def test_nothing_that_crosses_is_an_id_its_hash_or_its_point() -> None:
    end = End("hospital", HOST, secrets.token_bytes(32), "here", RULES)
    sent = end.own().tokens
    for one, point in zip(HOST, points(HOST, "here"), strict=True):
        for told in (one.encode(), hashlib.sha256(one.encode()).digest()[:8], point):
            assert told not in sent
    other = End("hospital", HOST, secrets.token_bytes(32), "here", RULES).own().tokens
    assert not {*cut(sent)} & {*cut(other)}  # nor can two matches be laid beside each other


def test_passed_on_in_an_order_that_tells_nothing() -> None:
    """Not that of rows, nor that in which a list came; and the same whatever that was."""
    secret = secrets.token_bytes(32)
    one, other = (End("hospital", ids, secret, "here", RULES) for ids in (HOST, HOST[::-1]))
    sent = one.own()
    assert sent == other.own()
    assert cut(sent.tokens) == sorted(cut(sent.tokens))
    came = cut(sent.tokens)
    backwards = [End("lab", LAB, bytes([7]) * 32, "here", RULES) for _ in range(2)]
    assert backwards[0].lock(sent) == backwards[1].lock(List("hospital", b"".join(came[::-1])))


def cut(tokens: bytes) -> list[bytes]:
    return [tokens[i : i + 32] for i in range(0, len(tokens), 32)]


@pytest.mark.parametrize(("common", "at_least"), [(0, 1), (9, 10), (99, 100)])
def test_of_too_few_nothing_is_told_but_that(common: int, at_least: int) -> None:
    given = tables(names(0, 150), names(150 - common, 300))
    with pytest.raises(vt.VitrailError) as caught:
        vt.match(study(match={"at_least": at_least}), given)
    told = str(caught.value)
    assert f"fewer than {at_least} ids are in common" in told
    assert "150 ids" in told
    assert f"{150 + common} ids" in told
    assert "form" in told
    other = tables(names(0, 150), names(150 - max(common - 1, 0), 300 + (common > 0)))  # one less in common
    with pytest.raises(vt.VitrailError) as again:
        vt.match(study(match={"at_least": at_least}), other)
    assert str(again.value).replace(f"{151 + common - 1} ids", f"{150 + common} ids") == told
    if common:
        assert vt.match(study(match={"at_least": common}), given).common == common


def test_spellings_to_try_are_those_that_would_help() -> None:
    given = {"hospital": host_table([f"{i:08d}" for i in range(200)]), "lab": guest_table(list(range(200)))}
    with pytest.raises(vt.VitrailError) as caught:
        vt.match(study(match={"form": "folded", "at_least": 150}), given)
    told = str(caught.value)
    assert "8 digits, some with leading zeros" in told
    assert "1 to 3 digits" in told
    assert "Try form = 'number'" in told
    assert vt.match(study(match={"form": "number", "at_least": 150}), given).common == 200


def test_check_digits_that_one_party_leaves_out_are_guessed() -> None:
    bare = [str(75612345678 + 7 * i) for i in range(40)]
    full = [f"{one}{-sum(int(d) * (1 if i % 2 else 3) for i, d in enumerate(reversed(one))) % 10}" for one in bare]
    with pytest.raises(vt.VitrailError) as caught:
        vt.match(study(), {"hospital": host_table(full), "lab": guest_table(bare)})
    hospital, lab, _ = map(str, caught.value.problems)
    assert "12 digits, the last a check digit. Check whether the other" in hospital
    assert "11 digits. Another party writes one more digit, a check digit. Check whether it is missing here." in lab


def test_one_list_over_twice_the_other_is_refused_with_both_counts_unless_allowed() -> None:
    given = tables(names(0, 20), names(0, 41))
    with pytest.raises(vt.VitrailError) as caught:
        vt.match(study(), given)
    assert "lab has 41 ids and hospital has 20, so one list is more than 2 times" in str(caught.value)
    assert vt.match(study(match={"ratio": 3}), given).common == 20
    assert vt.match(study(), tables(names(0, 20), names(0, 40))).common == 20


def ends() -> tuple[End, End]:
    return End("hospital", HOST, bytes([1]) * 32, "here", RULES), End("lab", LAB, bytes([2]) * 32, "here", RULES)


def test_ends_alone_say_what_match_says() -> None:
    """As between machines: nothing is shared but messages."""
    host, lab = ends()
    mine, theirs = lab.lock(host.own()), host.lock(lab.own())
    count, _ = host.count([mine, theirs])
    rows = {
        "hospital": np.frombuffer(host.open(lab.open(host.found("hospital"))).places, "<u4").tolist(),
        "lab": np.frombuffer(lab.open(host.open(host.found("lab"))).places, "<u4").tolist(),
    }
    agreed = study(name="x")
    direct = vt.match(agreed, tables(), secrets={"hospital": bytes([1]) * 32, "lab": bytes([2]) * 32})
    assert count.rows == direct.common
    assert [HOST[i] for i in rows["hospital"]] == [LAB[i] for i in rows["lab"]]
    assert path("lab", "hospital", ["lab", "b", "c"]) == ["lab", "b", "c", "hospital"]
    assert path("hospital", "hospital", ["lab", "b"]) == ["hospital", "lab", "b"]


def test_attack_ids_of_ones_own_making_are_found_out_and_counted() -> None:
    """Positive control for what the consent form says: short ids can be guessed."""
    secret_ids = [f"{i:03d}" for i in np.random.default_rng(5).choice(1000, 120, replace=False)]
    guesses = [f"{i:03d}" for i in range(1000)]
    allowed = study(match={"ratio": 10})
    found = vt.match(allowed, {"hospital": host_table(secret_ids), "lab": guest_table(guesses)})
    assert {guesses[i] for i in found.places["lab"]} == set(secret_ids)  # all of them
    assert found.answered["hospital"] == 1000
    said = " ".join(consent(allowed, "hospital"))
    assert "can put guesses into its own list, at most 10 times as many" in said
    with pytest.raises(vt.VitrailError, match="much longer"):  # of longer ids a list cannot hold enough
        vt.match(study(), {"hospital": host_table(secret_ids), "lab": guest_table([f"{i:04d}" for i in range(10_000)])})


def test_attack_a_host_that_asks_for_one_place_or_twice_is_refused() -> None:
    rules = Matching(at_least=10)
    host, lab = (End(n, ids, secrets.token_bytes(32), "here", rules) for n, ids in (("hospital", HOST), ("lab", LAB)))
    lab.own()
    lab.lock(host.own())
    few = np.arange(9, dtype="<u4").tobytes()
    with pytest.raises(vt.VitrailError, match="fewer places than agreed"):
        lab.open(Places("hospital", few))
    lab.open(Places("hospital", np.arange(10, dtype="<u4").tobytes()))
    with pytest.raises(vt.VitrailError, match="sent before"):
        lab.open(Places("hospital", np.arange(1, 11, dtype="<u4").tobytes()))
    with pytest.raises(vt.VitrailError, match="received before"):
        lab.lock(host.own())
    with pytest.raises(vt.VitrailError, match="the common ids were not counted"):
        host.found("lab")


def test_a_list_that_came_back_longer_or_twice_or_not_at_all_is_refused() -> None:
    host, lab = ends()
    mine, theirs = lab.lock(host.own()), host.lock(lab.own())
    shorter = List("hospital", mine.tokens[32:])
    for lists in ([shorter, theirs], [theirs], [mine], [mine, theirs, theirs]):
        with pytest.raises(vt.VitrailError, match="refused"):
            host.count(lists)
    assert host.count([mine, theirs])[0].rows == 50


def test_attack_a_guest_cannot_match_locks_against_guesses() -> None:
    """It has the host's list under the host's lock, and all candidates; under its own key none is among them."""
    host = End("hospital", [f"{i:03d}" for i in range(0, 1000, 7)], secrets.token_bytes(32), "here", RULES)
    sent = {*cut(host.own().tokens)}
    candidates = points([f"{i:03d}" for i in range(1000)], "here")
    assert not sent & {*candidates}
    assert not sent & {*lock(candidates, secrets.token_bytes(32))}


MALFORMED = [
    b"",
    b"x",
    bytes(31),
    bytes(33),
    bytes(32),
    bytes([255]) * 32,
    bytes([9, *[0] * 31]) * 2,
    (1).to_bytes(32, "little"),
]


@pytest.mark.parametrize("tokens", [*MALFORMED, "text", None, 3])
def test_malformed_lists_are_refused(tokens: object) -> None:
    with pytest.raises(vt.VitrailError):
        ends()[0].lock(List("lab", tokens))  # type: ignore[arg-type]


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["hospital", "lab", "x"]))
def test_whatever_comes_is_used_or_refused_with_our_error(raw: bytes, owner: str) -> None:
    host, lab = ends()
    own = host.own()
    for use in (
        lambda: lab.lock(List(owner, raw)),
        lambda: host.open(Places(owner, raw)),
        lambda: host.count([own, List("lab", raw)]),
    ):
        with suppress(vt.VitrailError):  # anything else that is raised fails
            use()


@pytest.mark.parametrize("places", [b"abc", (200).to_bytes(4, "little"), bytes(8), "1", None])
def test_malformed_places_are_refused(places: object) -> None:
    host, _ = ends()
    host.own()
    with pytest.raises(vt.VitrailError):
        host.open(Places("hospital", places))  # type: ignore[arg-type]


def test_every_field_that_crosses_has_its_sentence() -> None:
    for kind in (List, Count, Places):
        for name, hint in kind.__annotations__.items():
            assert name == "owner" or "Annotated" in str(hint), (kind, name)


def test_kept_and_read_again_each_party_its_own(tmp_path: Path) -> None:
    given = tables()
    found = vt.match(study(), given)
    files = found.save(tmp_path / "match")
    assert [file.name for file in files] == ["hospital.json", "lab.json"]
    pd.testing.assert_frame_equal(joined(vt.Match.load(tmp_path / "match"), given), joined(found, given))
    told = json.loads(files[1].read_text())
    assert told["places"] == found.places["lab"].tolist()
    assert found.fingerprint["hospital"] not in files[1].read_text()
    with pytest.raises(vt.VitrailError, match="exists already"):
        found.save(tmp_path / "match")
    files[0].unlink()  # at the lab there is no other
    mine = vt.Match.load(tmp_path / "match")
    assert list(mine.take({"lab": given["lab"]})) == ["lab"]
    vt.match(study(name="another", match={"form": "folded"}), tables(HOST, names(90, 200))).save(tmp_path / "other")
    (tmp_path / "other" / "hospital.json").rename(files[0])
    with pytest.raises(vt.VitrailError, match="different matches"):
        vt.Match.load(tmp_path / "match")
    with pytest.raises(vt.VitrailError, match="no file of a match"):
        vt.Match.load(tmp_path / "nowhere")


@FUZZ
@given(st.integers(0, 400), st.binary(max_size=3))
def test_a_damaged_file_is_told(tmp_path: Path, at: int, put: bytes) -> None:
    whole = json.dumps(
        {
            "party": "lab",
            "host": "h",
            "mark": "m",
            "rows": 3,
            "places": [2, 0],
            "answered": 3,
            "fingerprint": "f" * 32,
            "secret": "00" * 32,
        }
    ).encode()
    (tmp_path / "lab.json").write_bytes(whole[:at] + put + whole[at + 1 :])
    with suppress(vt.VitrailError):  # anything else that is raised fails
        found = vt.Match.load(tmp_path)
        assert all((at < found.rows[party]).all() for party, at in found.places.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.assign(crp=f.crp + 1e-9),
        lambda f: f.iloc[::-1],
        lambda f: f.iloc[:-1],
        lambda f: f.rename(columns={"crp": "CRP"}),
        lambda f: f.assign(pid=[*f.pid[1:], f.pid[0]]),
        lambda f: f.assign(new=1),
    ],
)
def test_a_table_that_changed_since_the_match_is_refused(change: object) -> None:
    given = tables()
    found = vt.match(study(), given)
    with pytest.raises(vt.VitrailError, match="the table of lab has changed since the match"):
        found.take({**given, "lab": change(given["lab"])})  # type: ignore[operator]
    found.take({**given, "lab": given["lab"].copy()})


def test_a_fingerprint_without_its_secret_tells_nothing() -> None:
    frame = guest_table(LAB)
    assert fingerprint(frame, b"1" * 32) != fingerprint(frame, b"2" * 32)
    given = tables()
    assert vt.match(study(), given).fingerprint != vt.match(study(), given).fingerprint
