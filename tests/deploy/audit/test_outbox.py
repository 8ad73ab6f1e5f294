"""Nothing leaves that is not written down before: the log after crashes, full disks, changed files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import stat
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app
from vitrail.deploy.audit.outbox import Outbox, numbers, table
from vitrail.deploy.identity import enrolment
from vitrail.deploy.protocol.message import Message


def message(round_: int = 0, seed: int = 0) -> Message:
    g = torch.Generator().manual_seed(seed)
    named = {"weighted/body.0.weight": torch.randn(22, 32, generator=g), "weight": torch.tensor(1.0)}
    return Message("round", {"stage": 0, "round": round_}, named)


def test_a_message_is_kept_to_the_byte(tmp_path: Path) -> None:
    sent = [message(r, r) for r in range(3)]
    assert [Outbox(tmp_path).record(m, m.pack()) for m in sent] == [1, 2, 3]  # each a process of its own
    box = Outbox(tmp_path)
    for e, m in zip(box.entries(), sent, strict=True):
        assert e.direction == "out"
        assert (e.kind, e.stage, e.round) == ("round", 0, m.words["round"])
        assert e.tensors == {"weighted/body.0.weight": ((22, 32), "float32"), "weight": ((), "float32")}
        assert e.sha256 == hashlib.sha256(m.pack()).hexdigest()
        assert e.bytes == len(m.pack())
        assert datetime.fromisoformat(e.time).tzinfo is not None
        back = box.show(e.number or 0)
        assert back.words == m.words
        torch.testing.assert_close(back.tensors, m.tensors, rtol=0, atol=0)


def test_only_the_owner_reads(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Outbox(tmp_path).record(message(), message().pack())
    finally:
        os.umask(before)
    files = list((tmp_path / "outbox").iterdir())
    assert len(files) == 2
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in files)
    assert stat.S_IMODE((tmp_path / "outbox").stat().st_mode) == 0o700


@pytest.mark.parametrize("torn", [b"{", b'{"time": "2024', b"\x00\x00\x00"])
def test_a_line_cut_off_by_a_crash_is_repaired(torn: bytes, tmp_path: Path) -> None:
    box = Outbox(tmp_path)
    box.record(message(0), message(0).pack())
    with box.log.open("ab") as file:
        file.write(torn)
    box.place(2).write_bytes(b"half")  # the crash came while the second was written
    again = Outbox(tmp_path)
    assert [e.number for e in again.entries()] == [1]  # looking repairs nothing: another process may be writing
    assert box.log.read_bytes().endswith(torn)
    assert again.record(message(7), message(7).pack()) == 2
    assert [json.loads(x)["number"] for x in box.log.read_text().splitlines()] == [1, 2]
    assert again.show(2).words["round"] == 7


def test_two_processes_do_not_take_the_same_number(tmp_path: Path) -> None:
    one, other = Outbox(tmp_path), Outbox(tmp_path)
    got = [box.record(message(r), message(r).pack()) for r, box in enumerate([one, other, one, one, other])]
    assert got == [1, 2, 3, 4, 5]
    assert [e.round for e in one.entries()] == [0, 1, 2, 3, 4]


def test_a_full_disk_lets_nothing_out_and_heals(tmp_path: Path) -> None:
    box = Outbox(tmp_path)
    box.record(message(0), message(0).pack())
    before = box.log.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the message is longer
    try:
        with pytest.raises(vt.VitrailError, match="the site sends nothing until its outbox can be written") as told:
            box.record(message(1), message(1).pack())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert told.value.problems[0].hint
    assert not box.place(2).exists()
    assert box.log.read_bytes() == before
    assert box.record(message(1), message(1).pack()) == 2
    assert box.show(2).words["round"] == 1


def test_a_log_that_cannot_be_written_lets_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = Outbox(tmp_path)
    box.record(message(0), message(0).pack())
    before, write = box.log.read_bytes(), os.write

    def full(file: int, data: memoryview) -> int:
        if bytes(data[:1]) == b"{":  # a line: half of it fits
            write(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    with monkeypatch.context() as m:
        m.setattr(os, "write", full)
        with pytest.raises(vt.VitrailError, match="No space left"):
            box.record(message(1), message(1).pack())
        with pytest.raises(vt.VitrailError, match="No space left"):
            box.received("round", {"stage": 0}, 10)
    assert box.log.read_bytes() == before
    assert not box.place(2).exists()


def test_it_is_on_the_disk_before_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = [], os.fsync

    def noted(file: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{file}"), os.fstat(file).st_size))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    box = Outbox(tmp_path)
    data = message().pack()
    box.record(message(), data)
    paths = [path for path, _ in synced]
    written = synced.index((f"{box.place(1)}.new", len(data)))
    line = synced.index((str(box.log), box.log.stat().st_size))
    assert written < paths.index(str(box.folder)) < line  # the message, its name, and then the line
    assert paths[line + 1 :] == [str(box.folder)]  # the log is new


def test_old_bytes_go_and_their_lines_stay(tmp_path: Path) -> None:
    for r in range(3):
        Outbox(tmp_path).record(message(r), message(r).pack())
    box = Outbox(tmp_path, keep=2)
    for r in range(3, 5):
        box.record(message(r), message(r).pack())
    assert sorted(f.name for f in box.folder.glob("*.safetensors")) == ["000004.safetensors", "000005.safetensors"]
    assert len(box.entries()) == 5
    with pytest.raises(vt.VitrailError, match=box.entries()[0].sha256):
        box.show(1)
    assert box.show(5).words["round"] == 4


def test_a_changed_file_is_told(tmp_path: Path) -> None:
    box = Outbox(tmp_path)
    box.record(message(), message().pack())
    box.place(1).write_bytes(message(0, seed=9).pack())
    with pytest.raises(vt.VitrailError, match="not what was sent"):
        box.show(1)


def test_a_damaged_log_is_told_and_nothing_leaves(tmp_path: Path) -> None:
    box = Outbox(tmp_path)
    for r in range(2):
        box.record(message(r), message(r).pack())
    box.log.write_bytes(b"?" + box.log.read_bytes())
    for use in (box.entries, lambda: Outbox(tmp_path).record(message(), message().pack())):
        with pytest.raises(vt.VitrailError, match=r"log\.jsonl:1"):
            use()


def test_what_came_in_is_recorded_without_numbers(tmp_path: Path) -> None:
    box = Outbox(tmp_path)
    box.received("round", {"stage": 1, "round": 4, "score": ["test"]}, 5192)
    box.refused("a message was refused\n  - tensor x: \x1b[2Jnot declared.")
    box.received("x" * 10**5, {"junk": "y" * 10**6}, 10**6)
    assert box.record(message(), message().pack()) == 1
    came, refused, junk, left = box.entries()
    assert (came.direction, came.stage, came.round, came.bytes) == ("in", 1, 4, 5192)
    assert came.words["score"] == ["test"]
    assert "not declared" in refused.refused
    assert left.number == 1
    assert len(box.log.read_bytes()) < 10_000 + 2 * len(json.dumps(left.words))
    assert junk.bytes == 10**6
    assert [f.name for f in box.folder.glob("*.safetensors")] == ["000001.safetensors"]
    header, rows = table(box.entries())
    assert all(len(row) == len(header) for row in rows)
    assert "\x1b" not in str(rows) + "".join(map(str, rows[1]))


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = SimpleNamespace(home=tmp_path, site="va")
    monkeypatch.setattr(enrolment, "load_kit", lambda _: kit)
    run = CliRunner()
    assert "Nothing has left va so far." in run.invoke(app, ["outbox", "va.kit"]).output
    box, m = Outbox(tmp_path), message(2)
    box.received("round", {"stage": 0, "round": 2}, 100)
    box.record(m, m.pack())
    told = run.invoke(app, ["outbox", "va.kit"]).output
    line = next(x for x in told.splitlines() if box.entries()[1].sha256[:12] in x)
    assert "1: 3" in line  # rounds are counted from 1
    assert "weighted/body.0.weight 22 x 32" in line
    assert str(len(m.pack())) in line
    assert " in " not in told.split("\n\n")[0]
    assert len([x for x in run.invoke(app, ["outbox", "va.kit", "--all"]).output.splitlines() if "round" in x]) == 3
    shown = run.invoke(app, ["outbox", "va.kit", "--show", "1"]).output
    first, last = (f"{float(v):.6f}".rstrip("0")[:6] for v in m.tensors["weighted/body.0.weight"].flatten()[[0, -1]])
    assert first in shown
    assert last in shown
    assert str(box.place(1)) in shown
    wrong = run.invoke(app, ["outbox", "va.kit", "--show", "8"])
    assert isinstance(wrong.exception, vt.VitrailError)
    assert "messages 1 to 1" in str(wrong.exception)


def test_short_tensors_are_printed_whole(tmp_path: Path) -> None:
    m = Message("prepare", {"fingerprint": "ab"}, {"rows": torch.arange(50)})
    text = numbers(m, tmp_path / "x")
    assert all(f" {i} " in text.replace("\n", " ").replace("[", " ").replace("]", " ") for i in range(50))
    assert "not shown" not in text
    assert "not shown" in numbers(Message("round", {}, {"x": torch.arange(200)}), tmp_path / "x")
