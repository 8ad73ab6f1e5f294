"""Files that a stranger may send: pipes, devices, bombs, absurd numbers. Every command refuses them in words, soon, and
with little memory. Each case runs in a process of its own, which a timer ends."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.small import opposed_tables
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.certificates import StudyAuthority
from vitrail.deploy.identity.coordinator_folder import invitation_of
from vitrail.deploy.identity.invitation import sign_invitation
from vitrail.storage import untrusted_files
from vitrail.study.model import Study

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pipes, devices and timers of Linux")
SECONDS, MEMORY = 10, 1 << 30  # this machine may be busy: alone each takes less than 2 s, and hardly any memory


def outcome(*command: Any) -> str:
    """What the command says, in a child with a timer and little memory; "killed" where the timer ended it."""
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        done = CliRunner().invoke(app, [str(part) for part in command])
        error = done.exception
        words = f"traceback {type(error).__name__}: {error}"
        if isinstance(error, VitrailError) and error.problems:
            words = f"refused {error}"
        elif isinstance(error, SystemExit) or error is None:
            words = f"exit {done.exit_code} {done.output}"
        os.write(start, words[:3000].encode())
        os._exit(0)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said or "killed"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with its coordinator's folder, a kit, a table; and things that are no files of ours."""
    place = tmp_path_factory.mktemp("strange")
    sites = opposed_tables({"a": 40, "b": 40, "c": 40})
    (place / "data").mkdir()
    for name, frame in sites.items():
        frame.to_csv(place / "data" / f"{name}.csv", index=False)
    Study.infer(sites, "sick").save(place / "study.toml")
    folder = enrolment.invite(place / "study.toml", list(sites), "localhost:8102")
    enrolment.request(Path(shutil.copy(invitation_of(folder, "a"), place)), place / "a.kit", place / "a.home")
    os.mkfifo(place / "pipe")
    (place / "folder").mkdir()
    with (place / "endless").open("wb") as file:
        file.truncate(1 << 40)  # on the disk it takes nothing
    (place / "deep").write_text("[" * 200_000)
    (place / "binary").write_bytes(np.random.default_rng(1).bytes(5000))
    (place / "zero").symlink_to("/dev/zero")
    return place


