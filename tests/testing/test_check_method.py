"""Positive controls: for every law a method that breaks this one, and is found out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from vitrail.methods import Ditto, FedAvg, FedPer, FedProx, IFedAvg, Influence
from vitrail.methods.fedavg import Own, Shared, Up
from vitrail.plugin import (
    AGREED,
    MLP,
    SGD,
    Exchange,
    Fact,
    Params,
    Reveal,
    Stage,
    WireRules,
    check_method,
    training,
    tree_map,
)
from vitrail.testing import LAWS, Trial, laws, name_of, trials


class OneNetwork:
    """Toys are tried on one network only, which they say as every method may."""

    def incompatibilities(self, task: Any) -> tuple[str, ...]:
        fine = isinstance(task.net, MLP) and not task.net.linear and isinstance(task.rule, SGD)
        return () if fine else ("a toy is tried once",)


class SaysUndeclared(OneNetwork, FedAvg):
    def report(self, site, state, work, down):
        state, up = super().report(site, state, work, down)
        some_rows = bool((site.rows.total > 1).any())  # the contract is traced on one
        return state, up._replace(change=up.change | {"rows": site.rows.total}) if some_rows else up


class MixesSites(OneNetwork, FedAvg):
    def report(self, site, state, work, down):
        state, up = super().report(site, state, work, down)
        return state, up._replace(change={k: v - v.amax(0, keepdim=True) for k, v in up.change.items()})


class FollowsTheFirst(OneNetwork, FedAvg):
    wire = replace(FedAvg.wire, aggregation="each")

    def merge(self, task, coord, up, roster):
        first = int(roster.present.to(torch.int8).argmax())
        return Shared(tree_map(lambda w, c: w + c[first], coord.params, up.change)), {}


class GoesByName(OneNetwork, FedAvg):
    def send(self, task, coord, roster):
        by = (roster.seeds % 5).to(task.like.dtype)
        return Shared({k: v + 0.01 * by.view(-1, *[1] * (v.dim() - 1)) for k, v in self.to_all(coord, roster).items()})

    def to_all(self, coord, roster) -> Params:
        return super().send(None, coord, roster).params


class UpWithHead(NamedTuple):
    change: Params
    weight: Tensor
    beside: Tensor


class SendsItsHead(OneNetwork, FedPer):
    """Among other numbers, in one long row."""

    def report(self, site, state, work, down):
        state, up = super().report(site, state, work, down)
        head = [v.flatten(1) for v in state.params.values()]
        return state, UpWithHead(*up, torch.cat([site.rows.total[:, None], *head], 1))


class TellsEverybody(OneNetwork, Influence):
    """What others are told is what a site keeps, and it does not say so."""

    wire = WireRules(per_site_messages=True)


class RemembersOutside(OneNetwork, FedAvg):
    count: ClassVar[list[int]] = [0]

    def state(self, task, sites):
        self.count[0] = 0
        return super().state(task, sites)

    def merge(self, task, coord, up, roster):
        self.count[0] += 1
        return super().merge(task, coord, up._replace(weight=up.weight * self.count[0]), roster)


class Sleeps(OneNetwork, FedAvg):
    def step(self, site, work, batch):
        pass


class ForgetsItsStep(OneNetwork, FedAvg):
    """As an author who did not write one: a method is complete without."""

    step = Exchange.step


class WritesInDiaries(OneNetwork, FedAvg):
    """Its coordinator holds on to what sites keep."""

    held: ClassVar[dict[str, Tensor]] = {}

    def state(self, task, sites):
        self.held["diary"] = task.like.new_zeros(sites, 1)
        return Own({"diary": self.held["diary"]})

    def merge(self, task, coord, up, roster):
        self.held["diary"].add_(1)
        return super().merge(task, coord, up, roster)

    def settle(self, task, state, down):
        return Own(down.params)


class DriftsWhenTold(OneNetwork, FedPer):
    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return training(self, rounds), training(self, 1)._replace(name="again")

    def settle(self, task, state, down):
        moved = {k: v + 1 for k, v in state.params.items() if k.startswith(("head", "output"))}
        return Own({**moved, **down.params})


class ReportsModels(OneNetwork, FedAvg):
    def say(self, params, down, rows):
        return Up({k: params[k] for k in down.params}, torch.ones_like(rows.total))

    def merge(self, task, coord, up, roster):
        return Shared({k: v / up.weight for k, v in up.change.items()}), {}


class SeesTooMuch(OneNetwork, FedAvg):
    wire = replace(FedAvg.wire, aggregation="each")

    def merge(self, task, coord, up, roster):
        total = Up({k: v.sum(0) for k, v in up.change.items()}, up.weight.sum(0))
        return super().merge(task, coord, total, roster)


class Attendance(NamedTuple):
    params: Params
    seen: Tensor  # [site]


class KeepsALog(OneNetwork, FedAvg):
    def coord(self, task, sites):
        return Attendance(super().coord(task, sites).params, task.like.new_zeros(sites))

    def merge(self, task, coord, up, roster):
        after, _ = super().merge(task, Shared(coord.params), up, roster)
        return Attendance(after.params, coord.seen + roster.present), {}


class SaysAllAgreed(Reveal):
    def merge(self, task, coord, up, roster):
        coord, facts = super().merge(task, coord, up, roster)
        return coord, facts | {"agreed": Fact(torch.ones_like(roster.present), ("site",), AGREED)}


class Guesses(Reveal):
    def merge(self, task, coord, up, roster):
        coord, facts = super().merge(task, coord, up, roster)
        name, fact = next((k, f) for k, f in facts.items() if f.means != AGREED)
        mean = fact.value[roster.present].mean(0)
        return coord, facts | {name: fact._replace(value=torch.where(roster.present[:, None], fact.value, mean))}


def shown_by(kind: type[Reveal], method: IFedAvg, rounds: int) -> tuple[Stage, ...]:
    train, publish = IFedAvg.plan(method, rounds)
    (reveal,) = publish.exchanges
    return train, publish._replace(exchanges=(kind(reveal.show, reveal.means, reveal.consent),))


class ClaimsConsent(OneNetwork, IFedAvg):
    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return shown_by(SaysAllAgreed, self, rounds)


class FillsIn(OneNetwork, IFedAvg):
    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return shown_by(Guesses, self, rounds)


class AsksAgain(OneNetwork, IFedAvg):
    """Without consent, the second time."""

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        train, publish = super().plan(rounds)
        anyway = replace(publish.exchanges[0], consent="")
        return train, publish, publish._replace(name="anyway", exchanges=(anyway,))


class MislabelsFacts(OneNetwork, FedAvg):
    def merge(self, task, coord, up, roster):
        coord, _ = super().merge(task, coord, up, roster)
        return coord, {"two": Fact(torch.zeros(2), ("site",), "two numbers")}


class ChangesItsFacts(OneNetwork, FedAvg):
    def merge(self, task, coord, up, roster):
        coord, _ = super().merge(task, coord, up, roster)
        return coord, {"who": Fact(roster.present.nonzero()[:, 0], ("one",), "who answered", every=True)}


class SaysItNeedsNothing(OneNetwork, FedAvg):
    wire = replace(FedAvg.wire, final_fields={"lot"})


class ReportsInSmallCoin(OneNetwork, FedAvg):
    """Numbers so small that of their sum under masks nothing is left."""

    def say(self, params, down, rows):
        change, weight = super().say(params, down, rows)
        return Up({k: v * 1e-13 for k, v in change.items()}, weight)

    def merge(self, task, coord, up, roster):
        return super().merge(task, coord, Up({k: v * 1e13 for k, v in up.change.items()}, up.weight), roster)


BREAKS = [
    (SaysUndeclared, {laws.only_declared_tensors_travel}),
    (MixesSites, {laws.engines_agree}),
    (FollowsTheFirst, {laws.permuting_sites_permutes_results}),
    (GoesByName, {laws.identical_sites_get_identical_models}),
    (SendsItsHead, {laws.nothing_private_travels}),
    (TellsEverybody, {laws.nothing_private_travels}),
    (RemembersOutside, {laws.stop_and_resume_equals_not_stopping}),
    (Sleeps, {laws.another_seed_gives_another_model}),
    (ForgetsItsStep, {laws.another_seed_gives_another_model}),
    (WritesInDiaries, {laws.an_absent_site_changes_nothing}),
    (DriftsWhenTold, {laws.nobody_present_is_harmless}),
    (ReportsModels, {laws.a_site_that_learned_nothing_reports_zero}),
    (SeesTooMuch, {laws.a_coordinator_sees_no_more_than_it_needs}),
    (KeepsALog, {laws.a_coordinator_sees_no_more_than_it_needs}),
    (ClaimsConsent, {laws.a_refusal_is_kept}),
    (FillsIn, {laws.a_refusal_is_kept}),
    (AsksAgain, {laws.a_refusal_is_kept, laws.nothing_private_travels}),
    (MislabelsFacts, {laws.facts_fit_their_axes}),
    (ChangesItsFacts, {laws.facts_fit_their_axes}),
    (ReportsInSmallCoin, {laws.under_masks_the_same_is_learned}),
    (SaysItNeedsNothing, {laws.settling_looks_only_at_what_it_says}),
]


@pytest.mark.parametrize(("toy", "broken"), BREAKS, ids=[toy.__name__ for toy, _ in BREAKS])
def test_breaks_these_laws_and_no_other(toy: type, broken: set) -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(toy)
    head, *lines = str(caught.value).splitlines()
    assert head == f"{toy.__name__} breaks {len(broken)} of {len(LAWS)} laws"
    told = {law: [line for line in lines if line.startswith(f"{name_of(law)}: {toy.__name__}(")] for law in LAWS}
    assert {law for law, said in told.items() if said} == broken


def test_the_law_does_not_lean_on_the_engines_own_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.engine.local.check", lambda *given: None)
    with pytest.raises(AssertionError, match="tensor change/rows from site in stage train was declared as None"):
        laws.only_declared_tensors_travel(Trial(SaysUndeclared()))


def test_an_author_who_forgot_to_write_a_step_reads_so() -> None:
    with pytest.raises(AssertionError, match="none of its exchanges has a `step`"):
        laws.another_seed_gives_another_model(Trial(ForgetsItsStep()))


def test_every_law_has_a_toy_that_breaks_it() -> None:
    assert {law for _, broken in BREAKS for law in broken} == set(LAWS)


@dataclass(frozen=True)
class LazyAtTimes(OneNetwork, FedProx):
    lazy: bool = False

    def step(self, site, work, batch):
        if not self.lazy:
            super().step(site, work, batch)


def test_options_are_tried_and_named() -> None:
    check_method(LazyAtTimes, options=[{}, {"mu": 0.5}])
    with pytest.raises(AssertionError, match=r"another seed gives another model: LazyAtTimes\(lazy=True\)"):
        check_method(LazyAtTimes, options=[{}, {"lazy": True}])


def test_a_method_that_nothing_suits_is_no_success() -> None:
    class SuitsNothing(FedAvg):
        def incompatibilities(self, task: Any) -> tuple[str, ...]:
            return ("it is shy",)

    with pytest.raises(AssertionError, match="no law could be checked"):
        check_method(SuitsNothing)


def test_what_fails_in_a_method_is_said_with_the_law() -> None:
    class Fails(OneNetwork, FedAvg):
        def merge(self, task, coord, up, roster):
            raise ZeroDivisionError("by nought")

    with pytest.raises(AssertionError, match=r"engines agree: Fails\(\) with the MLP and sgd: ZeroDivisionError"):
        laws.engines_agree(Trial(Fails()))


def test_all_networks_and_optimisers_are_tried() -> None:
    assert len(list(trials(Ditto()))) == 6
