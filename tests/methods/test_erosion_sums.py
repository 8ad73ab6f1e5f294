"""Weight Erosion in sums: the models and alphas of the open run; whose update is shown; what totals of few hide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.erosion import LINEAR, ROUNDS, comes_and_goes, erode
from tests.support.small import make_rows
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.core.exchange import Nothing, Rows, SiteContext, Stage
from vitrail.core.facts import OWN, SHARED
from vitrail.core.tensors import Params, map_tensors
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training
from vitrail.methods.blocks.erosion_at_sites import Compared, Erode
from vitrail.methods.erosion_sums import ErosionSums
from vitrail.privacy.guards import Guards

GIVEN = {"p_d": 0.03, "p_s": 0.7}
LOCAL = {"update": "local", "momentum": 0.5}
NAMES = gather_sites(make_rows()).names


def run_sums(method: ErosionSums, training: Training = ROUNDS, **more: Any) -> tuple[Engine, list[Snapshot]]:
    engine = Engine(LINEAR, method, gather_sites(make_rows()), training, 5, **more)
    moments = []
    for moment in engine.run():
        coord = moment.coord._replace(models={k: v.clone() for k, v in moment.coord.models.items()})
        state = moment.state._replace(updates={k: v.clone() for k, v in moment.state.updates.items()})
        moments.append(moment._replace(coord=coord, state=state))
    return engine, moments


def in_sums(**given: Any) -> ErosionSums:
    method = methods.build("weight_erosion_sums", {**GIVEN, **given})
    assert isinstance(method, ErosionSums)
    return method


def gap(one: Params, other: Params) -> float:
    assert one.keys() == other.keys()
    return max(float((v - other[k]).abs().max()) for k, v in one.items())


def one_away(stage: int, round_: int) -> Tensor:
    """Of five, four make a masked total."""
    return torch.arange(5) == round_ % 7


@pytest.mark.parametrize("away", [None, comes_and_goes, one_away], ids=["all there", "come and go", "one away"])
@pytest.mark.parametrize("given", [{}, {"size": "weight"}, LOCAL], ids=["gradient", "size weight", "local"])
def test_it_is_the_open_run(given: dict[str, Any], away: Any) -> None:
    _, opened = erode({**GIVEN, "beside": True, **given}, absent=away)
    for guards, within in ((Guards(), 1e-12), (Guards(masked=True), 1e-6)):
        if guards.masked and away is comes_and_goes:
            continue  # of too few no total is opened
        _, summed = run_sums(in_sums(fewest=1, **given), absent=away, guards=guards)
        for one, other in zip(opened, summed, strict=True):
            assert gap(one.coord.models, other.coord.models) < within
            alphas = [m.facts["alpha"].value for m in (one, other)]
            assert torch.allclose(*alphas, rtol=0, atol=within, equal_nan=True)
    assert float(opened[-1].coord.alpha.min()) < 0.6, "something has eroded"


def test_of_one_user_it_is_that_users_row_of_the_open_run() -> None:
    _, opened = erode({**GIVEN, "beside": True})
    for at, name in enumerate(NAMES):
        engine, summed = run_sums(in_sums(fewest=1, user=name))
        for one, other in zip(opened, summed, strict=True):
            expected = {k: v[[at, -1]] for k, v in one.coord.models.items()}
            assert gap(expected, other.coord.models) < 1e-12
            alpha = other.facts["alpha"].value
            assert torch.allclose(alpha[at], one.facts["alpha"].value[at], rtol=0, atol=1e-12)
            assert alpha[[i for i in range(5) if i != at]].isnan().all()
        held = engine.method.models(engine.task, engine.settled(summed[-1]))
        for i in range(5):
            own, shared = ({k: v[i] for k, v in held[kind].items()} for kind in (OWN, SHARED))
            assert (gap(own, shared) == 0) == (i != at), "only the user has a model of its own"


def reports_of(method: ErosionSums, rounds: int = 1) -> list[tuple[str, Any]]:
    """(name of the exchange, all sites' reports), as they leave the sites."""
    seen = list[tuple[str, Any]]()

    def listen(names: tuple[str, ...], ex: Any, up: Any) -> Any:
        seen.append((ex.name, map_tensors(torch.clone, up)))
        return up

    run_sums(method, replace(ROUNDS, rounds=rounds), lies=listen, chunk=5)
    return seen


def size(tree: Params) -> Tensor:
    """[site]: how much is in each site's part."""
    return torch.stack([v.flatten(1).abs().sum(1) for v in tree.values()]).sum(0)


def test_in_the_first_part_only_the_user_reports_an_update() -> None:
    (first, told), (second, added) = reports_of(in_sums(user=NAMES[2]))
    assert (first, second) == ("updates", "alphas")
    assert (size(told.reference) > 0).tolist() == [i == 2 for i in range(5)]
    assert (size(added.update) > 0).all(), "the others have updates, too, and weigh them"


def test_nothing_is_added_to_a_user_that_trusts_too_few() -> None:
    for fewest, expected in ((1, {2}), (3, {1})):
        reports = reports_of(in_sums(user=NAMES[1], p_d=0.1, p_s=0.0, fewest=fewest), rounds=9)
        added = [up for name, up in reports if name == "alphas"]
        trusted = [int((up.alpha.sum(0)[0] > 0).sum()) for up in added]
        adding = [int((up.weight[:, 0] > 0).sum()) for up in added]
        assert trusted[:2] == adding[:2] == [5, 5]
        last = [n for n, before, now in zip(adding[1:], trusted, trusted[1:], strict=False) if before == now == 2]
        assert set(last) == expected, "of two sites, each can tell the other's part from the total"


@dataclass(frozen=True)
class Isolate(Erode):
    """A coordinator that wants the update of the first site: the others get a false g_0 and have nothing to add."""

    def send(self, task: Any, coord: Any, roster: Any) -> Compared:
        down = super().send(task, coord, roster)
        false = {k: v.clone() for k, v in down.reference.items()}
        for v in false.values():
            v[[1, 3, 4]] *= 1e-6  # from which everybody is far
        return down._replace(reference=false)


@dataclass(frozen=True)
class Curious(ErosionSums):
    def plan(self, rounds: int) -> tuple[Stage, ...]:
        (stage,) = super().plan(rounds)
        return (stage._replace(exchanges=(self, Isolate(self))),)


def test_a_coordinator_that_sends_a_false_g_0_reads_an_update_as_the_docs_say() -> None:
    """The limit that the method's text names; with an honest coordinator the total is no single site's."""
    share = {}
    for kind in (Curious, ErosionSums):
        method = kind(**{**GIVEN, "p_d": 1e-2, "fewest": 3, "user": NAMES[2]})
        (_, _), (_, added) = reports_of(method)
        total = {k: v[:, 0].sum(0) for k, v in added.update.items()}
        only = {k: v[0, 0] + v[2, 0] for k, v in added.update.items()}
        rest = sum(float((total[k] - only[k]).abs().sum()) for k in total)
        share[kind] = rest / sum(float(v.abs().sum()) for v in total.values())
    assert share[Curious] < 1e-9, "the total holds the target and the user, whose update is known"
    assert share[ErosionSums] > 0.1


def test_what_a_site_kept_from_an_earlier_round_is_not_added() -> None:
    """A site that missed the first part of a round still holds its updates of the round before."""
    engine, moments = run_sums(in_sums(user=NAMES[2]), replace(ROUNDS, rounds=1))
    coord, state = moments[0].coord, moments[0].state
    erode = engine.stages[0].exchanges[1]
    assert isinstance(erode, Erode)
    came = torch.tensor([True, True, True, False, True])
    coord = coord._replace(came=came, reference={k: v[2:3, 0] for k, v in state.updates.items()})
    down = erode.send(engine.task, coord, engine.roster(engine.everyone, 0, 1, 1))
    site = SiteContext(engine.task, Rows(engine.counts), engine.task.rule)
    _, up = erode.report(site, state, Nothing(), down)
    assert (size(up.update) > 0).tolist() == came.tolist() == (up.weight.sum(1) > 0).tolist()


def test_a_user_that_is_no_site_is_refused() -> None:
    with pytest.raises(VitrailError, match="there is no site 'elsewhere'"):
        run_sums(in_sums(user="elsewhere"))
    with pytest.raises(VitrailError, match="momentum needs update"):
        in_sums(momentum=0.5)
