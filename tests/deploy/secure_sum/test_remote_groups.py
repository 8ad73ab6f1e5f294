"""Sums of groups by message: the same as in a simulation; a liar's group is outvoted; nobody is put into a group at
will; files that are damaged cost a round, and no study."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.deploy.lying_sites import lying
from tests.support.deploy.masked_runs import CLOSE, RUN, KilledError, Masked, agreement, asked_of
from vitrail.core.errors import VitrailError
from vitrail.core.facts import OUTLYING
from vitrail.data.datasets.catalogue import heart_disease
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.secure_sum.shared import grouped

FRAMES = {f"{n}{i}": f.iloc[i::3].reset_index(drop=True) for n, f in heart_disease().items() for i in range(3)}


@cache
def agreed_on(rounds: int = 2, method: str = "fedavg") -> Agreement:
    return agreement(method, rounds, len(FRAMES), sum="groups")


def way_of(root: Path, rounds: int = 2, method: str = "fedavg") -> Masked:
    return Masked(root, agreed_on(rounds, method), FRAMES)


def members(way: Masked) -> list[list[str]]:
    return list(grouped(way.agreed, (0, 0, 0), list(FRAMES)).values())


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_the_same_model_as_in_a_simulation(tmp_path: Path) -> None:
    """In the second round a site of the first group falls silent after the keys: its group is left out."""
    way = way_of(tmp_path)
    first = members(way)[0]
    assert sorted(map(len, members(way))) == [3, 3, 3, 3]

    def away(name: str, asked: Message) -> bool:
        return name == first[0] and asked.kind == "round" and asked.words["round"] == 1

    way.away = away
    far, near = way.conduct(quorum=9), way.near(away={n: [(2, 2)] for n in first})
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    assert [told["sites"] for event, told in way.events if event == "sum not opened"] == [sorted(first)]
    out, into = ({t.dtype for _, a, m in way.said if a.kind == "round" for t in x(a, m)} for x in (up, down))
    assert out == {torch.int64}
    assert into == {torch.float32}


def up(asked: Message, said: Message) -> list[torch.Tensor]:
    return [v for k, v in said.tensors.items() if k != "scores"]


def down(asked: Message, said: Message) -> list[torch.Tensor]:
    return list(asked.tensors.values())


def test_a_liar_is_outvoted_and_its_group_is_named(tmp_path: Path) -> None:
    """One round; the control is the same lie in the open."""
    way, liar, moved = way_of(tmp_path / "lied", 1), "va1", []
    plain = Masked(
        tmp_path / "open",
        Agreement.of(way.agreed.study.with_changes(protect={"sum": "plain"}), None, len(FRAMES)),
        FRAMES,
    )
    for one in (way, plain):
        lying(one, liar, -10.0)
        lied, honest = one.conduct(quorum=12), one.near()
        moved.append(float(sum((v - honest.shared[k]).square().sum() for k, v in lied.shared.items())) ** 0.5)
        if one is way:
            (told,) = [f for f in lied.facts.values() if f.means == OUTLYING]
            last, sites = told.value[-1], lied.sites
    assert moved[0] < 0.5 * moved[1]
    (group,) = (g for g in members(way) if liar in g)
    far = {n for n, v in zip(sites, last.tolist(), strict=True) if v == float(last.max())}
    assert far == set(group), "of a group it is not told who"


def test_nobody_is_put_into_a_group_at_will(tmp_path: Path) -> None:
    way = way_of(tmp_path)
    way.away = stop_at("round", 1)
    with pytest.raises(KilledError):
        way.conduct(quorum=12)
    one, other = members(way)[:2]
    keys = asked_of(way, "keys", 0)[one[0]]
    mixed = [*one[:2], other[0]]
    with pytest.raises(VitrailError, match="does not add its numbers up with this site"):
        way.fresh(one[0]).answer(unpack(keys._replace(words={**keys.words, "round": 1, "names": mixed}).pack()))
    opened = asked_of(way, "open", 0)[one[0]]
    following = {**opened.words["next"], "names": mixed}
    way.fresh(one[0])
    with pytest.raises(VitrailError, match="does not add its numbers up with this site"):
        way.sites[one[0]].answer(unpack(opened._replace(words={**opened.words, "next": following}).pack()))


def stop_at(kind: str, round_: int) -> Any:
    def away(name: str, asked: Message) -> bool:
        if asked.kind == kind and asked.words.get("round") == round_:
            raise KilledError
        return False

    return away


@pytest.mark.parametrize("name", ["sums.json", "sums.npz"])
def test_a_coordinator_whose_lists_are_damaged_opens_nothing(name: str, tmp_path: Path) -> None:
    """Between the reports and the shares of the second round."""
    way = Masked(tmp_path, agreement(rounds=3))
    way.away = lambda site, asked: stop_at("mask", 1)(site, asked) if asked.words.get("leg") == "open" else False
    with pytest.raises(KilledError):
        way.conduct(quorum=4)
    place = tmp_path / "run" / name
    place.write_bytes(place.read_bytes()[:40])
    way.away = lambda site, asked: False
    way.said.clear()
    far = way.conduct(quorum=4)
    assert [told["round"] for event, told in way.events if event == "sum not opened"] == [1]
    assert not asked_of(way, "open", 1), "for the lists that were lost nobody tells shares"
    assert all(bool(v.isfinite().all()) for v in far.shared.values())


@pytest.mark.parametrize("name", ["report.said", "drawn.json"])
def test_a_site_whose_files_are_damaged_misses_a_round(name: str, tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=3))
    way.away = lambda site, asked: stop_at("mask", 1)(site, asked) if asked.words.get("leg") == "open" else False
    with pytest.raises(KilledError):
        way.conduct(quorum=4)
    place = next((tmp_path / "sites" / "va" / RUN / "sums").glob(f"*-000001-000000/{name}"))
    place.write_bytes(place.read_bytes()[:40])
    way.sites["va"], way.away = way.fresh("va"), lambda site, asked: False
    way.said.clear()
    far = way.conduct(quorum=3)
    assert {n for n, asked, said in way.said if said.kind == "refused"} == {"va"}
    assert not [told for event, told in way.events if event in ("set aside", "sum not opened")]
    torch.testing.assert_close(far.shared, way.near().shared, **CLOSE)  # its report was there before
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
