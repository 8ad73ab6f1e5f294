"""Which sites were put together, round by round: facts in, tables out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitrail.core import facts as means
from vitrail.core.facts import Facts, find_value


class ClusterChange(NamedTuple):
    """Sites that left a group together."""

    round: int
    sites: list[int]
    before: int
    after: int
    split: bool  # whether that group was split, of which two parts neither left the other
    moved: float = np.nan  # how long the mean update of the group was that they left, and its longest one
    longest: float = np.nan


class ClusterCourse(NamedTuple):
    sites: list[str]
    rounds: np.ndarray
    group: np.ndarray  # [round, site]: numbered as they come up
    split: np.ndarray  # [round, site]: whether its group was
    moved: np.ndarray  # [round, site]; this and the rest NaN where it is not told
    longest: np.ndarray
    alike: np.ndarray  # [round, user, site]

    @property
    def many(self) -> int:
        """How many there are in the end."""
        return len(set(self.group[-1].tolist()))

    def members(self) -> dict[int, list[int]]:
        """Of each group in the end."""
        return {g: np.flatnonzero(self.group[-1] == g).tolist() for g in sorted(set(self.group[-1].tolist()))}

    def since(self, group: int) -> int:
        """The round since which it has had the members that it has in the end."""
        same = ((self.group == group) == (self.group[-1] == group)).all(1)
        others = np.flatnonzero(~same)
        return int(self.rounds[others[-1] + 1 if len(others) else 0])

    def changes(self) -> list[ClusterChange]:
        """Who left whom, and when."""
        out = []
        for r in range(1, len(self.group)):
            old, new = self.group[r - 1], self.group[r]
            for pair in sorted({(a, b) for a, b in zip(old.tolist(), new.tolist(), strict=True) if a != b}):
                who = np.flatnonzero((old == pair[0]) & (new == pair[1]))
                at = r, who[0]
                lengths = float(self.moved[at]), float(self.longest[at])
                out.append(ClusterChange(int(self.rounds[r]), who.tolist(), *pair, bool(self.split[at]), *lengths))
        return out

    @property
    def compared(self) -> int:
        """The place of the last round in which all sites still trained one model: later on, updates of two groups are
        not those of the same model."""
        several = np.flatnonzero((self.group != self.group[:, :1]).any(1))
        return int(several[0]) if len(several) else len(self.group) - 1


def read_groups(sites: Sequence[str], facts: Facts) -> ClusterCourse | None:
    """From the facts of a run; None where nobody put sites into groups in every round."""
    group, rounds = find_value(facts, means.GROUP), find_value(facts, means.ROUND)
    if group is None or rounds is None or group.dim() != 2 or not len(group):
        return None
    raw = group.numpy()
    seen = list(dict.fromkeys(raw.flatten().tolist()))
    shape = raw.shape

    def known(what: str, size: tuple[int, ...]) -> np.ndarray:
        tensor = find_value(facts, what)
        return np.full(size, np.nan) if tensor is None else tensor.double().numpy()

    return ClusterCourse(
        list(sites),
        rounds.numpy(),
        np.array([[seen.index(g) for g in row] for row in raw.tolist()]),
        known(means.GROUP_SPLIT, shape) > 0,
        known(means.GROUP_MOVED, shape),
        known(means.GROUP_LONGEST, shape),
        known(means.ALIKE, (*shape, shape[1])),
    )
