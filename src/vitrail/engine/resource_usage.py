"""What a process has used so far: seconds of processors, and the most memory it ever held.

Energy is told only where somebody states how many watts one busy core of the machine draws: it cannot be measured from
within a process. CO2 is told only where somebody also states how many grams of it the local grid emits for a
kilowatt-hour. Neither has a default.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

MOST_SECONDS, MOST_BYTES, MOST_WATTS = 1e9, 2.0**50, 1e4  # of a site: more is no footprint
MOST_GRID = 2000.0  # grams of CO2 for a kilowatt-hour; coal is near 1000


class StatedPower(NamedTuple):
    """What the owner of a machine states, where anything is stated."""

    watts: float | None = None  # that one busy core draws
    grid: float | None = None  # grams of CO2 for a kilowatt-hour


UNSTATED = StatedPower()


class Footprint(NamedTuple):
    cpu: float  # seconds, of all its threads together
    peak: float  # bytes; of the whole process, also before the run
    watts: float = math.nan  # of one busy core, as its owner states it
    grid: float = math.nan  # grams of CO2 for a kilowatt-hour, as its owner states it

    @property
    def energy(self) -> float:
        """Watt-hours; NaN where nobody stated watts."""
        return self.cpu * self.watts / 3600

    @property
    def carbon(self) -> float:
        """Grams of CO2; NaN where nobody stated watts or the grid's factor.

        >>> Footprint(cpu=7200, peak=1e9, watts=10, grid=250).carbon
        5.0
        """
        return self.energy * self.grid / 1000

    def plain(self) -> dict[str, float]:
        """What is known, ready for a file."""
        return {k: v for k, v in self._asdict().items() if math.isfinite(v)}


def cpu_seconds() -> float:
    return time.process_time()


def footprint(since: float, watts: float | None = None, grid: float | None = None) -> Footprint:
    """Of this process, since `cpu_seconds` was this; `watts` and `grid`: where somebody states them."""
    stated = (math.nan if number is None else number for number in (watts, grid))
    return Footprint(max(0.0, cpu_seconds() - since), _peak(), *stated)


def read_footprint(numbers: Sequence[float]) -> Footprint | None:
    """What another machine says of itself; None where it cannot be true."""
    footprint = Footprint(*map(float, numbers))
    plausible = 0 <= footprint.cpu <= MOST_SECONDS and 0 < footprint.peak <= MOST_BYTES
    plausible &= math.isnan(footprint.watts) or 0 < footprint.watts <= MOST_WATTS
    return footprint if plausible and (math.isnan(footprint.grid) or 0 <= footprint.grid <= MOST_GRID) else None


def _peak() -> float:
    try:
        import resource
    except ImportError:  # not on Windows
        return math.nan
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else most * 1024)
