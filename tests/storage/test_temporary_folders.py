"""Private folders of processes that were killed are removed by the next one; nobody else's are."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.storage import temporary_folders
from vitrail.storage.temporary_folders import TemporaryFolder

pytestmark = pytest.mark.skipif(not temporary_folders.CAN_SWEEP, reason="what is left behind is not swept there")
OWNER = """
import sys, time
from vitrail.storage.temporary_folders import TemporaryFolder as TemporaryFolder
folder = TemporaryFolder()
(folder.path / "rows.csv").write_text("a patient")
print(folder.path, flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory of its own, so that no other process's folders are met."""
    made = Path(tempfile.mkdtemp())
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


def owner(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process with a folder there."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(place)}
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_s_folder_is_removed_and_a_live_one_s_is_not(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the sweep the patients' rows stay."""
    (killed, left), (alive, used) = owner(place), owner(place)
    try:
        assert left.parent == used.parent == place
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        with monkeypatch.context() as patch:
            patch.setattr(temporary_folders, "sweep", lambda place: None)
            TemporaryFolder().close()
            assert (left / "rows.csv").exists()
        with TemporaryFolder() as mine, TemporaryFolder() as second:
            assert not left.exists()
            assert (used / "rows.csv").exists()
            assert mine.path.exists(), "a process does not take its own for abandoned"
            assert second.path.stat().st_mode & 0o777 == 0o700
        assert not mine.path.exists()
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()


def abandoned(path: Path) -> Path:
    """As a killed process leaves it."""
    path.mkdir(mode=0o700)
    (path / temporary_folders.LOCK).touch()
    (path / "rows.csv").write_text("a patient")
    return path


def test_what_is_not_surely_ours_and_abandoned_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = abandoned(place / "elsewhere")
    (place / "vitrail-link").symlink_to(outside)
    open_to_all = abandoned(place / "vitrail-open")
    open_to_all.chmod(0o777)
    being_made = abandoned(place / "vitrail-new")
    (being_made / temporary_folders.LOCK).rename(being_made / f"{temporary_folders.LOCK}.new")
    linked = abandoned(place / "vitrail-linked")
    (linked / temporary_folders.LOCK).unlink()
    (linked / temporary_folders.LOCK).symlink_to(outside / temporary_folders.LOCK)
    piped = abandoned(place / "vitrail-piped")
    (piped / temporary_folders.LOCK).unlink()
    os.mkfifo(piped / temporary_folders.LOCK)
    (place / "vitrail-file").touch()
    temporary_folders.sweep()
    for folder in (outside, open_to_all, being_made, linked, piped):
        assert (folder / "rows.csv").exists(), folder
    assert (place / "vitrail-link").is_symlink()
    assert (place / "vitrail-file").exists()


def test_another_user_s_folder_stays_and_links_in_ours_are_not_followed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = place / "kept"
    kept.mkdir()
    (kept / "thesis.txt").touch()
    left = abandoned(place / "vitrail-left")
    (left / "link").symlink_to(kept)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: left.stat().st_uid + 1)
        temporary_folders.sweep()
        assert left.exists()
    temporary_folders.sweep()
    assert not left.exists()
    assert (kept / "thesis.txt").exists()
