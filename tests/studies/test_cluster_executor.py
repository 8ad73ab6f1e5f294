"""Other machines: a real Dask scheduler with two worker processes gives the same results as this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail as vt
from tests.support import ROOT, pool_jobs
from vitrail.studies import cluster_executor, executor
from vitrail.studies.contribution.values import contribution


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Processes of their own, as on machines of their own: they share no memory, and start in another folder."""
    place = tmp_path_factory.mktemp("cluster")
    told = place / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_{}"]
    quiet = ["--no-dashboard", "--scheduler-file", str(told)]
    who = [["scheduler", "--host", "127.0.0.1", "--port", "0"], *[["worker", "--nthreads", "2", "--no-nanny"]] * 2]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}  # where the jobs of tests are
    started = [
        subprocess.Popen(
            [*dask[:2], dask[2].format(kind), *more, *quiet], cwd=place, env=env, stderr=subprocess.DEVNULL
        )
        for kind, *more in who
    ]
    try:
        for _ in range(600):
            if told.exists() and told.stat().st_size:
                break
            time.sleep(0.1)
        yield json.loads(told.read_text())["address"]
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def small() -> tuple[vt.Study, dict]:
    sites = {n: f.head(60) for n, f in vt.datasets.heart_disease().items() if n != "switzerland"}
    return vt.Study.infer(sites, "disease").with_changes(network={"hidden": [4]}, training={"rounds": 2}), sites


def test_the_same_numbers_and_goes_on(address: str, small: tuple[vt.Study, dict], tmp_path: Path) -> None:
    study, sites = small
    given = (study, sites, ["local", "fedavg"], [1, 2])
    here = vt.compare(*given, folds=3)
    there = vt.compare(*given, folds=3, cluster=address, out=tmp_path / "out")
    assert there.results().equals(here.results())
    kept = sorted((tmp_path / "out" / "parts").iterdir())  # written here: machines need share no disk
    assert len(kept) == 4
    kept[0].unlink()
    marks = [p.stat().st_mtime_ns for p in kept[1:]]
    again = vt.compare(*given, folds=3, cluster=address, out=tmp_path / "out", resume=True)
    assert again.results().equals(here.results())
    assert [p.stat().st_mtime_ns for p in kept[1:]] == marks


def test_tuning_and_contribution(address: str, small: tuple[vt.Study, dict], tmp_path: Path) -> None:
    study, sites = small
    given = (study, sites, "fedavg", {"lr": [0.001, 0.01]}, 2)
    assert vt.tune(*given, cluster=address).table.equals(vt.tune(*given).table)
    vt.federate(study, sites, out=tmp_path / "run")
    asked = (tmp_path / "run", "va", sites, "shapley")
    there = contribution(*asked, retrain=True, seeds=2, cluster=address)
    assert there.values.equals(contribution(*asked, retrain=True, seeds=2).values)


def test_errors_come_back_in_words(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(vt.VitrailError, match="no such thing"):
        executor.done([1, 2], pool_jobs.fail, "no such thing", cluster=address)
    monkeypatch.setattr(cluster_executor, "WAIT", 0.5)
    with pytest.raises(vt.VitrailError, match="no scheduler answers at this address"):
        executor.done([1], pool_jobs.fail, "", cluster="tcp://127.0.0.1:9")


def test_another_version_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_executor, "version", lambda name: "0.0.1")
    with pytest.raises(vt.VitrailError, match=r"it has .*vitrail \S+ \(here 0\.0\.1\)"):
        executor.done([1], pool_jobs.fail, "", cluster=address)


def test_nobody_goes_on_with_what_nobody_waits_for(address: str, tmp_path: Path) -> None:
    with pytest.raises(vt.VitrailError, match="one fails"):
        executor.done(["long", "fails"], pool_jobs.wait_far, tmp_path, cluster=address)
    for _ in range(100):
        if (tmp_path / "stopped").exists():
            break
        time.sleep(0.1)
    assert (tmp_path / "stopped").exists()
    assert not (tmp_path / "to the end").exists()
