"""The command line as a person uses it, reading what it prints; mostly in this process, once in one of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.command import vitrail
from vitrail.cli import VERBS, app
from vitrail.cli.options import free_folder, parse_away, parse_methods, parse_settings
from vitrail.runs.plan import with_facts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file per hospital, one file with all of them, and a drafted study."""
    root = tmp_path_factory.mktemp("cli")
    (root / "data").mkdir()
    sites = vt.datasets.heart_disease()
    for name, frame in sites.items():
        german = {"sep": ";", "decimal": ","} if name == "va" else {}
        frame.to_csv(root / "data" / f"{name}.csv", index=False, **german)
    sites["va"].to_parquet(root / "va.parquet")
    pd.concat([f.assign(hospital=n) for n, f in sites.items()]).to_csv(root / "all.csv", index=False)
    done = vitrail("init", root / "data", "--target", "disease", "--out", root / "study.toml")
    assert done.returncode == 0, done.stderr
    assert "13 features, 4 sites" in done.stdout
    return root


def test_run_from_a_folder_or_from_one_file(place) -> None:
    quick = ("--rounds", 2, "--method", "fedprox", "--set", "mu=0.5", "--seed", 7)
    done = vitrail("run", place / "study.toml", "--data", place / "data", "--out", place / "r1", *quick)
    assert done.returncode == 0, done.stderr
    assert "switzerland" in done.stdout
    run = vt.Run.load(place / "r1")
    assert (run.method, run.seed, run.study.training.rounds) == (vt.methods.FedProx(mu=0.5), 7, 2)
    assert (place / "r1" / "report.html").stat().st_size > 10_000
    again = vitrail("run", place / "study.toml", "--data", place / "data", "--out", place / "r1", *quick)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert "Traceback" not in again.stderr
    done = vitrail(
        "init",
        place / "all.csv",
        "--target",
        "disease",
        "--site-column",
        "hospital",
        "--out",
        place / "one.toml",
    )
    assert done.returncode == 0, done.stderr
    done = vitrail("run", place / "one.toml", "--data", place / "all.csv", "--out", place / "r2", *quick)
    assert done.returncode == 0, done.stderr
    assert vt.Run.load(place / "r2").scores().value.tolist() == run.scores().value.tolist()


@pytest.mark.parametrize(
    ("means", "words"),
    [(vt.facts.SHARE, "Whom each site learned from"), (vt.facts.TRUST, "How far each site trusts the others")],
)
def test_run_tells_whom_a_site_learned_from_by_what_facts_mean(means: str, words: str, place: Path) -> None:
    study = vt.Study.load(place / "study.toml")
    name, out = with_facts(study, means).split(" or ")[0], place / f"facts of {words}"
    given = ["--data", place / "data", "--out", out, "--rounds", 2, "--method", name]
    done = vitrail("run", place / "study.toml", *given)
    assert done.returncode == 0, done.stderr
    assert 'sum = "plain"' in done.stdout + done.stderr, "the draft is masked, and such a method reads each report"
    run = vt.Run.load(out)
    assert run.fact(means) is not None
    told = done.stdout.split(words)[1].splitlines()
    assert told[2].split() == ["user", *run.sites]
    shown = run.trust().mean if means == vt.facts.SHARE else run.trust().final
    for row, user, values in zip(told[4:], run.sites, shown, strict=False):
        assert row.split() == [user, *(f"{v:.3f}" for v in values)]


def test_resume_of_a_finished_run_shows_it(place) -> None:
    words = ("run", place / "study.toml", "--data", place / "data", "--out", place / "r3", "--rounds", 2)
    first, second = vitrail(*words), vitrail(*words, "--resume")
    assert second.returncode == 0, second.stderr
    assert first.stdout == second.stdout


