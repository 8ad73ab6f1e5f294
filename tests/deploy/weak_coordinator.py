"""`vitrail serve` without the defence against job processes that die, as a control: run as a script."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from vitrail.cli import main
from vitrail.deploy import kits
from vitrail.deploy.adapter import Doorkeeper
from vitrail.deploy.part_losses import PartLosses
from vitrail.deploy.way import FlareWay


class WeakDoorkeeper(Doorkeeper):
    """FLARE ends the job of all sites when one site's part ends."""

    def _hear_of_ends(self, engine: Any) -> None:
        """Nothing is changed in FLARE."""


def weaken() -> None:
    build = kits.build_coordinator

    def built(folder: Path) -> None:
        build(folder)
        place = folder / "flare" / "coordinator" / "local" / "resources.json"
        weak = f"{Path(__file__).stem}.{WeakDoorkeeper.__name__}"
        place.write_text(place.read_text().replace("vitrail.deploy.adapter.Doorkeeper", weak))

    kits.build_coordinator = built
    FlareWay._set_apart = lambda self, sites: None  # type: ignore[method-assign]
    PartLosses.add = lambda self, site: self.count.setdefault(site, 1) * 0.0  # type: ignore[method-assign]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


if __name__ == "__main__":
    weaken()
    sys.argv[0] = "vitrail"
    main()
