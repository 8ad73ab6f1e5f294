"""Runs of a clinic and a laboratory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.vertical.companies import STUDY, people, vitrail


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "parties").mkdir()
    for party, frame in people().items():
        frame.to_csv(tmp_path / "parties" / f"{party}.csv", index=False)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody writes into."""
    root = tmp_path_factory.mktemp("together")
    (root / "study.toml").write_text(STUDY)
    (root / "parties").mkdir()
    for party, frame in people().items():
        frame.to_csv(root / "parties" / f"{party}.csv", index=False)
    code, told = vitrail("run", root / "study.toml", "--data", root / "parties", "--out", root / "run")
    assert code == 0, told
    (root / "told.txt").write_text(told)
    return root


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, with its tables."""
    shutil.copytree(finished, tmp_path / "copy")
    (tmp_path / "copy/run/parties/clinic/tables.txt").write_text(str(tmp_path / "copy/parties"))
    return tmp_path / "copy" / "run"