def test_compare_writes_table_and_page(place) -> None:
    out = place / "c1"
    words = (
        "compare",
        place / "study.toml",
        "--data",
        place / "data",
        "--methods",
        "local,fedavg",
        "--seeds",
        2,
    )
    done = vitrail(*words, "--rounds", 2, "--out", out, "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert "Is joining worth it?" in done.stdout
    tidy = pd.read_csv(out / "comparison.csv")
    assert list(tidy.columns)[:6] == ["method", "seed", "site", "split", "metric", "value"]
    assert set(tidy.columns[6:]) == {"chance", "few_rows"}
    assert set(tidy.method) == {"local", "fedavg"}
    assert tidy.seed.nunique() == 2
    (out / "report.html").unlink()
    assert vitrail("report", out).returncode == 0
    assert "Is joining worth it?" in (out / "report.html").read_text()


def test_check_tells_by_exit_code(place) -> None:
    heart = vt.datasets.packaged("heart_disease.toml")
    clean = vt.datasets.heart_disease()["cleveland"].dropna()
    clean.to_csv(place / "clean.csv", index=False)
    fine = vitrail("check", heart, place / "clean.csv")
    assert fine.returncode == 0, fine.stdout
    clean.assign(chol=clean.chol / 38.67).to_csv(place / "mmol.csv", index=False)
    found = vitrail("check", heart, place / "mmol.csv", "--json")
    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert any(f["kind"] == "unit_mixup" and f["column"] == "chol" for f in report["findings"])
    assert "mmol/L" in vitrail("check", heart, place / "mmol.csv").stdout
    assert vitrail("check", heart, place / "nowhere.csv").returncode == 2
    assert vitrail("check", place / "nowhere.toml", place / "clean.csv").returncode == 2
    assert vitrail("check", heart, place / "va.parquet").returncode == 1


def test_screen(place, tmp_path) -> None:
    """What is likely wrong comes first, and in the exit code; a mistake of who asks is another code."""
    done = vitrail("screen", place / "study.toml", "--data", place / "data", "--out", tmp_path / "found")
    told = vt.screen_sites(vt.Study.load(place / "study.toml"), vt.datasets.heart_disease())
    assert done.returncode == bool(told.wrong), done.stderr
    assert done.stdout.startswith(repr(told).splitlines()[0])
    assert "Differs, and may be real" in done.stdout
    for name, rows in ((n, len(f)) for n, f in vt.datasets.heart_disease().items()):
        assert re.search(rf"^{name} +{rows} +\d+ +\d+ +yes$", done.stdout, re.MULTILINE)
    kept = json.loads((tmp_path / "found" / "screen.json").read_text())
    assert [f["text"] for f in kept["findings"]] == [f.text for f in told.findings]
    assert "Whose data does not fit" in (tmp_path / "found" / "screen.html").read_text()
    (tmp_path / "data").mkdir()
    for i in range(4):
        rng = np.random.default_rng(i)
        table = pd.DataFrame({"age": rng.normal(60, 9, 80).round(), "y": rng.integers(0, 2, 80)})
        table.to_csv(tmp_path / "data" / f"s{i}.csv", index=False)
    drafted = vitrail("init", tmp_path / "data", "--target", "y", "--out", tmp_path / "study.toml")
    assert drafted.returncode == 0, drafted.stderr
    calm = vitrail("screen", tmp_path / "study.toml", "--data", tmp_path / "data")
    assert (calm.returncode, calm.stdout.splitlines()[0][:24]) == (0, "Nothing is likely wrong:"), calm.stderr
    table.assign(age=table.age / 365.25).to_csv(tmp_path / "data" / "s3.csv", index=False)
    odd = vitrail("screen", tmp_path / "study.toml", "--data", tmp_path / "data")
    assert odd.returncode == 1
    assert odd.stdout.startswith("Likely wrong\n  - s3, age: ")
    bad = vitrail("screen", tmp_path / "study.toml", "--data", tmp_path / "nothing")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


def test_wire_names_what_leaves(place) -> None:
    quiet = vt.Study.load(place / "study.toml").with_changes(screen={"ask": False})
    quiet.save(place / "quiet.toml")
    told = vitrail("wire", "fedper", place / "study.toml")
    assert told.returncode == 0
    assert "change/body.0.weight" in told.stdout
    assert "head." not in told.stdout, "the head stays at the site"
    assert "ALL TRAINING ROWS" in vitrail("wire", "centralized").stdout
    alone = vitrail("wire", "local").stdout
    table = [line for line in alone.splitlines() if " from site " in line]
    assert {line.split()[0] for line in table} == {"scores", "screen:", "standardise"}, "nothing else leaves"
    assert "screen: sketch, from site, rows: how many rows" in alone
    told = vitrail("wire", "fedper", place / "quiet.toml").stdout
    assert "screen:" not in told
    assert "epsilon" not in told
    noisy = quiet.with_changes(protect={"rows": {"epsilon": 4.0}}, standardise="none", training={"refit": False})
    noisy.save(place / "noisy.toml")
    told = vitrail("wire", "fedavg", place / "noisy.toml").stdout
    assert "epsilon 4 if the row is removed and 9.08 if it is replaced (delta 1e-05)" in " ".join(told.split())


WRONG = {
    "unknown method": (
        ["run", "STUDY", "--data", "DATA", "--out", "x", "--method", "fedavgg"],
        "Did you mean 'fedavg'",
    ),
    "unknown setting": (
        ["run", "STUDY", "--data", "DATA", "--out", "x", "--set", "muu=1"],
        "no hyperparameter 'muu'",
    ),
    "setting without value": (["run", "STUDY", "--data", "DATA", "--out", "x", "--set", "mu"], "KEY=VALUE"),
    "data not there": (["run", "STUDY", "--data", "nowhere", "--out", "x"], "nowhere"),
    "study not there": (["run", "nowhere.toml", "--data", "DATA", "--out", "x"], "vitrail init"),
    "zero rounds": (["run", "STUDY", "--data", "DATA", "--out", "x", "--rounds", "0"], "at least 1"),
    "engine": (
        ["run", "STUDY", "--data", "DATA", "--out", "x", "--engine", "steam"],
        "'vectorised' or 'looped'",
    ),
    "device": (["run", "STUDY", "--data", "DATA", "--out", "x", "--device", "tpu9"], "'cpu' or 'cuda'"),
    "dropout": (["run", "STUDY", "--data", "DATA", "--out", "x", "--dropout-rate", "2"], "below 1"),
    "away": (["run", "STUDY", "--data", "DATA", "--out", "x", "--away", "va"], "SITE:FIRST-LAST"),
    "away nobody": (
        ["run", "STUDY", "--data", "DATA", "--out", "x", "--away", "vaa:1-2"],
        "Did you mean 'va'",
    ),
    "negative seed": (["run", "STUDY", "--data", "DATA", "--out", "x", "--seed", "-1"], "from 0 to"),
    "no such target": (["init", "DATA", "--target", "diseas", "--out", "y.toml"], "Did you mean 'disease'"),
    "study exists": (["init", "DATA", "--target", "disease", "--out", "STUDY"], "exists already"),
    "report of nothing": (["report", "DATA"], "folder of a run"),
    "wire of nothing": (["wire", "fedavgg"], "Did you mean 'fedavg'"),
    "optimiser": (
        ["run", "ADAM", "--data", "DATA", "--out", "x", "--method", "scaffold"],
        "method SCAFFOLD: its control variates c_i are computed as",
    ),
    "optimiser of one of them": (
        ["compare", "ADAM", "--data", "DATA", "--out", "x", "--methods", "fedavg,scaffold"],
        "method SCAFFOLD: its control variates c_i are computed as",
    ),
    "optimiser in a grid": (
        ["tune", "STUDY", "--data", "DATA", "--out", "x", "--method", "scaffold", "--grid", "optimiser=sgd,adam"],
        "method SCAFFOLD: its control variates c_i are computed as",
    ),
    "optimiser of wire": (["wire", "scaffold", "ADAM"], "plain SGD with one rate"),
    "rate of no group": (["run", "RATES", "--data", "DATA", "--out", "x"], "Did you mean 'head'"),
    "compare nothing": (
        ["compare", "STUDY", "--data", "DATA", "--out", "x", "--methods", ","],
        "at least one",
    ),
    "compare unknown": (
        ["compare", "STUDY", "--data", "DATA", "--out", "x", "--methods", "dito"],
        "Did you mean 'ditto'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told_in_words(case, place, tmp_path) -> None:
    words, expected = WRONG[case]
    known = {"STUDY": place / "study.toml", "DATA": place / "data"}
    for name, more in (("ADAM", {"optimiser": "adam"}), ("RATES", {"rates": {"haed": 0.1}})):
        known[name] = tmp_path / f"{name}.toml"
        vt.Study.load(place / "study.toml").with_changes(training=more).save(known[name])
    given = [known.get(w, w) for w in words]
    done = vitrail(*given, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists(), "a run that cannot start leaves no folder"


OFFLINE = """import socket
def no(*a, **k): raise RuntimeError('network')
socket.socket.connect = no; socket.getaddrinfo = no
from vitrail.cli import main; main()"""


def test_a_process_of_its_own_does_the_same_and_reaches_for_no_network(place, tmp_path) -> None:
    """All else here is asked in this process; that one has sockets forbidden for the whole of a run."""
    words = ["run", place / "study.toml", "--data", place / "data", "--rounds", 1, "--seed", 3, "--out"]
    here = vitrail(*words, tmp_path / "here")
    command = [sys.executable, "-c", OFFLINE, *map(str, words), str(tmp_path / "apart")]
    apart = subprocess.run(command, capture_output=True, text=True)
    assert (apart.returncode, apart.stdout.replace("apart", "here"), apart.stderr) == here
    assert here.returncode == 0
    assert vt.Run.load(tmp_path / "apart").scores().equals(vt.Run.load(tmp_path / "here").scores())


def test_a_mistake_ends_a_process_of_its_own_in_words() -> None:
    """A terminal obeys control characters; names come from files that others wrote."""
    words = [Path(sys.executable).with_name("vitrail"), "check", "\x1b[2Jstudy\x07.toml", "x.csv"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "?[2Jstudy?.toml" in done.stderr
    assert not {"\x1b", "\x07"} & set(done.stdout + done.stderr)


def test_help_is_quick_and_needs_no_torch() -> None:
    probe = "import sys, vitrail.cli; sys.argv = ['vitrail', '--help']\n"
    probe += "try:\n vitrail.cli.main()\nexcept SystemExit:\n pass\n"
    probe += "heavy = {'torch', 'pandas', 'numpy', 'pydantic', 'pyarrow'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_help_shows_every_verb_to_whom_it_is_for() -> None:
    shown = vitrail("--help").stdout
    at = [shown.index(who) for who in VERBS]
    assert at == sorted(at)
    for (who, verbs), start, end in zip(VERBS.items(), at, [*at[1:], len(shown)], strict=True):
        for verb in verbs:
            assert f"\u2502 {verb.__name__} " in shown[start:end], f"{verb.__name__} is not under {who!r}"
    listed = [verb.__name__ for verbs in VERBS.values() for verb in verbs]
    assert len(listed) == len(set(listed)) == len(app.registered_commands)


def test_public_names() -> None:
    assert vt.facts.TRUST == "how far a user trusts a site, 1 fully, 0 no more"
    assert vt.nets.MLP(3, 2, ()).groups.keys() >= {"head"}
    assert all(getattr(vt, name) is not None for name in vt.__all__)


def test_import_costs_little_beside_torch() -> None:
    """`import vitrail` takes no more than torch plus 0.3 s, all of its names loaded plus a second for pandas."""
    code = "import time, torch; t = time.perf_counter(); import vitrail; print(time.perf_counter() - t)"
    tries = (float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(3))
    assert any(seconds < 0.3 for seconds in tries)  # a busy machine may be slow once


def test_what_takes_long_to_load_is_loaded_where_it_is_used() -> None:
    """Each costs every verb that only reads a study a part of a second, and every process of a pool some seconds."""
    code = "import sys\nimport vitrail.studies.executor\n"
    code += "assert not {'torch', 'pandas', 'numpy', 'pydantic'} & set(sys.modules), 'the pool'\n"
    code += "import vitrail.quality.checks.table, vitrail.runs\n"
    code += "import vitrail.deploy.vertical.process, vitrail.deploy.coordinator.process\n"
    code += "heavy = {'scipy.stats', 'scipy.optimize', 'scipy.ndimage'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_small_parsers(tmp_path) -> None:
    assert parse_settings(["mu=0.5", "weights=rows", "adaptive=false"]) == {
        "mu": 0.5,
        "weights": "rows",
        "adaptive": False,
    }
    assert parse_away(["va:3-5", "a:b:7"]) == {"va": [(3, 5)], "a:b": [(7, 7)]}
    (tmp_path / "demo").mkdir()
    assert free_folder(tmp_path / "demo") == tmp_path / "demo-2"


def test_which_methods_are_compared(capsys) -> None:
    assert parse_methods(None) == ["local", "centralized", "fedavg", "fedper", "fine_tune"]
    assert parse_methods(" ditto, influence,") == ["ditto", "influence"]
    assert capsys.readouterr().out == ""
    table = vt.methods.TABLE
    first = {name for name, kind in table.items() if kind.catalogue.tune_first}
    assert first == {"weight_erosion", "weight_erosion_sums", "influence", "apple", "cfl"}
    apart = {name for name, kind in table.items() if kind.catalogue.required_net}
    assert parse_methods("all") == [name for name in table if name not in first | apart]
    told = capsys.readouterr().out
    assert "Left out: Weight Erosion, Weight Erosion in sums, Influence, APPLE, CFL." in told
    assert all(f"vitrail tune STUDY --data DATA --method {name}" in told for name in first)
    assert "--methods weight_erosion,weight_erosion_sums,influence,apple,cfl" in told
    assert "need another network: inDISCO" in told
