"""`vitrail serve` without one of its defences, as a control. Run as a script: weak_coordinator.py DEFENCE serve ..."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from vitrail.cli import main
from vitrail.deploy.transport.flare import components
from vitrail.deploy.transport.flare import workspace as kits
from vitrail.deploy.transport.flare.admission import Doorkeeper
from vitrail.deploy.transport.flare.job_failures import PartLosses
from vitrail.deploy.transport.flare.transport import FlareTransport


class WeakDoorkeeper(Doorkeeper):
    """FLARE ends the job of all sites when one site's part ends."""

    def _hear_of_ends(self, engine: Any) -> None:
        """Nothing is changed in FLARE."""


def without_parts() -> None:
    """A job process that dies takes the others' ones with it, and is begun again with all."""
    build = kits.build_coordinator

    def built(folder: Path) -> None:
        build(folder)
        place = folder / "flare" / "coordinator" / "local" / "resources.json"
        weak = f"{Path(__file__).stem}.{WeakDoorkeeper.__name__}"
        place.write_text(place.read_text().replace("vitrail.deploy.transport.flare.admission.Doorkeeper", weak))

    kits.build_coordinator = built
    FlareTransport._set_apart = lambda self, sites: None  # type: ignore[method-assign]
    PartLosses.add = lambda self, site: self.count.setdefault(site, 1) * 0.0  # type: ignore[method-assign]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def without_limits() -> None:
    """Answers are put together and unpacked, however long they are."""
    start = components.start_coordinator
    components.start_coordinator = lambda workspace, socket, longest, **more: start(workspace, socket, **more)


if __name__ == "__main__":
    {"parts": without_parts, "limits": without_limits}[sys.argv.pop(1)]()
    sys.argv[0] = "vitrail"
    main()
