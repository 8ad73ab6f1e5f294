"""After training: what may tell that one site's class was learned by a mark. Each is asked for, and may be refused.

    travel        the models that sites trained alone, as they were before the push, go round; each site tries all of
                  them on its hold-out pictures, and only counts come back: of each class, how many are told right,
                  and how many there are
    margin        how sure each of these models is of the same pictures: its log-odds of the right class, cut at CUT on
                  both sides and laid from 0 to 1, summed. One picture moves it no further than a count, and between
                  machines it is rounded as counts are
    distance      how far a site's own prototypes lie from the shared ones, mean over those of a class (the paper's)
    pieces        how far the most telling piece of a site's pictures of a class convinces each of these models, when it
                  is put into the site's other pictures (patch_transplant.py)
    easy          how well each class was told after the warm-up

Of a class of which a site has fewer than `least` pictures nothing is told but the distance. The coordinator forgets the
models when all have tried them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Needs, WireRules
from vitrail.core.exchange import AnyExchange, Exchange, Nothing, Roster, Rows, SiteContext
from vitrail.core.facts import (
    AGREED,
    CUT,
    EASY,
    MARGIN,
    PIECE,
    PROTOTYPE_DISTANCE,
    PROTOTYPES_KEPT,
    TRAVEL,
    Fact,
    Facts,
)
from vitrail.core.task import Task
from vitrail.core.tensors import Params, per_site, to_all, zeros
from vitrail.methods.blocks.basics import Reveal
from vitrail.methods.blocks.patch_transplant import rises
from vitrail.methods.blocks.prototype_rounds import shows_pushed
from vitrail.methods.blocks.prototypes import kept, net_of

if TYPE_CHECKING:
    from vitrail.methods.indisco import InDISCO


class OfferedModel(NamedTuple):
    model: Annotated[Params, "a model of your own"]


class Round(NamedTuple):
    models: Annotated[Params, "the models that sites offered to the others"]  # [site, user, ...]
    real: Annotated[Tensor, "which sites offered a model"]  # [site, user]


class TransferCounts(NamedTuple):
    counts: Annotated[
        Tensor, "for each model and class, how many hold-out pictures it classifies correctly, out of how many"
    ]
    margins: Annotated[
        Tensor, "for each model and class, how sure it is of the right class of your hold-out pictures, out of how many"
    ]
    rises: Annotated[
        Tensor,
        "for each model and class, how far the most telling piece of your pictures of the class convinces the model",
    ]


@dataclass(frozen=True)
class OfferModel(Exchange[Any, Any, Nothing, Nothing, OfferedModel]):
    name: ClassVar[str] = "models set out"
    of: InDISCO
    consent: str = "your model trained on your pictures alone, sent once to every site so that each can try it"

    def report(self, site: SiteContext, state: Any, work: Nothing, down: Nothing) -> tuple[Any, Any]:
        """As it was before the push: a pushed prototype is a piece of one of the site's pictures."""
        return state, OfferedModel(self.of.apart(state))

    def merge(self, task: Task, coord: Any, up: OfferedModel, roster: Roster) -> tuple[Any, Facts]:
        offers = roster.present.to(coord.offers)
        models = {k: torch.where(per_site(roster.present, v), up.model[k], 0) for k, v in coord.offered.items()}
        return coord._replace(offered=models, offers=offers), agreed(roster)


