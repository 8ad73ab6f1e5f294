"""Weight Erosion as two servers run it: distances and totals from shares, nothing else of an update. For tests and
benchmarks/methods/erosion_two_servers.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.core.tensors import Params
from vitrail.methods.weight_erosion import WeightErosion
from vitrail.privacy.two_server.distances import DistanceServer, open_distances, open_total, with_shares


@dataclass(frozen=True)
class SharedErosion(WeightErosion):
    """Every user has two servers of its own, which hold the sites' updates of that user's model in halves. The model of
    all sites is left out."""

    clip: float = 1.0
    least: int = 1
    seen: dict[str, Any] = field(default_factory=dict, compare=False)  # of the last round: what the servers know

    def compared(self, update: Params, took: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.cat([v.flatten(2) for v in update.values()], 2).double().numpy()  # [site, user, number]
        users = rows.shape[1]
        distance, vanished = np.zeros((users, users)), np.zeros(users, bool)
        servers: dict[int, tuple[DistanceServer, DistanceServer]] = {}
        errors = np.zeros((users, users))
        for user in range(users):
            present = took[user].nonzero()[:, 0].tolist()
            if user not in present:
                continue
            servers[user] = with_shares(rows[:, user], present, user, self.clip)
            found = open_distances(servers[user], present)
            distance[user], vanished[user], errors[user] = found.distance, found.vanished, found.error
        self.seen.update(servers=servers, errors=errors, took=took)
        like = next(iter(update.values()))
        return torch.from_numpy(distance).to(like), torch.from_numpy(vanished)

    def moved(self, models: Params, update: Params, trust: Tensor, counts: Tensor) -> Params:
        weights, out = (trust * counts).double().numpy(), {k: v.clone() for k, v in models.items()}
        totals = self.seen["totals"] = {}
        for user, servers in self.seen["servers"].items():
            present = self.seen["took"][user].nonzero()[:, 0].tolist()
            total = totals[user] = open_total(servers, present, weights[user], self.least)
            at = 0
            for v in out.values() if total is not None else ():
                size = v[user].numel()
                v[user] += torch.from_numpy(total[at : at + size]).to(v).view(v.shape[1:])
                at += size
        return out
