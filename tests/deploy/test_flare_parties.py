"""A host and two guests between real processes, over FLARE: the same numbers as in one process, and nothing to read for
who carries them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.federation import Federation
from deploy.talking import study, tables
from vitrail.deploy import enrol
from vitrail.deploy.joining import pact_of

pytest.importorskip("nvflare")


class Houses(Federation):
    def enrol(self) -> None:
        super().enrol()
        for site in self.sites:  # written anew when the last party was approved
            shutil.copy(enrol.approval_of(self.folder, site), self.root / site)
            enrol.accept(self.kit(site), self.root / site / f"{site}.approval")

    def join(self, site: str, kit: Path | None = None, name: str = "", *more: object) -> subprocess.Popen[bytes]:
        accept = pact_of(enrol.load_kit(self.kit(site))).hash
        words = ("join", self.kit(site), "--data", self.data(site), "--accept", accept, "--places", *more)
        return self.start(name or site, *words)


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Houses]:
    made = Houses(tmp_path_factory.mktemp("houses"), study(), tables())
    made.enrol()
    yield made
    made.close()


@pytest.fixture(scope="module")
def first(houses: Houses) -> Path:
    """The first run."""
    joined = {site: houses.join(site) for site in houses.sites}
    served = houses.serve()
    houses.wait_end(served, "serve")
    for site, process in joined.items():
        houses.wait_end(process, site)
    (run,) = houses.runs()
    return run


def test_it_ends(houses: Houses, first: Path) -> None:
    said = json.loads((first / "carried.json").read_text())
    assert said["finished"]
    print(said)
