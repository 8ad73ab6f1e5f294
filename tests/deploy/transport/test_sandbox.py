"""The box that FLARE's processes run in, by itself: what is not named cannot be read, written, dialled or signalled."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.command import vitrail
from vitrail.core.errors import VitrailError
from vitrail.deploy import doctor
from vitrail.deploy.transport import sandbox
from vitrail.deploy.transport.sandbox import Sandbox

pytestmark = pytest.mark.skipif(not sandbox.abi(), reason="this kernel has no Landlock")
TRIES = """
    import json, os, socket, subprocess, sys
    def tried(what, *words):
        try:
            what(*words)
            return "done"
        except OSError as error:
            return error.strerror
    def dial(port):
        with socket.socket() as end: end.connect(("127.0.0.1", port))
    def listen(port):
        with socket.socket() as end: end.bind(("127.0.0.1", port))
    rows, own, port, parent = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    said = {
        "read": tried(open, rows), "write": tried(open, rows, "a"), "list": tried(os.listdir, os.path.dirname(rows)),
        "own": tried(open, own + "/new", "w"), "link": tried(os.symlink, rows, own + "/link"),
        "fifo": tried(os.mkfifo, own + "/fifo"), "move": tried(os.rename, rows, own + "/moved"),
        "dial": tried(dial, port), "listen": tried(listen, 0), "signal": tried(os.kill, parent, 0),
        "processes": tried(os.listdir, "/proc"), "shadow": tried(open, "/etc/shadow"),
        "child": subprocess.run([sys.executable, "-c", "open(%r)" % rows], stderr=-1, text=True).stderr[-300:],
    }
    print(json.dumps(said))
"""


@pytest.fixture
def tries(tmp_path: Path) -> tuple[Path, list[str], int]:
    """A file with rows, and a program that tries to get at it."""
    rows, own = tmp_path / "site" / "rows.csv", tmp_path / "own folder"
    rows.parent.mkdir()
    own.mkdir()
    rows.write_text("age\n63\n")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    words = [sys.executable, "-c", textwrap.dedent(TRIES), str(rows), str(own), str(port), str(os.getpid())]
    return own, words, port


def run(words: list[str]) -> dict[str, str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


def test_nothing_outside_is_reached(tries: tuple[Path, list[str], int]) -> None:
    own, words, port = tries
    free = run(words)  # the control: without the box all of it works
    assert (free["read"], free["list"], free["own"], free["fifo"]) == ("done",) * 4
    assert free["dial"] == "Connection refused"
    for name in ("new", "fifo", "link"):
        (own / name).unlink()
    (own / "moved").rename(own.parent / "site" / "rows.csv")

    box = Sandbox(sandbox.python_places(own), (str(own),), connect=(port,))
    said = run(sandbox.command(box, words))
    denied = "Permission denied"
    assert {said[k] for k in ("read", "write", "list", "link", "fifo", "move", "processes", "shadow")} == {denied}, said
    assert said["own"] == "done"
    assert denied in said["child"]
    if sandbox.abi() >= 4:
        assert (said["dial"], said["listen"]) == (
            "Connection refused",
            denied,
        )  # the port may be dialled; nobody is there
        other = run(sandbox.command(box._replace(connect=(port + 1,)), words))
        assert other["dial"] == denied
    if sandbox.abi() >= 6:
        assert said["signal"] == "Operation not permitted"


def test_the_folder_where_vitrail_was_started_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is any that the workspace lies in, though Python would look there."""
    workspace = tmp_path / "basel.kit" / "flare"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}.{os.pathsep}{tmp_path / 'packages'}")
    monkeypatch.syspath_prepend(str(tmp_path / "basel.kit"))
    places = sandbox.python_places(workspace)
    assert str(tmp_path / "packages") in places
    assert not any(str(workspace).startswith(f"{place}/") for place in places)


def test_a_box_that_cannot_be_closed_runs_nothing(tmp_path: Path) -> None:
    """On a kernel without Landlock the command is not run at all."""
    code = f"import runpy, sys; m = runpy.run_path({sandbox.__file__!r}); m['close'].__globals__['abi'] = lambda: 0; "
    code += "m['close'](m['Sandbox']((), ()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "this kernel has no Landlock" in done.stderr


@pytest.mark.parametrize("version", range(1, 8))
def test_every_version_of_the_interface(version: int, tries: tuple[Path, list[str], int]) -> None:
    """As far as this kernel knows it: an older one is asked for less, and files are shut in with each."""
    if version > sandbox.abi():
        pytest.skip("this kernel's is older")
    own, words, _ = tries
    script = own.parent / "older.py"
    script.write_text(
        Path(sandbox.__file__).read_text().replace("    version = abi()\n", f"    version = {version}\n", 1)
    )
    command = sandbox.command(Sandbox(sandbox.python_places(own), (str(own),)), words)
    command[command.index(str(Path(sandbox.__file__).resolve()))] = str(script)
    assert run(command)["read"] == "Permission denied"


def test_the_verbs_refuse_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "Landlock version" in doctor._sandbox().what
    doctor.need_sandbox(True)
    monkeypatch.setattr(sandbox, "abi", lambda: 0)
    with pytest.raises(VitrailError, match="cannot be confined"):
        doctor.need_sandbox(True)
    doctor.need_sandbox(False)
    assert not doctor._sandbox().well
    (tmp_path / "a.kit").mkdir()
    for words in (("join", tmp_path / "a.kit", "--data", tmp_path / "a.csv"), ("serve", tmp_path / "study.toml")):
        done = vitrail(*words)
        assert done.returncode == 2
        assert "--no-sandbox" in done.stderr
