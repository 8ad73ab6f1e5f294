"""Pushed prototypes shown to the coordinator, once and by consent; with noise of a stated budget, or as they are.

A pushed prototype is a latent patch of one training picture, and which picture depends on all of them: replacing one
can replace every prototype, also of other classes, since the layers below were trained on it, too. So nothing less
than all that can be told is protected (privacy/release.py does it). Of P prototypes that are shown, less 1/2,

    v_p = (p - 1/2) min(1, clip / |p - 1/2|)         together no longer than R = clip sqrt(P): two sites' answers,
                                                     whatever their pictures, differ by at most 2 R
    shown = v + N(0, (2 R z)^2)                      z: the least noise with which one look stays within the budget

Neighbours are any two sets of pictures: what is shown changes nobody's odds between them by more than e^epsilon, but
with probability delta, be it one picture, all of a patient's, or the whole site's. That is about this answer alone:
what was reported in training has no part of it.

    apart      how far a site's lie from the mean of the others', mean over those of a class: [site, class]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from torch import Tensor

from vitrail.core.exchange import Exchange, Nothing, Release, Roster, SiteContext
from vitrail.core.facts import AGREED, RELEASED, RELEASED_APART, Fact, Facts
from vitrail.core.task import Task
from vitrail.core.tensors import per_site
from vitrail.methods.blocks.prototypes import net_of
from vitrail.nets import ProtoNet
from vitrail.nets.prototype_network import MIDDLE

if TYPE_CHECKING:
    from vitrail.methods.indisco import InDISCO


class ShownPrototypes(NamedTuple):
    patches: Annotated[Tensor, "prototypes that are latent patches of your pictures, from the middle of their range"]


@dataclass(frozen=True)
class ShowPushed(Exchange[Any, Any, Nothing, Nothing, ShownPrototypes]):
    name: ClassVar[str] = "prototypes shown"
    of: InDISCO
    consent: str

    @property
    def noise_budget(self) -> Release | None:
        of = self.of
        return Release(of.release_clip, of.release_epsilon, of.release_delta) if of.release == "noise" else None

    def report(self, site: SiteContext, state: Any, work: Nothing, down: Nothing) -> tuple[Any, ShownPrototypes]:
        net = net_of(site.task)
        return state, ShownPrototypes(self.chosen(net, state.ending[net.NAME]) - MIDDLE)

    def chosen(self, net: ProtoNet, prototypes: Tensor) -> Tensor:
        """The first so many of each class."""
        return prototypes.unflatten(1, (net.outputs, net.per_class))[:, :, : self.of.release_count].flatten(1, 2)

    def merge(self, task: Task, coord: Any, up: ShownPrototypes, roster: Roster) -> tuple[Any, Facts]:
        here, classes = per_site(roster.present, up.patches).to(up.patches), task.net.outputs
        shown = up.patches * here
        others = (shown.sum(0) - shown) / (here.sum(0) - here).clamp(min=1)
        far = ((shown - others) * here).square().sum(-1).sqrt().unflatten(1, (classes, -1)).mean(2)
        far = far * (roster.present.sum() > 1)
        facts = {
            "agreed": Fact(roster.present, ("site",), AGREED),
            "shown": Fact(shown, ("site", "prototype", "number"), RELEASED),
            "apart": Fact(far, ("site", "class"), RELEASED_APART),
        }
        return coord, facts


def shows_pushed(of: InDISCO) -> ShowPushed:
    """What a site is asked for, in words."""
    some = f"the first {of.release_count} prototypes" if of.release_count else "all prototypes"
    what = f"{some} of each class as they are after training, each a latent patch of one of your pictures"
    if of.release == "plain":
        return ShowPushed(of, f"{what}, exactly")
    budget = f"epsilon {of.release_epsilon:g} and delta {of.release_delta:g}"
    return ShowPushed(of, f"{what}, with noise: this answer alone, for all of your pictures together, within {budget}")
