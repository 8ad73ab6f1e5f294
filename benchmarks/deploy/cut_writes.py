"""Writes cut off at every byte: does what is on the disk go on, or say what is missing?

The process "dies" after so many bytes and calls (write, fsync, rename, truncate), by a wrapper of these; then the same
folder is opened again. Four kinds of writing: a checkpoint over an older one, a message in a site's outbox, the journals
of a site and of a coordinator, and a whole run from its first file to its last. Each cut must end in one of two ways: the old state or the new one, whole,
and nothing that `vitrail verify` would call changed; or, of a run that was never begun, words.

A disk can also lose the end of a file that was written and closed. So every file of a run that was stopped is cut off
where it lies, at every byte (of larger files the first and the last 512 and one in 61), and the run is resumed: the
same models, or an error in words that names the file. Every file of a finished run likewise: verify names it.

    python benchmarks/deploy/cut_writes.py            every boundary of the first two and of a run's last file; of all its
                                               other writes one in 97 (some minutes)
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import vitrail as vt

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.crashes import Blade, Killed
from vitrail.core.errors import RoundForgotten
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.audit.verification import verify
from vitrail.deploy.protocol.message import Message
from vitrail.engine.rounds import Snapshot
from vitrail.runs.folder import Folder
from vitrail.storage.atomic_files import private_folder
from vitrail.storage.journal import AnswerJournal, DecisionRecord, QuestionLog, RecentJournals


def moment(number: int) -> Snapshot:
    values = torch.arange(6, dtype=torch.float32).reshape(2, 3) + number
    return Snapshot(0, number, {"w": values[0]}, {"v": values}, {}, torch.ones(2, dtype=torch.bool))


def cut_checkpoints(place: Path, every: int = 1) -> Counter[str]:
    """A second checkpoint is cut off: the run goes on from the first or from the second."""
    base, ends = place / "base", Counter[str]()
    folder = Folder(base, resume=False)
    (base / "run.json").write_text("{}")
    folder.checkpoint(("a", "b"), moment(1), {"history": [1]}, {})
    folder.close()
    for at in _cuts(lambda out: _checkpoint(out, 2), base, place, every):
        out = Path(shutil.copytree(base, place / "cut"))
        _kill(at, _checkpoint, out, 2)
        again = Folder(out, resume=True)
        back = again.restore(("a", "b"), lambda stage: moment(0))
        assert back is not None
        again.resumed(back[0])
        again.close()
        found, number = back[0], back[0].round
        assert number in (1, 2), number
        assert torch.equal(found.state["v"], moment(number).state["v"])
        assert torch.equal(found.coord["w"], moment(number).coord["w"])
        assert not verify(out).wrong, (at, verify(out).wrong)
        ends["the old one" if number == 1 else "the new one"] += 1
        shutil.rmtree(out)
    return ends


def _checkpoint(out: Path, number: int) -> None:
    folder = Folder(out, resume=True)
    try:
        folder.checkpoint(("a", "b"), moment(number), {"history": [number]}, {})
    finally:
        folder.close()


def cut_outbox(place: Path, every: int = 1, pen: Any = None) -> Counter[str]:
    """The second message is cut off while it is written down: it did not leave, and the third follows the first; or it
    stands there whole."""
    base, ends = place / "base", Counter[str]()
    _record(base, 1, pen)
    for at in _cuts(lambda out: _record(out, 2, pen), base, place, every):
        out = Path(shutil.copytree(base, place / "cut"))
        _kill(at, _record, out, 2, pen)
        known = len(Outbox(out).entries())
        assert known in (1, 2)
        _record(out, 3, pen)
        box = Outbox(out)
        assert [e.number for e in box.entries()] == list(range(1, known + 2))
        assert [box.show(e.number or 0).words["round"] for e in box.entries()] == [*range(1, known + 1), 3]
        wrong = [p for p in verify(out).wrong if pen is not None or "signed" not in p.what]
        assert not wrong, (at, wrong)
        ends["not written down, did not leave" if known == 1 else "written down"] += 1
        shutil.rmtree(out)
    return ends


def cut_journal(place: Path, every: int = 1) -> Counter[str]:
    """A site that answers and a coordinator that decides are cut off and started again: whatever was said before is
    said again, or is refused because it is too old."""
    numbers, ends = itertools.count(), Counter[str]()

    def talk(home: Path, heard: dict[str, object]) -> None:
        for r in range(4):
            try:
                folder = RecentJournals(home / "sums", 2).at((0, r, 0))
            except RoundForgotten:
                continue
            QuestionLog(home / "asked.jsonl").note(f"round {r}", b"question", 0)
            journal = AnswerJournal(folder, "sum")
            heard[f"answer {r}"] = journal.answer("halves", b"question", lambda: b"%d" % next(numbers))
            heard[f"list {r}"] = DecisionRecord(home / "lists.json").once(str(r), lambda: next(numbers))

    for at in _cuts(lambda home: talk(home, {}), private_folder(place / "base"), place, every):
        home, before, after = private_folder(place / "cut"), dict[str, object](), dict[str, object]()
        _kill(at, talk, home, before)
        talk(home, after)
        again = before.keys() & after.keys()
        assert {k: before[k] for k in again} == {k: after[k] for k in again}, at
        assert all(int(k.split()[1]) < 2 for k in before.keys() - again), at
        ends["the same again" if again else "nothing was said"] += 1
        shutil.rmtree(home)
    return ends


def _record(home: Path, number: int, pen: Any) -> None:
    said = Message("round", {"round": number}, {"w": torch.full((3,), float(number))})
    Outbox(home, pen=pen).record(said, said.pack())


def small() -> tuple[vt.Study, dict[str, pd.DataFrame]]:
    """Three sites of 30 rows, three rounds."""
    rng, sites = np.random.default_rng(1), {}
    for name in ("a", "b", "c"):
        x = rng.standard_normal((30, 2))
        sick = np.where(x[:, 0] - x[:, 1] + 0.4 * rng.standard_normal(30) > 0, "yes", "no")
        sites[name] = pd.DataFrame({"age": 50 + 10 * x[:, 0], "dose": x[:, 1], "sick": sick})
    changes = {"network": {"hidden": [3]}, "training": {"rounds": 3}, "screen": {"ask": False}}
    return vt.Study.infer(sites, target="sick").with_changes(**changes), sites


def cut_runs(place: Path, every: int = 1, last_only: bool = False) -> Counter[str]:
    """A whole run is cut off and resumed: the same models as of one that was not, or it was never begun."""
    study, sites = small()

    def run(out: Path, resume: bool = False) -> vt.Run:
        return vt.federate(study, sites, method="ditto", out=out, resume=resume, checkpoint_seconds=0)

    with Blade(None) as blade:
        whole = run(place / "whole")
    ends, replaced = Counter[str](), sorted(blade.places)
    for at in range(replaced[-2] if last_only else 0, blade.done + 1, every):
        out = place / "cut"
        _kill(at, run, out)
        try:
            back = run(out, resume=True)
        except vt.VitrailError as error:
            if error.title != "there is no run to resume":
                raise
            ends["never begun, told so"] += 1
        else:
            same = (torch.equal(back.models[s][k], v) for s in sites for k, v in whole.models[s].items())
            assert all(same), at
            assert not verify(out).wrong, (at, verify(out).wrong)
            ends["resumed, the same models"] += 1
        shutil.rmtree(out, ignore_errors=True)
    return ends


def cut_stopped(place: Path, every: int = 1) -> Counter[str]:
    """Each file of a run that was stopped after its second round is cut short, and the run resumed."""
    study, sites = small()

    def run(out: Path, **given: Any) -> vt.Run:
        return vt.federate(study, sites, method="ditto", out=out, checkpoint_seconds=0, **given)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise Killed

    whole, base, ends = run(place / "whole"), place / "base", Counter[str]()
    with contextlib.suppress(Killed):
        run(base, progress=stop)
    for name, at in _ends_of(base, every):
        out = _shortened(base, place / "cut", name, at)
        before = {f: f.read_bytes() for f in _files(out) if f.name != "events.jsonl"}
        try:
            back = run(out, resume=True)
        except vt.VitrailError as error:
            told = str(error)
            assert Path(name).name in told, (name, at, told)
            assert all(f.read_bytes() == data for f, data in before.items()), (name, at)  # nothing else is lost
            ends[f"{_sort(name)}: told"] += 1
        else:
            same = (torch.equal(back.models[s][k], v) for s in sites for k, v in whole.models[s].items())
            assert all(same), (name, at)
            assert not verify(out).wrong, (name, at, verify(out).wrong)
            ends[f"{_sort(name)}: the same models"] += 1
        shutil.rmtree(out)
    return ends


def cut_finished(place: Path, every: int = 1) -> Counter[str]:
    """Each file of a finished run is cut short: verify names it, or says that the run is not closed."""
    study, sites = small()
    vt.federate(study, sites, method="ditto", out=place / "base")
    ends = Counter[str]()
    for name, at in _ends_of(place / "base", every):
        out = _shortened(place / "base", place / "cut", name, at)
        found = verify(out)
        told = [f"{p.where} {p.what}" for p in found.wrong]
        log = name == "events.jsonl" and any("not closed" in note for note in found.notes)
        assert log or any(name in words for words in told), (name, at, told)
        ends[f"{_sort(name)}: told"] += 1
        shutil.rmtree(out)
    return ends


NEAR, AMONG = 512, 61  # of a larger file all bytes at both ends, and one in so many between them


def _ends_of(base: Path, every: int) -> Iterator[tuple[str, int]]:
    """File and length, of all lengths that it may be cut to; nothing of locks, which are empty."""
    for file in _files(base):
        size = file.stat().st_size
        lengths = [n for n in range(size) if n < NEAR or n >= size - NEAR or n % AMONG == 0]
        # with some left out, the last byte is among those that stay
        yield from ((file.relative_to(base).as_posix(), n) for n in lengths[::-every])


def _files(base: Path) -> list[Path]:
    return sorted(f for f in base.rglob("*") if f.is_file() and f.name != ".lock")


def _shortened(base: Path, out: Path, name: str, at: int) -> Path:
    shutil.copytree(base, out)
    os.truncate(out / name, at)
    return out


def _sort(name: str) -> str:
    """What a file is, whosever it is."""
    kind = Path(name).name
    for start, word in (("state-", "a site's state"), ("paths-", "facts"), ("0-", "the coordinator's tensors")):
        kind = word if kind.startswith(start) else kind
    return kind


def _cuts(act: Callable[[Path], object], base: Path, place: Path, every: int) -> range:
    """All places at which this can be cut off."""
    out = Path(shutil.copytree(base, place / "count"))
    with Blade(None) as blade:
        act(out)
    shutil.rmtree(out)
    return range(0, blade.done + 1, every)


def _kill(at: int, act: Callable[..., object], *given: Any) -> None:
    with Blade(at), contextlib.suppress(Killed):
        act(*given)


def main() -> None:
    given = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    given.add_argument("--every", type=int, default=1, help="of the last file and of small writes, one cut in so many")
    given.add_argument("--rest", type=int, default=97, help="of all writes of a run, one cut in so many")
    given.add_argument("--only", default="", help="kinds with this in their name")
    every = given.parse_args()
    jobs: dict[str, Callable[[Path], Counter[str]]] = {
        "a checkpoint over an older one": lambda place: cut_checkpoints(place, every.every),
        "a message in an outbox": lambda place: cut_outbox(place, every.every),
        "answers and decisions": lambda place: cut_journal(place, every.every),
        "a run, its last file": lambda place: cut_runs(place, every.every, last_only=True),
        "a run, all its writes": lambda place: cut_runs(place, every.rest),
        "a stopped run, each file": lambda place: cut_stopped(place, every.every),
        "a finished run, each file": lambda place: cut_finished(place, every.every),
    }
    print(f"{'what is written':32} {'cuts':>6} {'seconds':>8}  how it ended")
    for name, job in {k: v for k, v in jobs.items() if every.only in k}.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            ends = job(Path(place))
        told = ", ".join(f"{what}: {n}" for what, n in ends.items())
        print(f"{name:32} {sum(ends.values()):6} {time.monotonic() - began:8.0f}  {told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
