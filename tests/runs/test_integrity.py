"""A run folder can be trusted: what was changed, taken away or put in is told, and what is damaged gets words."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import vitrail as vt
from tests.support.scripts import load_script
from tests.support.small import opposed_tables
from vitrail.cli import app
from vitrail.deploy.audit.verification import verify
from vitrail.report.pages.builder import write_report
from vitrail.runs.folder import Folder
from vitrail.runs.integrity import LOG, MARKS
from vitrail.storage.atomic_files import append, write_atomically
from vitrail.storage.hash_chain import last_digest, line_of, read_chain

run_cli = CliRunner().invoke


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its page, the tables and the study."""
    folder = tmp_path_factory.mktemp("sealed")
    study().save(folder / "study.toml")
    (folder / "data").mkdir()
    for name, frame in tables().items():
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    run = vt.federate(study(), tables(), out=folder / "run", pseudonyms={"north": "site-7"})
    write_report(run, folder / "run" / "report.html")
    half(folder / "half")
    vt.compare(study(), tables(), ["local", "fedavg"], [1], folds=2, out=folder / "compared")
    return folder


def tables() -> dict[str, pd.DataFrame]:
    return opposed_tables({"middle": 40, "north": 40, "south": 40})  # as files are read


def study() -> vt.Study:
    changes = {"network": {"hidden": [4]}, "training": {"rounds": 3}, "method": {"name": "ditto"}, "seeds": [1]}
    return vt.Study.infer(tables(), target="sick").with_changes(**changes)


class Killed(BaseException):
    """Nobody catches it."""


def half(out: Path, **given: Any) -> None:
    """A run that is killed after its second round."""

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        vt.federate(study(), tables(), out=out, checkpoint_seconds=0, progress=stop, **given)


@pytest.fixture
def copy(place: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place, tmp_path / "copy"))


def said(found: Any) -> list[str]:
    return [f"{p.where}: {p.what}" for p in found.wrong]


