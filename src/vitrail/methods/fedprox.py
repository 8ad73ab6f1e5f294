"""FedProx (Li et al. 2020): FedAvg whose sites stay near the model that they received.

    minimise  loss_i(w) + mu/2 |w - w_received|^2

mu = 0 is FedAvg. The penalty applies to the parameters that travel. Default mu = 0.1; the paper tunes it over
{0.001, 0.01, 0.1, 1}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitrail.core.declarations import Catalogue, Ge
from vitrail.core.exchange import SiteContext
from vitrail.core.task import Batch
from vitrail.core.tensors import proximal_term
from vitrail.methods.fedavg import FedAvg, Work


@dataclass(frozen=True)
class FedProx(FedAvg):
    catalogue = Catalogue("FedProx", tuning_grid={"mu": (0.001, 0.01, 0.1, 1.0)})
    mu: Annotated[float, Ge(0)] = 0.1

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(
            site.task, work.params, work.memory, batch, proximal_term(work.params, work.received, self.mu)
        )
