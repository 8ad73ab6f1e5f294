"""What the form says of our tests is what the benchmarks printed, for the guards at hand, and it says how old it is."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest

import vitrail as vt
from tests.support import ROOT
from tests.support.deploy.forms import clause, clauses, line_of, paragraphs
from tests.support.stripes import STUDY as PICTURES
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.consent import attack_evidence
from vitrail.deploy.consent.form import site_form
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.runs.setup import resolve

FOUR = ["cleveland", "hungarian", "switzerland", "va"]
ATTACKS = ROOT / "benchmarks" / "attacks" / "results"
LEARNED = "What an attacker could learn"


def form_of(study: vt.Study | None = None, method: str | None = None, sites: int = 4, **changes: Any) -> str:
    study = resolve((study or vt.Study.load(packaged("heart_disease.toml"))).with_changes(**changes), method, None)[0]
    return site_form(Agreement.of(study, None, sites), "va", FOUR, True).text


def learned(text: str, heading: str = "REPORTS: TRAINING") -> str:
    return paragraphs(clause(text, heading))[LEARNED]


def test_the_numbers_are_those_of_the_results() -> None:
    script = ROOT / "scripts" / "make_attack_evidence.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_script_reads_what_the_trials_counted() -> None:
    """Read once more, without the script."""
    cases, known = json.loads((ATTACKS / "attacks.json").read_text()), attack_evidence.results()
    for guard, name in (("plain", "plain"), ("masked", "total of three"), ("rows", "rows 10")):
        draws = ("draws known", "draws known") if guard == "rows" else ("draws secret", "no dropout")
        for how, draw in zip(("dropout", "no dropout"), draws, strict=True):
            counts = [cases[f"honest|{name}, {draw}|{trial}"]["rebuilt"] for trial in range(1, 6)]
            tried = known["attacks.json"][guard][how]
            assert (tried["least"], tried["most"], tried["trials"]) == (min(counts), max(counts), len(counts))
    control = [cases[f"honest|plain, draws known|{trial}"]["rebuilt"] for trial in range(1, 6)]
    assert sum(rebuilt >= 12 for rebuilt in control) >= 4  # the attack works where nothing is hidden from it
    drafted = [cases[f"honest|total of three, draws secret|{trial}"] for trial in range(1, 6)]
    assert all(case["cells"] <= case["guess"] + 0.05 for case in drafted)
    folds = (ATTACKS / "fold_leaks.md").read_text()
    for guard, name in (("plain", "10 rows in a fold"), ("masked", "10 rows in a fold, under masks")):
        (row,) = [line for line in folds.splitlines() if line.startswith(f"| {name} |")]
        run, _, difference, _ = (float(cell.split("+-")[0]) for cell in row.split("|")[4:8])
        assert known["fold_leaks.md"][guard] == {"rows": 10, "run": run, "difference": difference}
    assert "| rounded | 1440 | 0.536 " in (ATTACKS / "attack_oracle.md").read_text()
    assert known["attack_oracle.md"]["rounded"] == {"persons": 1440, "right": 0.536}
    parties = (ROOT / "benchmarks" / "vertical" / "results" / "vertical_leaks.md").read_text()
    assert all(f"| {known['vertical_leaks.md'][k]:.3f} |" in parties for k in ("columns alone", "defaults", "no noise"))


@pytest.mark.parametrize(
    ("protect", "words"),
    [
        ({}, "read 52 to 58 of 203 patients in 40 rounds"),
        ({"sum": "masked"}, "read 11 to 25 of 203 patients out of totals of four sites in 40 rounds"),
        ({"rows": {"epsilon": 3.0}}, "with noise for epsilon 10, rebuilt 0 of the 16 patients of a site (5 trials)"),
    ],
)
def test_the_form_quotes_the_tests_of_its_own_guard(protect: dict[str, Any], words: str) -> None:
    text = learned(form_of(protect=protect, standardise="local"))
    assert words in text
    for other in ("52 to 58", "11 to 25", "with noise for epsilon 10"):
        assert (other in text) == (other in words)


def test_a_network_with_dropout_has_another_number() -> None:
    for protect, dropout in itertools.product(({}, {"sum": "masked"}), (0.0, 0.2)):
        text = learned(form_of(protect=protect, network={"dropout": dropout}))
        tried = attack_evidence.results()["attacks.json"]["masked" if protect else "plain"]
        quoted = tried["dropout" if dropout else "no dropout"]
        span = f"{quoted['least']} to {quoted['most']}" if quoted["most"] > quoted["least"] else str(quoted["least"])
        assert f"rebuilt {span} of the 16 patients" in text
        assert f"was trained with{'' if dropout else 'out'} dropout, as in this study" in text
        assert ("did not know the random draws" in text) == (dropout > 0)


def test_what_was_not_tested_is_said() -> None:
    two = {"sum": "two servers", "clip": 0.5, "second": "registry"}
    assert "We made no test with two servers." in learned(form_of(protect=two, sites=5))
    groups = vt.Study.load(packaged("heart_disease.toml")).with_changes(protect={"sum": "groups", "robust": "median"})
    nine = [f"s{i}" for i in range(9)]
    text = site_form(Agreement.of(resolve(groups, None, None)[0], None, 9), "s0", nine, True).text
    assert "We made no test with totals of groups." in learned(text)
    sites = {"sites": {"epsilon": 4.0}, "clip": 0.5, "sum": "masked"}
    assert "These reports had no noise." in learned(form_of(protect=sites, standardise="local"))
    text = form_of(PICTURES)
    assert "We made no test of this." in learned(text)
    assert "heart" not in learned(text)
    for heading, body in clauses(form_of()).items():
        if LEARNED in body:
            quoted = paragraphs(body)[LEARNED]
            same = "The same as from clause" in quoted
            assert ("In our test" in quoted) + ("We made no test of this" in quoted) + same == 1, heading


def test_how_often_models_are_judged_and_what_that_gave() -> None:
    influence = learned(form_of(method="influence"))
    assert "your rows judge models that others chose, 40 times in a run. NOT ROUNDED: each time, 4 numbers" in influence
    assert "It was right for 99.9 % of them" in influence
    assert "judge models" not in form_of()
    exact = form_of(method="agreed_mix", protect={"scores": "exact"})
    assert "NOT ROUNDED: each time, 275 numbers leave as they are" in learned(exact, "REPORTS: CHOICE")
    assert "NOT ROUNDED: each time, 3 numbers" in learned(exact, "LOSSES ON ROWS LEFT OUT")
    masked = learned(form_of(method="agreed_mix", protect={"sum": "masked"}), "REPORTS: CHOICE")
    assert "275 numbers leave under masks" in masked
    assert "NOT ROUNDED" not in masked
    assert "99.9" not in masked


def test_tests_of_older_settings_say_so_until_they_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (ROOT / "docs" / "results.md").read_text()
    older = attack_evidence.results()["older"]
    assert "older than today's defaults" in said
    for name in ("attacks", "attack_presence"):
        assert f"`{name}.md`" in said
        assert {f"{name}.md", f"{name}.json"} & set(older)
    folded = form_of(verdict={"folds": 2}, protect={"sum": "masked"})
    words, when = "This test was made with older settings (clause", "in force before 18 November 2026"
    assert line_of(folded).count(words) == len(older) == 4
    assert when in clause(folded, "OUR TESTS")
    monkeypatch.setitem(attack_evidence.results(), "older", [])
    fresh = form_of(verdict={"folds": 2}, protect={"sum": "masked"})
    assert words not in line_of(fresh)
    assert when not in line_of(fresh)
