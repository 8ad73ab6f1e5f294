"""What people meet first: the demo and its index, help by who uses it, examples, completion, progress in a log, and why
a verdict is not what the table above it shows."""

from __future__ import annotations

import base64
import json
import math
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import vitrail as vt
from tests.support import ROOT
from vitrail.cli import VERBS, app, completion
from vitrail.cli import demo as cli_demo
from vitrail.cli.examples import EXAMPLES
from vitrail.cli.output import EVERY, Lines, print_comparison, show_progress
from vitrail.report.pages.demo_picture import DemoPicture, FramedPicture
from vitrail.report.pages.index import ABOUT, Demo, DemoPage, read_demo, write_index
from vitrail.report.sections.scores.joining import SiteGain
from vitrail.report.sections.scores.verdict_differences import why_apart
from vitrail.report.text import Interval
from vitrail.studies.compare.result import Comparison, OutOfFold

KINDS = {"one": "the first", "two": "the second"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the demo prints, and its folder; in this process. The four hospitals and one run are cut short; the three
    clinics are as they are, and the X-rays are every second picture."""
    out, load, compared = tmp_path_factory.mktemp("first") / "demo", vt.Study.load, cli_demo._compared
    few = {name: frame[::2] for name, frame in vt.datasets.pneumonia().items()}

    def shorter(path: Path) -> vt.Study:
        quick = {"training": {"rounds": 1}, "network": {"hidden": [4]}}
        return load(path).with_changes(**quick) if path.name == "heart_disease.toml" else load(path)

    def compared_shorter(study, sites, methods, seeds, folds, at, words, **more):
        if "hospitals" in words:
            return compared(study, sites, ["local", "fedavg"], 1, 2, at, words)
        return compared(study, sites, methods, seeds, folds, at, words, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("vitrail.cli.demo.cores", lambda: 1)
        patched.setattr(cli_demo, "_compared", compared_shorter)
        patched.setattr(vt.Study, "load", shorter)
        patched.setattr(vt.datasets, "pneumonia", lambda: few)
        done = CliRunner().invoke(app, ["demo", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return done.output, out


def test_the_demo_opens_with_what_it_is_for(demo) -> None:
    told, _ = demo
    fit, joining = told.index("WHOSE DATA DOES NOT FIT?"), told.index("IS JOINING WORTH IT?")
    assert len(told[:fit].splitlines()) <= 3
    assert "about a minute" in told[:fit], "how long it takes is said before it is waited for"
    found = told.index("hungarian, chol: in another unit")
    assert fit < told.index("With a mistake of ours: hungarian's chol in mmol/L instead of mg/dL") < found < joining
    assert "mg/dL = mmol/L x 38.67" in told
    for site in vt.datasets.heart_disease():
        assert re.search(rf"^{site}.* (yes: gains|no: loses|no harm|cannot tell)", told[joining:], re.MULTILINE)
    shown = [kind.catalogue.title for kind in vt.methods.TABLE.values()]
    assert not [line for line in told.splitlines() if line.startswith(tuple(shown))], "no table of methods"
    assert "Janosi" in told[joining:], "thanks come last, and come"
    assert "MedMNIST" in told[joining:]


def test_the_demo_has_a_yes_a_no_and_a_cannot_tell(demo) -> None:
    """By the rule that every comparison uses, on clinics that are marked as ours wherever they are shown."""
    told, out = demo
    clinics = told[told.index("Semi-synthetic: three clinics that do not exist.") :]
    answers = re.findall(r"^(newcomer|surgery|city) +(yes|no|cannot tell)\b", clinics, re.MULTILINE)
    assert answers == [("newcomer", "yes"), ("surgery", "no"), ("city", "cannot tell")]
    assert clinics.index("We wrote that into its outcomes") < clinics.index("worth it?")
    assert "surgery, outcome" in clinics.split("worth it?")[0], "the screening has asked about it before any training"
    verdicts = pd.read_csv(out / "clinics" / "verdicts.csv").set_index("site")
    assert list(verdicts.verdict) == ["yes", "no", "cannot tell"]
    assert verdicts.low["newcomer"] > 0 > verdicts.high["surgery"]
    page, index = ((out / name).read_text() for name in ("clinics/report.html", "index.html"))
    assert "Semi-synthetic: the 920 patients are real" in page
    assert "outcomes at one clinic were changed" in page
    assert "three clinics (semi-synthetic): yes for newcomer; no for surgery; cannot tell for city." in index
    assert "semi-synthetic" not in (out / "compared" / "report.html").read_text().lower()


def test_the_index_opens_with_the_picture(demo) -> None:
    """What joining is worth at the clinics, beside an X-ray on which the place of the letter is framed."""
    _, out = demo
    html = (out / "index.html").read_text()
    opening, rest = html.split("<main", 1)[1].split("</section>", 1)
    assert "What was found" in rest
    assert "Semi-synthetic: three clinics that do not exist" in opening
    for site, kind in (("newcomer", "gain"), ("surgery", "loss"), ("city", "unsure")):
        assert re.search(rf'<g class="verdict {kind}"><title>{site}: ', opening), site
    encoded = re.search(r'src="data:image/png;base64,([^"]+)"', opening)
    assert encoded
    assert base64.b64decode(encoded[1]).startswith(b"\x89PNG")
    framed = re.search(r'<i style="top: ([\d.]+)%; left: ([\d.]+)%; height: ([\d.]+)%; width: ([\d.]+)%">', opening)
    assert framed
    top, left, height, width = map(float, framed.groups())
    assert top + height / 2 < 34, "the letter is at the upper right"
    assert left + width / 2 > 66
    assert "We wrote a letter into these pictures." in opening


def test_the_demos_index_leads_to_every_page(demo) -> None:
    told, out = demo
    assert told.rstrip().endswith(str((out / "index.html").resolve()))
    html = (out / "index.html").read_text()
    assert "Is joining worth it? " in html
    links = re.findall(r'<a href="([^"#]+)"', html)
    assert links[0] == "findings.html"
    assert {"compared/report.html", "clinics/report.html", "look-hungarian.html"} <= {*links}
    assert {"xrays/report.html", "xrays/look-referral.html"} <= {*links}
    for link in links:
        assert (out / link).is_file(), link
    assert "Stays at hungarian" in html
    assert "Stays at referral" in html
    assert "likely wrong" in (out / "findings.html").read_text().lower()
    for page in ("findings.html", "run/report.html"):
        assert "a mistake that we wrote into it" in (out / page).read_text(), "nobody takes it for their data"
    assert "a mistake that we wrote" not in (out / "compared" / "report.html").read_text()
    assert "This stays at hungarian" in (out / "look-hungarian.html").read_text()
    assert "Is joining worth it?" in (out / "compared" / "report.html").read_text()
    for other in ("pictures", "vertical"):
        assert f"vitrail demo {other}" in html
    assert "vitrail demo prototypes" not in html, "its pages are here already"


def test_the_readmes_pictures_can_be_cut_from_the_demo(demo, tmp_path: Path) -> None:
    """scripts/make_picture.py finds its elements on the pages; that of an explanation it makes itself."""
    script = runpy.run_path(str(ROOT / "scripts" / "make_picture.py"))
    cuts = [script["OPENING"], *script["SMALL"].values()]
    for cut in (cut for cut in cuts if cut.page != "explained.html"):
        alone = script["show_alone"](cut, demo[1])
        assert len(re.findall("<body", alone)) == 1
        shown = alone.split("<body>")[1]
        assert f'"{cut.value}' in shown.partition(">")[0] + ">", cut
        assert shown.count("<div") == shown.count("</div>")
    with pytest.raises(SystemExit, match="no element"):
        script["ElementFinder"]("<p class='a'><b>x</b></p>", "class", "b")
    found = script["ElementFinder"]("<i></i><p class='a b'>\n<p class='c'>x<br></p></p><p></p>", "class", "b")
    assert found.text == "<p class='a b'>\n<p class='c'>x<br></p></p>"


def test_the_demos_repair_can_be_copied(demo) -> None:
    told, _ = demo
    line = next(line for line in told.splitlines() if line.startswith("  vitrail repair "))
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    assert "Nothing was written" in done.output


def test_demos_side_by_side_know_each_other(tmp_path: Path) -> None:
    for name, kind in (("demo", "one"), ("demo-2", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a b.html").write_text("x")
        pages = [DemoPage("a b.html", "<i>Page</i>", "words", "north" if kind == "two" else "")]
        write_index(tmp_path / name, Demo(kind, f"<b>{kind}</b>", "about", pages, ["found"]), KINDS)
    first, second = ((tmp_path / name / "index.html").read_text() for name in ("demo", "demo-2"))
    assert 'href="../demo-2/a%20b.html"' in first, "the first was written before the second was made"
    assert 'href="../demo/a%20b.html"' in second
    assert "&lt;i&gt;Page&lt;/i&gt;" in first
    assert "<i>Page" not in first + second
    assert "Stays at north" in first
    assert "vitrail demo" not in first.split("<main")[1].split("<footer")[0], "all are made"


@pytest.mark.parametrize(
    "told",
    ["[]", "{", '{"kind": "one"}', '{"kind": "one", "title": "", "words": "", "pages": 3, "said": [], "thanks": ""}'],
)
def test_what_is_no_demo_is_passed_over(told: str, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ABOUT).write_text(told)
    assert read_demo(tmp_path / "other") is None
    write_index(tmp_path / "demo", Demo("one", "One", "about", []), KINDS)
    assert not (tmp_path / "other" / "index.html").exists()


@pytest.mark.parametrize(
    "picture",
    [
        "3",
        '["words"]',
        '[["w"], "axis", [["a", "FedAvg", [1, 0, 2], "yes", "much"]], null]',
        '[["w"], "axis", [], ["a", "b", "at the left", "x\\" onload=\\"y", [0, 0, 1, 1]]]',
        '[["w"], "axis", [], ["a", "b", "at the left", "QUJD", [0, 0, 1]]]',
        '[["w"], "axis", [], ["a", "b", "at the left", "QUJD", [0, 0, 1, NaN]]]',
    ],
)
def test_a_demo_with_another_kind_of_picture_is_passed_over(picture: str, tmp_path: Path) -> None:
    whole = '{{"kind": "one", "title": "", "words": "", "pages": [], "said": [], "thanks": "", "picture": {}}}'
    (tmp_path / ABOUT).write_text(whole.format("null"))
    assert read_demo(tmp_path) is not None
    (tmp_path / ABOUT).write_text(whole.format(picture))
    assert read_demo(tmp_path) is None


def test_a_picture_stays_as_it_was_when_another_demo_is_made(tmp_path: Path) -> None:
    gains = [SiteGain("<b>a", "FedAvg", Interval(0.1, 0.05, 0.2), "yes", 0.02)]
    framed = FramedPicture("a", "<i>ill", "at the left", "QUJD", (0.1, 0.2, 0.3, 0.4))
    picture = DemoPicture(["<u>ours"], "saved log loss", gains, framed)
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
    first = write_index(tmp_path / "demo", Demo("one", "One", "about", [], picture=picture), KINDS).read_text()
    assert [part for part in ("<b>a", "<i>ill", "<u>ours") if part in first] == []
    assert "top: 10.0%; left: 20.0%; height: 30.0%; width: 40.0%" in first
    write_index(tmp_path / "demo-2", Demo("two", "Two", "about", []), KINDS)
    again = (tmp_path / "demo" / "index.html").read_text()
    assert again.split("<main")[1].split("</section>")[0] == first.split("<main")[1].split("</section>")[0]
    assert "QUJD" not in (tmp_path / "demo-2" / "index.html").read_text(), "each index opens with its own"


def test_no_page_outside_a_demo_is_linked(tmp_path: Path) -> None:
    (tmp_path / "secret.html").write_text("x")
    (tmp_path / "demo").mkdir()
    pages = [DemoPage("../secret.html", "Out", ""), DemoPage(str(tmp_path / "secret.html"), "Out", "")]
    html = write_index(tmp_path / "demo", Demo("one", "One", "about", pages), KINDS).read_text()
    assert "secret" not in html


def test_a_page_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Beside a demo lies one whose index a person has replaced."""
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
    write_index(tmp_path / "demo", Demo("one", "One", "about", []), KINDS)
    (tmp_path / "demo" / "index.html").write_text("mine")
    write_index(tmp_path / "demo-2", Demo("two", "Two", "about", []), KINDS)
    assert (tmp_path / "demo" / "index.html").read_text() == "mine"


# help


def test_help_is_by_who_uses_it() -> None:
    assert [who.split(":")[0] for who in VERBS] == [
        "Begin here",
        "Hospital data scientist",
        "Study coordinator",
        "Researcher",
    ]


def test_every_verb_has_two_examples_that_can_be_read() -> None:
    """As the command line would read them: options that exist, arguments enough, values of their types."""
    command = typer.main.get_command(app)
    verbs = {verb.__name__ for verbs in VERBS.values() for verb in verbs}
    assert {*EXAMPLES} == verbs
    for verb, lines in EXAMPLES.items():
        assert len({*lines}) == 2, verb
        for line in lines:
            _, name, *words = shlex.split(line.split(" | ")[0])
            assert name == verb
            assert len(line) <= 86, "longer ones are wrapped, and cannot be copied"
            command.commands[name].make_context(name, words)


def test_help_ends_with_the_examples() -> None:
    told = CliRunner().invoke(app, ["check", "--help"], env={"COLUMNS": "120"}).output
    assert all(line in told.split("Examples")[1] for line in EXAMPLES["check"])


def test_an_example_that_is_none_is_found() -> None:
    command = typer.main.get_command(app)
    with pytest.raises(Exception, match="colour"):
        command.commands["check"].make_context("check", ["study.toml", "ours.csv", "--colour"])


# completion


def offered(words: str) -> list[str]:
    env = {"_VITRAIL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = CliRunner().invoke(app, [], prog_name="vitrail", env=env)
    return done.output.split("\n")[:-1]


def test_the_shell_is_offered_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text("")
    (tmp_path / "stuff.csv").write_text("")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text(json.dumps({"sites": ["north", "nord ost", "south"]}))
    (tmp_path / "data").mkdir()
    for name in ("east.csv", "west.csv"):
        (tmp_path / "data" / name).write_text("")
    assert {"check", "compare", "contribution"} <= {*offered("vitrail c")}
    assert offered("vitrail check st") == ["study.toml"]
    assert offered("vitrail look r --site n") == ["north", "nord ost"]
    assert offered("vitrail transfer study.toml --data data --user e") == ["east"]
    assert "fedavg" in offered("vitrail run study.toml --method fed")
    assert "ditto,fedavg" in offered("vitrail compare study.toml --methods ditto,fed")
    assert offered("vitrail demo p") == ["pictures", "prototypes"]
    assert not any(offered("vitrail look nowhere --site n"))


def test_names_that_a_shell_would_obey_are_not_offered(tmp_path: Path) -> None:
    """A run's folder may come from somebody else."""
    bad = ["$(rm)", "a`b`", "c\x1b[2J", "d\n e", 'q"', "ok", "s;t", "u|v", "w&x", "\u202egnp"]
    (tmp_path / "run.json").write_text(json.dumps({"sites": bad}))
    context = typer.Context(typer.main.get_command(app))
    context.params = {"run": str(tmp_path)}
    assert completion.sites(context, "") == ["ok"]
    (tmp_path / "run.json").write_text("[" * 100_000)
    assert completion.sites(context, "") == []


# progress


def test_progress_in_a_log_is_a_line_every_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    step = Lines(lambda: now[0])
    for second in range(0, 200, 10):
        now[0] = float(second)
        step("rounds", second, 400)
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[2] for line in told] == [
        f"rounds: {s} of 400 ({s // 4} %)" for s in range(int(EVERY), 200, 60)
    ]
    assert all(re.match(r"\d\d:\d\d  ", line) for line in told)


def test_where_there_is_no_terminal_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with show_progress() as step:
        assert isinstance(step, Lines)


# why a verdict is not what the table shows


def compared(alone: float, joined: float, wide: float, table: tuple[float, float], sites: int = 2) -> Comparison:
    """Two methods at made-up sites: losses alone and joined, how far rows scatter, and what the table shows."""
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml")).with_changes(metrics=["balanced_accuracy"])
    names, rng = [f"s{i}" for i in range(sites)], np.random.default_rng(1)
    rows, lots = 60, np.arange(60) % 5
    base = {s: rng.normal(0, wide, rows) for s in names}
    losses = {("local", 1): {s: alone + base[s] for s in names}}
    losses["fedavg", 1] = {s: joined + rng.normal(0, wide, rows) for s in names}
    scores = [
        (m, 1, s, "test", "balanced_accuracy", v)
        for m, v in zip(("local", "fedavg"), table, strict=True)
        for s in names
    ]
    sizes = pd.DataFrame({"site": names, "train_rows": rows, "test_rows": rows})
    return Comparison(
        study,
        ["local", "fedavg"],
        [1],
        pd.DataFrame(scores, columns=["method", "seed", "site", "split", "metric", "value"]),
        pd.DataFrame(),
        pd.DataFrame(),
        sizes,
        {"fingerprints": {}, "versions": {}},
        pd.DataFrame(columns=["seed", "site", "metric", "value"]),
        None,
        pd.DataFrame(),
        OutOfFold(losses, {1: dict.fromkeys(names, lots)}, dict.fromkeys(names, 0.7), {}),
    )


def test_a_verdict_that_agrees_with_the_table_needs_no_words() -> None:
    assert why_apart(compared(0.6, 0.3, 0.01, (0.70, 0.80))) == []
    assert why_apart(compared(0.3, 0.6, 0.01, (0.80, 0.70))) == []
    assert why_apart(compared(0.5, 0.5, 0.5, (0.800, 0.801))) == [], "nobody sees such a difference"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ((0.50, 0.48, 0.5, (0.70, 0.80)), "FedAvg is 0.100 better than Local in the table; "),
        (
            (0.60, 0.30, 0.01, (0.80, 0.70)),
            "FedAvg is 0.100 worse than Local in the table; in log loss it saves",
        ),
        (
            (0.30, 0.60, 0.01, (0.70, 0.80)),
            "FedAvg is 0.100 better than Local in the table; in log loss it costs",
        ),
    ],
)
def test_a_verdict_that_differs_is_explained(case, words: str) -> None:
    result = compared(*case)
    head, *lines = why_apart(result)
    assert "does best at the other sites" in head
    assert "larger than luck" in head
    assert [line.partition(": ")[0] for line in lines] == ["s0", "s1"]
    assert all(words in line for line in lines)


def test_the_terminal_says_so_below_the_verdicts(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    result = compared(0.60, 0.30, 0.01, (0.80, 0.70))
    monkeypatch.setattr(
        "vitrail.report.pages.builder.page_of", lambda _: type("", (), {"table": _NoTable(), "event": ""})()
    )
    monkeypatch.setattr("vitrail.report.sections.scores.findings.baseline_sentences", lambda *_: [])
    print_comparison(result)
    told = capsys.readouterr().out
    assert told.index("Is joining worth it?") < told.index("Why a verdict is not what the table shows") < len(told)


class _NoTable:
    chance: dict[str, float] = {}  # noqa: RUF012
    chance_mean, why = math.nan, ()
