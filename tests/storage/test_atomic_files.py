"""One way to write a file and one private folder: what they do, and that nobody else does it."""

from __future__ import annotations

import ast
import errno
import os
import stat
from pathlib import Path

import pytest

import vitrail
from tests.support.crashes import every_crash
from vitrail.core.errors import WriteFailed
from vitrail.storage.atomic_files import append, private_folder, whole_lines, write_atomically

SRC = Path(vitrail.__file__).parent
OF_OS = {"replace", "rename", "fsync", "fdatasync", "chmod", "fchmod", "truncate", "ftruncate", "open", "link", "write"}
ELSEWHERE = {  # no file is written there
    ("deploy/transport/supervisor.py", "os.open"),  # /dev/null in place of a terminal
    ("deploy/transport/sandbox.py", "os.open"),  # a folder, for the rules of Landlock
}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def low_level(tree: ast.Module) -> set[str]:
    """Calls that decide how a file gets onto the disk, or who can read it."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            found |= {f"os.{name.name}" for name in node.names} & {f"os.{name}" for name in OF_OS}
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, owner = node.func.attr, node.func.value
        if isinstance(owner, ast.Name) and owner.id == "os" and name in OF_OS:
            found.add(f"os.{name}")
        elif name in ("chmod", "mkstemp", "NamedTemporaryFile"):
            found.add(name)
        elif name == "mkdir" and any(keyword.arg == "mode" for keyword in node.keywords):
            found.add("mkdir(mode=)")
    return found


def test_no_other_module_brings_a_file_onto_the_disk_by_itself() -> None:
    trees = {p.relative_to(SRC).as_posix(): ast.parse(p.read_text("utf-8")) for p in SRC.rglob("*.py")}
    users = {(name, call) for name, tree in trees.items() for call in low_level(tree)}
    outside = {(name, call) for name, call in users if not name.startswith("storage/")}
    assert outside == ELSEWHERE
    assert {call for name, call in users if name == "storage/atomic_files.py"} >= {"os.replace", "os.fsync", "chmod"}


@pytest.mark.parametrize("line", ["os.replace(a, b)", "from os import fsync", "p.chmod(0)", "p.mkdir(mode=0o700)"])
def test_the_walk_finds_what_it_is_to_find(line) -> None:
    assert low_level(ast.parse(line))
    assert not low_level(ast.parse("text.replace(a, b); p.mkdir(exist_ok=True); os.environ.get(a)"))


def test_the_old_content_or_the_new_whatever_byte_it_is_cut_at(tmp_path) -> None:
    path, ends = tmp_path / "file", set[bytes]()
    for options in ({}, {"private": True}, {"durable": True}, {"shared": True}):
        path.write_bytes(b"old")
        for _ in every_crash(lambda how=options: write_atomically(path, b"the new one", **how)):
            ends.add(path.read_bytes())
            path.write_bytes(b"old")
        assert path.read_bytes() == b"the new one"
    assert ends == {b"old", b"the new one"}


def test_a_private_file_was_never_anybody_elses(tmp_path) -> None:
    """Also where a crash left a temporary file that others can read, or somebody put a link in its place."""
    path, part = tmp_path / "key", tmp_path / "key.new"
    part.write_text("left by a crash")
    part.chmod(0o644)
    write_atomically(path, "secret", private=True)
    assert (mode_of(path), path.read_text()) == (0o600, "secret")
    part.symlink_to(tmp_path / "theirs")
    write_atomically(path, "another", private=True)
    assert path.read_text() == "another"
    assert not (tmp_path / "theirs").exists()


def test_two_processes_that_write_the_same_file_do_not_meet(tmp_path, monkeypatch) -> None:
    path, real = tmp_path / "features", os.replace
    written = list[str]()

    def other_process_first(a: Path, b: Path) -> None:
        written.append(Path(a).name)
        if len(written) == 1:
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: -1)
                write_atomically(path, "theirs", shared=True)
        real(a, b)

    monkeypatch.setattr(os, "replace", other_process_first)
    write_atomically(path, "mine", shared=True)
    assert path.read_text() == "mine"
    assert len(set(written)) == 2
    assert [f.name for f in tmp_path.iterdir()] == ["features"]


def test_a_private_folder_is_closed_also_where_it_was_there(tmp_path) -> None:
    assert mode_of(private_folder(tmp_path / "new" / "home")) == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    assert mode_of(private_folder(tmp_path / "open")) == 0o700


def test_a_folder_of_another_user_is_used_as_it_is(tmp_path, monkeypatch) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o777)

    def theirs(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "chmod", theirs)
    assert mode_of(private_folder(tmp_path / "volume")) == 0o777


def test_a_line_is_in_the_log_whole_or_not_at_all(tmp_path) -> None:
    log = tmp_path / "log"
    append(log, b"one\n", private=True)
    assert mode_of(log) == 0o600
    for _ in every_crash(lambda: append(log, b"two and more\n", sync=True)):
        assert whole_lines(log) in (b"one\n", b"one\ntwo and more\n")
        assert log.read_bytes() == whole_lines(log)  # what was cut off is gone, so that the next line begins anew
        log.write_bytes(b"one\n")
    assert whole_lines(tmp_path / "none") == b""


def test_what_cannot_be_written_says_why_and_leaves_nothing_behind(tmp_path) -> None:
    with pytest.raises(WriteFailed, match="No such file"):
        write_atomically(tmp_path / "nowhere" / "file", "content")
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteFailed, match="directory"):
        write_atomically(tmp_path / "folder", "content")
    assert [f.name for f in tmp_path.iterdir()] == ["folder"]
