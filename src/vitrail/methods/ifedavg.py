"""iFedAvg (Roschewitz et al. 2021): FedAvg with small private layers that say, per feature, how a site's data differs.

    f = f_out o f_shared o f_in
    f_in(x)  = (x + b_in)  * w_in          element-wise, one number per feature; starts as the identity
    f_out(z) = (z + b_out) * w_out         element-wise, one per class; optional

`output` says what f_out has: "each" both, "scalar" b_out and one w_out for all classes, "shift" b_out alone, "factor"
w_out alone (the paper's figure 18). A half that is not trained does not exist: it is in no message and on no page.

f_shared is averaged with equal weights. f_in and f_out are trained with it in the same step, and no message of the
training holds them. Who reads a site's report by itself, and not in a sum, can estimate them all the same (decision
091): b_out has the gradient of f_shared's last offset, and with W the shared weights beside an element-wise layer

    d w^2 / 2 = sum over those weights of W dW        d b_in = w_in * (W of the first layer) (d of its offsets)

but for what weight decay, dropout and the optimizer's memory add. Afterwards each site may publish its layers, once, in
an exchange of its own that it can refuse. The coordinator then sees each site's layers, and the heatmaps show them.

`identity` (lambda, default 0: the paper) pulls the private layers towards the identity, lambda/2 |f_in - id|^2, so
that only necessary shifts are learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from vitrail.core.declarations import Adapters, Catalogue, Ge, Needs, OutputLayer
from vitrail.core.exchange import SiteContext, Stage, training
from vitrail.core.facts import INPUT_FACTOR, INPUT_SHIFT, OUTPUT_FACTOR, OUTPUT_SHIFT
from vitrail.core.optimizers import ExtraGrad
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import proximal_term
from vitrail.methods.blocks.basics import Reveal
from vitrail.methods.blocks.newcomer import PRIVATE, Newcomer, identity
from vitrail.methods.fedavg import FedAvg, Work

MEANS = {
    "input.shift": (("site", "input"), INPUT_SHIFT),
    "input.scale": (("site", "input"), INPUT_FACTOR),
    "output.shift": (("site", "output"), OUTPUT_SHIFT),
    "output.scale": (("site", "output"), OUTPUT_FACTOR),
}


@dataclass(frozen=True)
class IFedAvg(FedAvg):
    catalogue = Catalogue("iFedAvg", tuning_grid={"output": ("no", "each"), "identity": (0.0, 0.01, 0.1)})
    personal: ClassVar[tuple[str, ...]] = PRIVATE
    output: OutputLayer = "no"
    identity: Annotated[float, Ge(0)] = 0.0

    @property
    def needs(self) -> Needs:
        return Needs(adapters=Adapters(True, self.output))

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        what = "your private layers, which stay here until then: a shift and a factor for each column"
        if self.output in ("shift", "factor"):
            what += f", and a {self.output} for each answer"
        elif self.output != "no":
            what += " and answer"
        what += "; from a report of yours that is read outside a sum they can be estimated before"
        shown = Reveal(lambda task, state: task.select(state.params, PRIVATE), MEANS.__getitem__, what)
        return training(self, rounds), Stage("publish", (shown,), 1, "private layers", "After training, once")

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch, self.pull(site.task, work))

    def pull(self, task: Task, work: Work) -> ExtraGrad | None:
        return proximal_term(work.params, identity(task, work.params), self.identity)

    def newcomer(self) -> Newcomer:
        return Newcomer(self.lr, self.momentum, self.output, self.identity)