STRANGE = ("pipe", "zero", "folder", "endless", "deep", "binary")
COMMANDS: dict[str, Callable[[Path, Path], list[Any]]] = {
    "request": lambda at, given: ["request", given],
    "approve": lambda at, given: ["approve", given, "--study", at / "study.toml", "--yes"],
    "join, the approval": lambda at, given: ["join", at / "a.kit", "--data", at / "data/a.csv", "--approval", given],
    "join, the kit": lambda at, given: ["join", given, "--data", at / "data/a.csv"],
    "check, the study": lambda at, given: ["check", given, at / "data/a.csv"],
    "check, the data": lambda at, given: ["check", at / "study.toml", given],
    "check, the pooled": lambda at, given: ["check", at / "study.toml", at / "data/a.csv", "--pooled", given],
    "run": lambda at, given: ["run", given, "--data", at / "data", "--out", at / "out"],
    "verify": lambda at, given: ["verify", at / "a.kit", "--authority", given],
    "predict": lambda at, given: ["predict", given, at / "data/a.csv"],
    "report": lambda at, given: ["report", given],
    "doctor": lambda at, given: ["doctor", given],
    "outbox": lambda at, given: ["outbox", given],
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_no_file_of_ours_is_refused_in_words(place: Path, strange: str) -> None:
    for name, command in COMMANDS.items():
        said = outcome(*command(place, place / strange))
        assert said.startswith("refused"), (name, said)


def test_the_control_a_pipe_is_waited_for_where_nobody_looks(place: Path) -> None:
    """Without the look at what a file is, the same command waits for ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitrail.deploy.identity.documents.read_text", lambda path, most: path.read_text())
        patch.setitem(globals(), "SECONDS", 3)
        assert outcome("request", place / "pipe") == "killed"


def test_run_folders_with_strange_files(place: Path, tmp_path: Path) -> None:
    for strange in ("pipe", "zero", "endless", "deep", "binary"):
        (tmp_path / strange).mkdir()
        (tmp_path / strange / "run.json").symlink_to(place / strange)
        for command in (["report"], ["verify"], ["explain", "--data", place / "data"]):
            said = outcome(command[0], tmp_path / strange, *command[1:])
            assert said.startswith("refused"), (strange, command, said)


def test_a_few_bytes_that_unpack_to_very_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr("vitrail.data.readers.delimited_text.MOST_AT_ONCE", 1 << 20)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"a" * (2 << 20)))
    assert "it is longer than 1 MiB when unpacked" in outcome("check", place / "study.toml", tmp_path / "bomb.csv.gz")


STUDY = """
{top}
[target]
column = "sick"
classes = ["no", "yes"]
[network]
{network}
[training]
{training}
[features.age]
kind = "numeric"
{end}
"""
ABSURD = {
    "rounds": ({"training": "rounds = 1_000_000_000_000"}, "training.rounds: expected at most 1000000"),
    "epochs": ({"training": "epochs = 9223372036854775807"}, "training.epochs: expected at most"),
    "lr": ({"training": "lr = 1e308"}, "training.lr: expected at most"),
    "lr, no number": ({"training": "lr = nan"}, "training.lr: expected a finite number"),
    "weight decay": ({"training": "weight_decay = 1e308"}, "training.weight_decay: expected at most"),
    "one layer": ({"network": "hidden = [1_000_000_000]"}, "about 3000000000 weights"),
    "layers": ({"network": "hidden = [100_000, 100_000, 100_000]"}, "at most 250000000 are allowed"),
    "many layers": ({"network": f"hidden = [{'8,' * 20_000}]"}, "expected at most 64, got 20000"),
    "seeds": ({"top": f"seeds = [{'1,' * 1_000_000}]"}, "values in lists, and at most"),
    "a seed": ({"top": f"seeds = [{10**40}]"}, "at most 64 bits"),
    "name": ({"top": f'name = "{"a" * 100_000}"'}, "expected at most 500 characters"),
    "features": ({"end": "".join(f'[features.f{i}]\nkind="numeric"\n' for i in range(150_000))}, "150004 sections"),
    "keys": ({"end": "".join(f"k{i} = 1\n" for i in range(20_000))}, "expected at most 1000 keys"),
    "long key": ({"end": f"[{'k' * 5_000_000}]"}, "a line of it has 5000002 characters"),
    "sections in sections": ({"end": f"[{'.'.join('a' * 5_000)}]"}, "nested too deeply"),
    "lists in lists": ({"end": f"x = {'[' * 5000}{']' * 5000}"}, "is not TOML"),
    "pictures": ({"top": "[images]\nsize = [1_000_000, 1_000_000]"}, "from 8 to 1024 pixels"),
    "a method's number": ({"end": '[method]\nname = "fedprox"\nmu = inf'}, "method.mu"),
    "no number": ({"end": '[method]\nname = "fedprox"\nmu = nan'}, "method.mu"),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_studies_are_refused_before_anything_is_made_of_them(name: str, place: Path, tmp_path: Path) -> None:
    given, words = ABSURD[name]
    parts = {"top": "", "network": "", "training": "", "end": "", **given}
    file = tmp_path / "study.toml"
    text = STUDY.format(**parts)
    file.write_text(text.replace('[features.age]\nkind = "numeric"', "") if name == "pictures" else text)
    for command in (["check", file, place / "data/a.csv"], ["invite", file, "--site", "a", "--address", "h:1"]):
        began = time.monotonic()
        said = outcome(*command)
        assert said.startswith("refused"), said
        assert words in said, said
        assert time.monotonic() - began < SECONDS
    assert not (tmp_path / "study.coordinator").exists()


def test_large_but_honest_studies_are_not_refused(tmp_path: Path) -> None:
    """A wide table, wide layers, large pictures, many categories."""
    wide = "".join(f'[features.f{i}]\nkind="numeric"\n' for i in range(20_000))
    for parts in (
        {"end": wide, "network": "hidden = [1024, 256]"},
        {"network": "hidden = [4096, 4096, 4096]", "training": "rounds = 100_000\nbatch = 1_000_000"},
        {"end": f'[features.icd]\nkind="categorical"\ncategories={json.dumps([f"c{i}" for i in range(10_000)])}'},
    ):  # fmt: skip
        file = tmp_path / "study.toml"
        file.write_text(STUDY.format(**{"top": "", "network": "", "training": "", "end": "", **parts}))
        assert Study.load(file).target.column == "sick"
    for kind, size in (("resnet18", 1024), ("cnn", 256)):
        said = {"target": {"column": "sick", "classes": ["no", "yes"]}, "images": {"size": [size, size]}}
        assert Study.parse({**said, "network": {"kind": kind}}).images is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("expected at most 10000 sites", {"sites": ["a"] * 200_000}),
        ("a seed below 2^63", {"seed": 10**30}),
        ("a seed below 2^63", {"seed": -1}),
        ("a short name", {"site": "a" * 100_000, "identity": "x"}),
        ("no port from 1 to 65535", {"address": "h:" + "9" * 6000}),
        ("sites cannot connect to", {"address": "a." * 50_000 + "b:1"}),
        ("are allowed", {"study": "x = [" + "1," * 400_000 + "]"}),
        ("cannot be read as TOML", {"study": "[" * 100_000}),
        ("no valid certificate", {"authority": "-----BEGIN CERTIFICATE-----\n" + "A" * 1_000_000}),
        ("wrong type: versions", {"versions": "x"}),
    ],
)
def test_absurd_invitations(words: str, said: dict[str, Any], place: Path, tmp_path: Path) -> None:
    """Signed by their authority, which may be the stranger's own."""
    folder = place / "study.coordinator"
    good = json.loads(invitation_of(folder, "b").read_text())
    (tmp_path / "b.invitation").write_text(json.dumps(sign_invitation({**good, **said}, StudyAuthority(folder))))
    refused = outcome("request", tmp_path / "b.invitation")
    assert refused.startswith("refused"), refused
    assert words in refused
    assert not list(tmp_path.glob("*.kit"))


def test_invitations_changed_at_random(place: Path, tmp_path: Path) -> None:
    """A seeded handful of changes to values of every kind; each is taken or refused in words."""
    draw, folder = np.random.default_rng(7), place / "study.coordinator"
    good = json.loads(invitation_of(folder, "c").read_text())
    junk = [
        None,
        -1,
        1e308,
        float("nan"),
        "",
        "\ud800",
        "\0",
        "x" * 5000,
        [],
        [[]],
        {},
        {"": {}},
        True,
        2**80,
        ["c"] * 3,
    ]
    signer = StudyAuthority(folder)
    for number in range(60):
        said = dict(good)
        for _ in range(int(draw.integers(1, 3))):
            key = str(draw.choice([*good, "new"]))
            said[key] = junk[int(draw.integers(len(junk)))]
        file = tmp_path / f"{number}.invitation"
        file.write_text(json.dumps(sign_invitation(said, signer)))
        with contextlib.suppress(VitrailError):
            enrolment.request(file, tmp_path / f"{number}.kit")


def test_files_are_read_no_further_than_they_may_be(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert untrusted_files.read_regular(tmp_path / "x", 5) == b"12345"
    for path, most, words in (
        (tmp_path / "x", 4, "longer than"),
        (tmp_path, 10, "a folder"),
        (Path("/dev/null"), 10, "not a regular file"),
        (Path("/proc/self/status"), 100, "grew"),
    ):
        with pytest.raises(OSError, match=words):
            untrusted_files.read_regular(path, most)
