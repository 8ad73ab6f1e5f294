"""What a process has used so far: seconds of processors, and the most memory it ever held.

Energy is told only where somebody states how many watts one busy core of the machine draws: it cannot be measured from
within a process.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

MOST_SECONDS, MOST_BYTES, MOST_WATTS = 1e9, 2.0**50, 1e4  # of a site: more is no footprint


class Footprint(NamedTuple):
    cpu: float  # seconds, of all its threads together
    peak: float  # bytes; of the whole process, also before the run
    watts: float = math.nan  # of one busy core, as its owner states it

    @property
    def energy(self) -> float:
        """Watt-hours; NaN where nobody stated watts."""
        return self.cpu * self.watts / 3600

    def plain(self) -> dict[str, float]:
        """What is known, ready for a file."""
        return {k: v for k, v in self._asdict().items() if math.isfinite(v)}


def cpu_seconds() -> float:
    return time.process_time()


def footprint(since: float, watts: float = math.nan) -> Footprint:
    """Of this process, since `cpu_seconds` was this."""
    return Footprint(max(0.0, cpu_seconds() - since), _peak(), watts)


def read_footprint(numbers: Sequence[float]) -> Footprint | None:
    """What another machine says of itself; None where it cannot be true."""
    footprint = Footprint(*map(float, numbers))
    plausible = 0 <= footprint.cpu <= MOST_SECONDS and 0 < footprint.peak <= MOST_BYTES
    return footprint if plausible and (math.isnan(footprint.watts) or 0 < footprint.watts <= MOST_WATTS) else None


def _peak() -> float:
    try:
        import resource
    except ImportError:  # not on Windows
        return math.nan
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else most * 1024)
