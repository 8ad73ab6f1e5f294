"""A method that another package brings is known to the command line and to deployed sites, by package and version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.command import Done, vitrail
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.identity.coordinator_folder import folder_of, invitation_of

METHOD = '''"""Timid (a stranger's): FedAvg that goes half of the way."""
from dataclasses import dataclass
from typing import Annotated
from vitrail.plugin import Catalogue, Ge, tree_map
from vitrail.methods import FedAvg

@dataclass(frozen=True)
class Timid(FedAvg):
    catalogue = Catalogue("Timid")
    half: Annotated[float, Ge(0)] = 0.5

    def merge(self, task, coord, up, roster):
        new, facts = super().merge(task, coord, up, roster)
        return type(new)(tree_map(lambda old, then: old + self.half * (then - old), coord.params, new.params)), facts
'''


def package(folder: Path, version: str, code: str = METHOD, names: str = "timid = stranger:Timid") -> Path:
    """As pip would install it."""
    about = folder / f"stranger_fl-{version}.dist-info"
    about.mkdir(parents=True)
    (folder / "stranger.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stranger-fl\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[vitrail.methods]\n{names}\n")
    return folder


ALL = """import json, sys
from tests.support.command import vitrail
for words in json.loads(sys.argv[1]):
    print(json.dumps(vitrail(*words)))"""


def with_packages(folder: Path, *sayings: Sequence[object], fails: int = 0) -> list[str]:
    """What each came to, all in one process that starts with these packages there; the last so many fail."""
    path = os.pathsep.join([str(folder), str(ROOT), *sys.path])
    words = json.dumps([[str(w) for w in words] for words in sayings])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", ALL, words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    told = [Done(*json.loads(line)) for line in done.stdout.splitlines()]
    return [outcome(one, fails=left <= fails) for left, one in zip(range(len(sayings), 0, -1), told, strict=True)]


def without(*words: object, fails: bool = False) -> str:
    return outcome(vitrail(*words), fails)


def outcome(done: Done, fails: bool) -> str:
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(tmp_path_factory.mktemp("packages"), "1.2")


def test_the_command_line_knows_it(there: Path, tmp_path: Path) -> None:
    assert "there is no method 'timid'" in without("wire", "timid", fails=True)
    for name, frame in heart_disease().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    without("init", tmp_path, "--target", "disease", "--out", tmp_path / "study.toml")
    words = ["run", tmp_path / "study.toml", "--data", tmp_path, "--rounds", 2, "--method", "timid"]
    sayings = ["methods"], ["wire", "timid"], [*words, "--out", tmp_path / "run"]
    listed, wire, run = with_packages(there, *sayings)
    assert "FedAvg that goes half of the way" in listed
    assert "Timid, 40 rounds" in wire
    assert "cleveland" in run


def test_a_site_without_it_says_so(there: Path, tmp_path: Path) -> None:
    text = packaged("heart_disease.toml").read_text().replace('name = "fedavg"', 'name = "timid"')
    study = tmp_path / "study.toml"
    study.write_text(text if "timid" in text else f'{text}\n[method]\nname = "timid"\n')
    sites = [word for name in "abc" for word in ("--site", name)]
    request = ["request", invitation_of(folder_of(study), "a"), "--kit"]
    with_packages(there, ["invite", study, *sites, "--address", "localhost:8123"], [*request, tmp_path / "has it.kit"])
    request.append(tmp_path / "kit")
    told = without(*request, fails=True)
    assert "the method 'timid' needs the package stranger-fl 1.2, but this machine has none that provides it" in told
    (told,) = with_packages(package(tmp_path / "other", "1.3"), request, fails=1)
    assert "needs the package stranger-fl 1.2, but this machine has stranger-fl 1.3" in told


def test_a_broken_one_is_told_when_it_is_asked_for(tmp_path: Path) -> None:
    names = "timid = stranger:Timid\nlost = stranger:Lost\nfedavg = stranger:Timid"
    there = package(tmp_path, "2.0", names=names)
    listed, wire, told = with_packages(there, ["methods"], ["wire", "fedavg"], ["wire", "lost"], fails=1)
    assert "FedAvg (McMahan" in listed
    assert "FedAvg, 40 rounds" in wire, "no name is taken twice"
    assert "the package stranger-fl 2.0 provides it, but loading it failed: AttributeError" in told
