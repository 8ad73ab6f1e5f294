"""RIPFL (Qin et al. 2023): models that say how unsure they are; the sure ones are heard by all, the unsure hear more.

    at site s      e     =  e_s + lam e_g            evidence for each class: of the model that it trains, and of the
                                                     one that it was given, which stands still
                   t_s  <-  after the local epochs, by the loss of evidence (core/losses.py) with that e
                   u_s   =  mean of K / S over its training rows, by e_s alone
    coordinator    sure  =  the half of the sites with the lowest u_s
                   G     =  the sure, and a random third of the others (`drawn`)                 `selection`
                   G_s   =  G, with or without s itself                                          `count_self`
                   c_s   =  2 + (|G_s| - 2) (u_s - min u) / (max u - min u), rounded; or `takes`
                   g_s   =  mean of those c_s models of G_s that are most like t_s:
                            cos(t_s, t_k) over all parameters, its own first if it is in G_s     `similarity`
    at site s      t_s  <-  (front of g_s, rear of t_s), and every `rear` rounds all of g_s

Each part has a switch. `evidence = false`: the study's own loss, unsureness by what that says of it (cross-entropy: by
entropy), nothing fused. `lam = 0`: no e_g. `selection`: "all", or "random": as many, at random. `similarity = false`:
the mix is random; with `takes` as large as there are sites everyone averages all of G. With lam = 0, all chosen and
taken, `rear = 1` is FedAvg and `rear = "never"` FedPer, both by the loss of evidence. With 30 sites the default is the
15/5 of table 2, and `drawn_sure = drawn = 2/3`, a random share of the sure, its 10/10.

Choices where the paper is open. The rear is the last two linear layers (`rear_of`). e_g is by the front and rear as
last received. Sites that are not chosen still receive; at least one of the unsure is drawn. The paper mixes "remaining
clients", which is `count_self = false`; by default a chosen site counts its own model. Where all are equally unsure,
c = 2. Ties are broken at random. Who is away is not chosen, and its last model is not mixed; when it comes back it gets
what suits that model, and if it never came the mean of G. A model that is no number is never chosen. A site predicts by
its own evidence, after training (OWN); the model that it would go on from, front received and rear its own, is scored
beside it (RECEIVED), as FedAvg and FedPer are. The optimiser's memory outlives a round only if `memory = "kept"`.

What crosses: down only the front, but for every `rear`-th round; up always the whole model, since all of it is compared
(and u_s): the paper saves on the way down. Who sees what: the coordinator each site's model. A site whose mix is of two
models, one of them its own, can work out the other; one whose mix is of one model (few sites, `takes = 1`) has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Le, Needs, WireRules
from vitrail.core.exchange import Method, Nothing, Roster, SiteContext, Stage, training
from vitrail.core.facts import CHOSEN, OWN, RECEIVED, SHARE, SIMILARITY, SURE, UNCERTAINTY, Fact, Facts
from vitrail.core.losses import CrossEntropy, Evidence, Loss, PriorEvidence, UncertaintyLoss
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, overlay, per_site, subtract, to_all
from vitrail.methods.blocks.basics import per_pair
from vitrail.methods.blocks.similar_models import SimilarModels, cosines, mix_models, rear_of


class State(NamedTuple):
    params: Params  # t_s; its changes are reported
    rear: Params  # of g_s, as last received
    received: Params = {}  # noqa: RUF012  once settled: what it would go on from
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Coord(NamedTuple):
    models: Params  # [site, ...]: t_s as last reported
    doubt: Tensor  # [site]: u_s; 1, knows nothing, until it is told
    share: Tensor  # [user, site]: of which g_s is made


class Down(NamedTuple):
    params: Annotated[Params, "layers mixed for you from the models of those sites that are most like yours"]


class Up(NamedTuple):
    change: Annotated[
        Params, "what training on your rows changed in your whole model; sites are sent means of models, some of 1 or 2"
    ]
    doubt: Annotated[Tensor, "how unsure your model is of your training rows: one number, which the report shows"]


class Work(NamedTuple):
    params: Params
    memory: Params
    prior: Tensor | Nothing  # [site, row, output]: lam e_g of every row; nothing where nothing is fused


@dataclass(frozen=True)
class RIPFL(SimilarModels, Method[State, Coord, Work, Down, Up]):
    catalogue = Catalogue("RIPFL", tuning_grid={"lam": (0.1, 0.3, 1.0), "drawn": (1 / 3, 2 / 3)})
    name: ClassVar[str] = "front"
    wire = WireRules(score_fields={"doubt"}, disclosed_state={"params"})
    needs = Needs(row_indices=True)
    evidence: bool = True
    lam: Annotated[float, Ge(0)] = 0.3
    kl: Annotated[float, Ge(0)] | None = None  # of wrong evidence; None: the study's if it is of evidence, else 0.1
    anneal: Annotated[int, Ge(1)] | None = None  # epochs until then; None: the study's, or 10
    selection: Literal["uncertainty", "all", "random"] = "uncertainty"
    drawn: Annotated[float, Ge(0), Le(1)] = 1 / 3  # share of the unsure
    drawn_sure: Annotated[float, Ge(0), Le(1)] = 1.0  # share of the sure
    similarity: bool = True
    takes: Annotated[int, Ge(1)] | None = None  # models in a mix; None: between 2 and all, by uncertainty
    count_self: bool = True  # whether a site's own model may be in its mix
    rear: Annotated[int, Ge(1)] | Literal["never"] = 5

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        """The front, but for every so many rounds; the first of these gives everyone the start."""
        if self.rear in (1, "never"):
            return (training(self, rounds),)
        cycle = ((0,), *[(1,)] * (min(int(self.rear), rounds) - 1))
        return (training(self, rounds)._replace(exchanges=(self.variant(Whole), self), cycle=cycle),)

    def training_loss(self, loss: Loss) -> Loss:
        if not self.evidence or not isinstance(loss, CrossEntropy | Evidence):
            return loss
        usual = loss if isinstance(loss, Evidence) else Evidence()
        kl, anneal = usual.kl if self.kl is None else self.kl, usual.anneal if self.anneal is None else self.anneal
        return replace(usual, kl=kl, anneal=anneal)

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        if isinstance(task.loss, UncertaintyLoss):
            return ()
        return ("it goes by how unsure models are, which the loss of a number does not tell",)

    def sends(self, task: Task) -> tuple[str, ...]:
        """Names of the parameters that a site is sent."""
        rear = () if self.rear == 1 else rear_of(task)
        return tuple(k for k in task.start if k not in rear)

    def state(self, task: Task, sites: int) -> State:
        params = clone(to_all(task.start, sites))
        rear, memory = clone({k: params[k] for k in rear_of(task)}), task.initial_state(params, shared=params)
        return State(params, rear, {}, memory)

    def coord(self, task: Task, sites: int) -> Coord:
        return Coord(clone(to_all(task.start, sites)), task.like.new_ones(sites), torch.eye(sites).to(task.like))

    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        return Down(self.mixes(task, coord))

    def mixes(self, task: Task, coord: Coord) -> Params:
        """g_s of every site, as far as it is sent."""
        return mix_models({k: coord.models[k] for k in self.sends(task)}, coord.share)

    def begin(self, site: SiteContext, state: State, down: Down) -> Work:
        params = clone(overlay(state.params, down.params))
        prior: Tensor | Nothing = Nothing()
        if self.lam and isinstance(site.task.loss, Evidence):
            given = overlay(state.params, {**state.rear, **down.params})
            evidence = [site.task.loss.evidence(site.task.output(given, block.x)) for block in site.rows.blocks()]
            prior = self.lam * torch.cat(evidence, 1)
        return Work(params, site.optimizer.state(params, state.memory), prior)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        task = site.task
        if isinstance(work.prior, Tensor):
            assert batch.at is not None
            assert isinstance(task.loss, Evidence)
            at = batch.at[..., None].expand(-1, -1, work.prior.shape[2])
            task = replace(task, loss=PriorEvidence(task.loss, work.prior.gather(1, at)))
        site.optimizer.step(task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: State, work: Work, down: Down) -> tuple[State, Up]:
        loss, total = site.task.loss, torch.zeros_like(site.rows.total)
        assert isinstance(loss, UncertaintyLoss)
        for block in site.rows.blocks():
            doubt = loss.uncertainty(site.task.output(work.params, block.x))
            total = total + (doubt * (block.w[..., 0] > 0)).sum(1)
        rear, memory = overlay(state.rear, down.params), carry_state(work.memory, state.memory)
        change = subtract(work.params, overlay(state.params, down.params))
        return State(work.params, rear, {}, memory), Up(change, total / site.rows.total)

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        here = roster.present
        begun = overlay(coord.models, self.mixes(task, coord))
        models = {k: torch.where(per_site(here, v), begun[k] + up.change[k], v) for k, v in coord.models.items()}
        doubt = torch.where(here, up.doubt, coord.doubt)
        alike, numbers = cosines(models)
        fit = here & numbers & doubt.isfinite()
        sure, chosen = self.choose(doubt, fit, roster.key)
        share = self.mixed_of(alike, doubt, fit, chosen, roster)
        facts = {
            "uncertainty": Fact(torch.where(here, doubt, torch.nan), ("site",), UNCERTAINTY, every=True),
            "chosen": Fact(chosen, ("site",), CHOSEN, every=True),
            "share": per_pair(share, SHARE, here[:, None]),
            "similarity": per_pair(alike.to(share), SIMILARITY, here & here[:, None]),
        }
        if self.selection == "uncertainty":
            facts["sure"] = Fact(sure, ("site",), SURE, every=True)
        return Coord(models, doubt, share), facts

    def settle(self, task: Task, state: State, down: Down) -> State:
        front = {k: down.params[k] for k in self.sends(task)}  # a word may hold more
        return State(state.params, {}, overlay(state.params, front))

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params, RECEIVED: state.received}


class Whole(RIPFL):
    """The rounds in which the rear is sent too."""

    name: ClassVar[str] = "front and rear"

    def sends(self, task: Task) -> tuple[str, ...]:
        return tuple(task.start)