def flip(file: Path) -> None:
    """One bit of its last byte but one."""
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def relog(run: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    (run / LOG).write_bytes(b"".join(change((run / LOG).read_bytes().splitlines(keepends=True))))


def test_a_run_is_as_it_was_written(place: Path) -> None:
    found = verify(place / "run")
    assert not found.wrong
    assert found.files >= 14  # 5 tables, study, run, screen, page, shared, 3 x (model, encoder, marks), a pseudonym
    assert any("not signed" in note for note in found.notes)
    told = run_cli(app, ["verify", str(place / "run")])
    assert told.exit_code == 0
    assert found.links[-1].digest in told.output


def test_a_run_that_was_stopped_is_verified_as_far_as_it_is_sealed(place: Path, copy: Path) -> None:
    found = verify(place / "half")
    assert not found.wrong
    assert any("not closed" in note for note in found.notes)
    cut(copy / "half" / "checkpoint.json")
    (told,) = said(verify(copy / "half"))
    assert told.startswith("checkpoint.json: it was changed, or the run was stopped")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a score": (lambda run: flip(run / "scores.csv"), "scores.csv: it was changed."),
    "a model": (lambda run: flip(run / "sites/north/model.safetensors"), "sites/north/model.safetensors: it was chan"),
    "the page": (lambda run: flip(run / "report.html"), "report.html: it was changed."),
    "the study": (lambda run: cut(run / "study.toml"), "study.toml: it was changed."),
    "hashes": (lambda run: flip(run / "sites/north" / MARKS), f"sites/north/{MARKS}: it was changed."),
    "no ledger": (lambda run: (run / "ledger.csv").unlink(), "ledger.csv: it is missing."),
    "no model": (lambda run: (run / "sites/south/model.safetensors").unlink(), "south/model.safetensors: it is m"),
    "no sites": (lambda run: shutil.rmtree(run / "sites"), "sites/north: the folder is missing"),
    "a file more": (lambda run: (run / "notes.txt").write_text("x"), "notes.txt: it was added"),
    "one more at a site": (lambda run: (run / "sites/north/x").write_text("x"), "sites/north/x: it was added"),
    "a link": (lambda run: (run / "notes.txt").symlink_to("/etc/passwd"), "notes.txt: it was added"),
    "a site more": (lambda run: shutil.copytree(run / "sites/north", run / "sites/west"), "west/marks.json: it was"),
    "a line": (lambda run: relog(run, lambda x: [x[0].replace(b"ditto", b"fedxx"), *x[1:]]), f"{LOG}, line 2: it does"),
    "a line less": (lambda run: relog(run, lambda x: [x[0], *x[2:]]), f"{LOG}, line 2: it does not follow"),
    "two swapped": (lambda run: relog(run, lambda x: [x[1], x[0], *x[2:]]), f"{LOG}, line 1: it does not follow"),
    "no line of ours": (lambda run: relog(run, lambda x: [b"hello\n", *x[1:]]), f"{LOG}, line 1: it is no"),
    "an old line": (lambda run: relog(run, lambda x: [*x, b'{"event": "x"}\n']), "not linked to those before"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_is_told(what: str, copy: Path) -> None:
    change, words = CHANGES[what]
    change(copy / "run")
    told = run_cli(app, ["verify", str(copy / "run")])
    assert told.exit_code == 1
    assert words in told.output


def test_a_file_outside_is_not_read(copy: Path) -> None:
    run = copy / "run"
    text = (run / LOG).read_bytes()
    append(run / LOG, line_of({"event": "added", "files": {"../half/study.toml": "0" * 64}}, last_digest(text)))
    assert "../half/study.toml: the log names a file outside of the folder." in said(verify(run))


def test_hashes_tell_nothing_of_what_is_private(place: Path) -> None:
    """A pseudonym could be guessed, and the guess held against its hash."""
    from vitrail.storage.hash_chain import digest_of

    open_to_all = [f for f in (place / "run").rglob("*") if f.is_file() and "sites" not in f.relative_to(place).parts]
    assert (place / "run/sites/north/pseudonym.txt").exists()
    private = [f for f in (place / "run/sites").rglob("*") if f.is_file() and f.name != MARKS]
    marks = {digest_of(f.read_bytes()).encode() for f in private}
    assert not [f for f in open_to_all if any(mark in f.read_bytes() for mark in marks)]
    salts = [json.loads(f.read_text())["salt"] for f in (place / "run/sites").glob(f"*/{MARKS}")]
    assert len({*salts}) == 3
    assert all(len(salt) == 32 for salt in salts)


def test_lines_hold_on_to_each_other() -> None:
    lines, before = [], ""
    for i in range(4):
        lines.append(line_of({"event": i}, before))
        before = last_digest(b"".join(lines))
    links, wrong = read_chain(b"".join(lines) + b'{"half')
    assert [x.entry["event"] for x in links] == [0, 1, 2, 3]
    assert not wrong
    for i in range(3):
        assert i + 2 in read_chain(b"".join([*lines[:i], lines[i].replace(b"event", b"Event"), *lines[i + 1 :]]))[1]


# damaged and foreign files: words, never a traceback


def other(copy: Path) -> None:
    """The model of another study's network in the place of this one's, where there are no hashes to tell."""
    wide = study().with_changes(network={"hidden": [6]}, screen={"ask": False})
    run = vt.federate(wide, tables(), rounds=1)
    run.save(copy / "other")
    shutil.copy(copy / "other/sites/north/model.safetensors", copy / "run/sites/north/model.safetensors")
    (copy / "run" / LOG).unlink()


REPORT, PREDICT = ["report", "{run}"], ["predict", "{run}", "{data}/north.csv", "--site", "north"]
RESUME = ["run", "{study}", "--data", "{data}", "--out", "{half}", "--resume"]
COMPARE = ["compare", "{study}", "--data", "{data}", "--methods", "local,fedavg", "--seeds", "1", "--folds", "2"]
COMPARE += ["--out", "{compared}", "--resume"]
PAGE = ["report", "{compared}"]
LOOK = ["look", "{run}", "--site", "north", "--data", "{data}/north.csv"]
EVERY = {"report": REPORT, "predict": PREDICT, "look": LOOK, "resume": RESUME, "verify": ["verify", "{run}"]}
EVERY |= {"compare": COMPARE, "page": PAGE}
DAMAGE: list[tuple[str, list[str], Callable[[Path], object], str]] = [
    (
        "cut model",
        ["report", "predict", "look", "verify"],
        lambda c: cut(c / "run/sites/north/model.safetensors"),
        "model.safetensors",
    ),
    ("cut encoder", ["predict", "look"], lambda c: cut(c / "run/sites/north/encoder.json"), "encoder.json"),
    (
        "edited tensors",
        ["predict", "report"],
        lambda c: flip(c / "run/sites/north/model.safetensors"),
        "changed or damaged after the run",
    ),
    (
        "edited shared",
        ["report"],
        lambda c: flip(c / "run/coordinator/shared.safetensors"),
        "changed or damaged after the run",
    ),
    ("another study", ["predict"], other, "of another study"),
    ("no sites", ["predict"], lambda c: shutil.rmtree(c / "run/sites"), "not in the run folder"),
    ("no scores", ["report", "predict"], lambda c: (c / "run/scores.csv").unlink(), "scores.csv: it is missing"),
    ("cut scores", ["report"], lambda c: (c / "run/scores.csv").write_text("site,va"), "scores.csv: it is cut short"),
    ("no study", ["report"], lambda c: (c / "run/study.toml").unlink(), "study.toml"),
    ("no json", ["report", "predict"], lambda c: (c / "run/run.json").write_text("[1]"), "expected"),
    ("half json", ["report"], lambda c: (c / "run/run.json").write_text('{"finished": true}'), "it lacks sites"),
    ("cut screen", ["report"], lambda c: cut(c / "run/screen.json"), "screen.json: it is cut short"),
    ("cut checkpoint", ["resume"], lambda c: cut(c / "half/checkpoint.json"), "checkpoint.json: it is cut short"),
    ("no state", ["resume"], lambda c: shutil.rmtree(c / "half/sites"), "it is missing"),
    (
        "edited state",
        ["resume"],
        lambda c: flip(next((c / "half/sites").glob("*/state*"))),
        "after the checkpoint was written",
    ),
    (
        "cut tensors",
        ["resume"],
        lambda c: cut(next((c / "half/coordinator").glob("0*"))),
        "after the checkpoint was written",
    ),
    ("cut info", ["resume"], lambda c: cut(c / "half/run.json"), "run.json: it is cut short"),
    ("screening cut", ["resume"], lambda c: cut(c / "half/screen.json"), "screen.json: it is cut short"),
    (
        "cut part",
        ["compare", "page"],
        lambda c: cut(c / "compared/parts/local-1.json"),
        "it is cut",
    ),
    (
        "cut about",
        ["compare", "page"],
        lambda c: cut(c / "compared/run.json"),
        "run.json: it is cut short",
    ),
    (
        "another part",
        ["compare"],
        lambda c: (c / "compared/parts/local-1.json").write_text("{}"),
        "it was changed, or another release wrote it",
    ),
    ("not a run", ["verify"], lambda c: (c / "run" / LOG).unlink(), "nothing to verify"),
]


@pytest.mark.parametrize(("what", "verb"), [(d[0], v) for d in DAMAGE for v in d[1]])
def test_damage_is_told_in_words(what: str, verb: str, copy: Path) -> None:
    _, _, damage, words = next(d for d in DAMAGE if d[0] == what)
    damage(copy)
    before = {f: f.read_bytes() for f in copy.rglob("*") if f.is_file() and f.name not in (".lock", LOG)}
    places = {k: str(copy / k) for k in ("run", "half", "compared", "data")} | {"study": str(copy / "study.toml")}
    told = run_cli(app, [word.format(**places) for word in EVERY[verb]])
    if verb == "verify" and isinstance(told.exception, SystemExit):  # it says what it found
        assert words in told.output
        return
    assert isinstance(told.exception, vt.VitrailError), told.exception
    assert words in str(told.exception)
    assert {f: f.read_bytes() for f in before} == before  # nothing already written is lost


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_told_and_the_old_file_stays(number: int, tmp_path: Path, monkeypatch) -> None:
    file, log = tmp_path / "scores.csv", tmp_path / LOG
    write_atomically(file, "old")
    append(log, b"one\n")
    real = os.write

    def full(opened: int, data: bytes) -> int:
        if len(data) < 3:
            raise OSError(number, os.strerror(number))
        return real(opened, data[:2])  # a disk takes what it can

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "fsync", lambda file: full(file, b""))
    for act in (lambda: write_atomically(file, "new"), lambda: append(log, b"two\n")):
        with pytest.raises(vt.VitrailError, match=os.strerror(number)) as caught:
            act()
        assert "intact" in caught.value.problems[0].hint
    monkeypatch.undo()
    assert file.read_text() == "old"
    assert log.read_bytes() == b"one\n"
    assert {f.name for f in tmp_path.iterdir()} == {"scores.csv", LOG}  # what there was of it takes no room


def test_a_line_that_was_cut_off_is_taken_away(copy: Path) -> None:
    with (copy / "half" / LOG).open("ab") as log:
        log.write(b'{"time": "2026')
    folder = Folder(copy / "half", resume=True)
    folder.log("resumed")
    folder.close()
    links, wrong = read_chain((copy / "half" / LOG).read_bytes())
    assert not wrong
    assert links[-1].entry["event"] == "resumed"


# writes cut off: all boundaries in benchmarks/deploy/cut_writes.py


def test_a_checkpoint_cut_off_at_any_byte(tmp_path: Path) -> None:
    ends = load_script("cut_writes").cut_checkpoints(tmp_path, every=41)
    assert min(ends["the old one"], ends["the new one"]) > 3


def test_a_message_cut_off_at_any_byte(tmp_path: Path) -> None:
    ends = load_script("cut_writes").cut_outbox(tmp_path, every=17)
    assert ends["not written down, did not leave"] > 10


def test_a_run_cut_off_at_its_end(tmp_path: Path) -> None:
    ends = load_script("cut_writes").cut_runs(tmp_path, every=400, last_only=True)
    assert ends["resumed, the same models"] > 3
    assert not ends["never begun, told so"]


def test_a_stopped_run_resumes_or_tells_which_file_was_cut_short(tmp_path: Path) -> None:
    ends = load_script("cut_writes").cut_stopped(tmp_path, every=900)
    for name in ("checkpoint.json", "run.json", "a site's state", "facts", "the coordinator's tensors"):
        assert ends[f"{name}: told"], name
        assert not ends[f"{name}: the same models"], name
    assert ends["events.jsonl: the same models"]


def test_verify_names_any_file_that_was_cut_short(tmp_path: Path) -> None:
    ends = load_script("cut_writes").cut_finished(tmp_path, every=300)
    assert len(ends) > 8