@dataclass(frozen=True)
class Try(Exchange[Any, Any, Nothing, Round, TransferCounts]):
    name: ClassVar[str] = "models tried"
    wire = WireRules(score_fields={"counts", "margins", "rises"}, hit_fields={"counts", "margins"})
    needs = Needs(holdout=True)
    of: InDISCO
    consent: str = (
        "for each class and each site's model, how many of your hold-out pictures it classifies "
        "correctly and how sure it is of them, out of how many, and how far the most telling piece of your "
        "pictures of the class convinces it when put into your other pictures"
    )

    def send(self, task: Task, coord: Any, roster: Roster) -> Round:
        n = len(roster.names)
        return Round(to_all(coord.offered, n), coord.offers.expand(n, n))

    def report(self, site: SiteContext, state: Any, work: Nothing, down: Round) -> tuple[Any, Any]:
        models = [{k: v[:, j] for k, v in down.models.items()} for j in range(down.real.shape[1])]
        reported = torch.stack([self.tell(site.task, m, site.rows) for m in models], 1)  # [site, user, class, 3]
        reported = reported * (down.real > 0)[..., None, None]
        rise = rises(site.task, self.of.apart(state), down.models, down.real, site.rows, self.of.least)
        return state, TransferCounts(reported[..., [0, 2]], reported[..., 1:], rise)

    def tell(self, task: Task, model: Params, rows: Rows) -> Tensor:
        """[site, class, 3]: told right, how surely, and of how many."""
        if rows.holdout is None:
            return rows.total.new_zeros(len(rows.total), task.net.outputs, 3)
        y = rows.holdout.y * (rows.holdout.w > 0)
        z = task.output(model, rows.holdout.x)
        predicted = torch.nn.functional.one_hot(z.argmax(-1), task.net.outputs)
        sure = ((_log_odds(z).clamp(-CUT, CUT) + CUT) / (2 * CUT)).to(y)
        reported = torch.stack([(y * predicted).sum(1), (y * sure).sum(1), y.sum(1)], -1)
        return torch.where(reported[..., 2:] >= self.of.least, reported, 0)

    def merge(self, task: Task, coord: Any, up: TransferCounts, roster: Roster) -> tuple[Any, Facts]:
        gone = coord._replace(offered=zeros(coord.offered), offers=torch.zeros_like(coord.offers))
        travel = Fact(up.counts.transpose(0, 1), ("user", "site", "class", "count"), TRAVEL)
        margin = Fact(up.margins.transpose(0, 1), ("user", "site", "class", "count"), MARGIN)
        piece = Fact(up.rises, ("site", "user", "class"), PIECE)
        return gone, {"travel": travel, "margin": margin, "piece": piece, **agreed(roster)}


def _log_odds(z: Tensor) -> Tensor:
    """Of each class against all others, from scores [..., class]."""
    others = [torch.cat([z[..., :c], z[..., c + 1 :]], -1).logsumexp(-1) for c in range(z.shape[-1])]
    return z - torch.stack(others, -1)


class Distance(Reveal):
    name: ClassVar[str] = "distance"


class Kept(Reveal):
    name: ClassVar[str] = "own part"


class Easy(Reveal):
    name: ClassVar[str] = "loss"
    wire = WireRules(score_fields={"shown"})


def shows(of: InDISCO) -> tuple[AnyExchange, ...]:
    """What sites are asked for; the last word of them all is none."""

    def distance(task: Task, state: Any) -> Params:
        net = net_of(task)
        between = (of.apart(state)[net.NAME] - state.shared[net.NAME]).square().sum(-1).sqrt()
        return {"distance": between.unflatten(1, (net.outputs, net.per_class)).mean(2)}

    far = "how far your own prototypes lie from the shared ones, a mean for each class"
    easy = "how well your pictures of each class were recognised after the warm-up: a mean loss for each"
    by_class = ("site", "class")
    exchanges: list[AnyExchange] = [OfferModel(of), Try(of)] if of.travel else []
    if of.share != "no":
        exchanges.append(Distance(distance, lambda name: (by_class, PROTOTYPE_DISTANCE), far))
    if of.personal == "distance":

        def own_part(task: Task, state: Any) -> Params:
            net = net_of(task)
            return {"kept": kept(net, of.personal, state.local[net.NAME], state.shared[net.NAME])}

        why = "how much of your own prototypes of each class you keep beside the shared ones"
        exchanges.append(Kept(own_part, lambda name: (by_class, PROTOTYPES_KEPT), why))
    exchanges.append(Easy(lambda task, state: {"easy": state.easy}, lambda name: (by_class, EASY), easy))
    if of.release != "no":
        exchanges.append(shows_pushed(of))
    return tuple(exchanges)


def agreed(roster: Roster) -> Facts:
    return {"agreed": Fact(roster.present, ("site",), AGREED)}
