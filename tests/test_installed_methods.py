"""A method that another package brings is known to the command line and to deployed sites, by package and version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

METHOD = '''"""Timid (a stranger's): FedAvg that goes half of the way."""
from dataclasses import dataclass
from typing import ClassVar
from vitrail.core.tensors import tmap
from vitrail.methods import FedAvg

@dataclass(frozen=True)
class Timid(FedAvg):
    title: ClassVar[str] = "Timid"
    half: float = 0.5

    def merge(self, task, coord, up, roster):
        new, facts = super().merge(task, coord, up, roster)
        return type(new)(tmap(lambda old, then: old + self.half * (then - old), coord.params, new.params)), facts
'''
SITES = """import sys
from vitrail.data.datasets import heart_disease
for name, frame in heart_disease().items():
    frame.to_csv(f"{sys.argv[1]}/{name}.csv", index=False)
"""


def package(folder: Path, version: str, code: str = METHOD, names: str = "timid = stranger:Timid") -> Path:
    """As pip would install it."""
    about = folder / f"stranger_fl-{version}.dist-info"
    about.mkdir(parents=True)
    (folder / "stranger.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stranger-fl\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[vitrail.methods]\n{names}\n")
    return folder


def vitrail(*words: object, packages: Path | None = None, fails: bool = False) -> str:
    path = os.pathsep.join(filter(None, [packages and str(packages), *sys.path]))
    command = [sys.executable, "-m", "vitrail.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(tmp_path_factory.mktemp("packages"), "1.2")


def test_the_command_line_knows_it(there: Path, tmp_path: Path) -> None:
    assert "FedAvg that goes half of the way" in vitrail("methods", packages=there)
    assert "Timid, 40 rounds" in vitrail("wire", "timid", packages=there)
    assert "there is no method 'timid'" in vitrail("wire", "timid", fails=True)
    subprocess.run([sys.executable, "-c", SITES, str(tmp_path)], check=True)
    vitrail("init", tmp_path, "--target", "disease", "--out", tmp_path / "study.toml")
    words = ["run", tmp_path / "study.toml", "--data", tmp_path, "--rounds", 2, "--method", "timid"]
    assert "cleveland" in vitrail(*words, "--out", tmp_path / "run", packages=there)


def test_a_site_without_it_says_so(there: Path, tmp_path: Path) -> None:
    from vitrail.data.datasets import packaged

    text = packaged("heart_disease.toml").read_text().replace('name = "fedavg"', 'name = "timid"')
    study = tmp_path / "study.toml"
    study.write_text(text if "timid" in text else f'{text}\n[method]\nname = "timid"\n')
    said = ["invite", study, "--site", "a", "--site", "b", "--site", "c", "--address", "localhost:8123"]
    vitrail(*said, packages=there)
    (invitation,) = tmp_path.rglob("a.invitation")
    told = vitrail("request", invitation, "--kit", tmp_path / "kit", fails=True)
    assert "the method 'timid' comes from the package stranger-fl 1.2, and here is none that brings it" in told
    other = package(tmp_path / "other", "1.3")
    told = vitrail("request", invitation, "--kit", tmp_path / "kit", fails=True, packages=other)
    assert "comes from the package stranger-fl 1.2, and here is stranger-fl 1.3" in told
    vitrail("request", invitation, "--kit", tmp_path / "kit", packages=there)


def test_a_broken_one_is_told_when_it_is_asked_for(tmp_path: Path) -> None:
    names = "timid = stranger:Timid\nlost = stranger:Lost\nfedavg = stranger:Timid"
    there = package(tmp_path, "2.0", names=names)
    assert "FedAvg (McMahan" in vitrail("methods", packages=there)
    told = vitrail("wire", "lost", packages=there, fails=True)
    assert "stranger-fl 2.0 brings it, but: AttributeError" in told
    assert "FedAvg, 40 rounds" in vitrail("wire", "fedavg", packages=there), "no name is taken twice"
