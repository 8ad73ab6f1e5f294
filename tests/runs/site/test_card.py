"""A site's card: the numbers are those of its own held-out rows, names from files are never markup, and it is written
by the command line as HTML and Markdown; a model taken along answers by `vitrail predict`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import vitrail as vt
from tests.support.cards import make_table
from vitrail.analysis.calibration import RateInterval
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.data.splitting import split_rows
from vitrail.metrics.scores import score
from vitrail.report.pages.card.markdown import MARK, to_markdown
from vitrail.report.pages.card.page import render_card, write_card
from vitrail.runs.site.card import Card, CardScore, make_card, no_better


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    tables = {"north <b>": make_table(1), "south": make_table(2)}
    study = vt.Study.infer(
        tables, target="sick", training={"rounds": 5}, network={"hidden": (4,)}, method={"name": "fedavg"}
    )
    vt.federate(study, tables).save(folder / "run")
    for i, table in enumerate(tables.values()):
        table.to_csv(folder / f"{i}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def card(place: Path) -> Card:
    run = vt.Run.load(place / "run")
    seen = run.info["fingerprints"]["north <b>"]
    return make_card(run.model_of("north <b>"), "north <b>", "run", make_table(1), seen, [], ["a sum"], ["No noise."])


def test_scores_are_those_of_the_held_out_rows(card: Card, place: Path) -> None:
    run, table = vt.Run.load(place / "run"), make_table(1)
    told = run.scores()
    mine = told[told.site == "north <b>"].set_index("metric")["value"]
    for s in card.scores:
        assert s.estimate.value == pytest.approx(mine[s.metric], abs=1e-9)
        assert s.estimate.low <= s.estimate.value <= s.estimate.high
    y = (table["sick"] == "yes").to_numpy().astype(int)
    _, test = split_rows(y, run.study, run.seed, "north <b>")
    p = run.predict("north <b>", table.iloc[test])[["no", "yes"]].to_numpy(float)
    thresholds = np.array(run.encoders["north <b>"].thresholds)
    assert score(("accuracy",), y[test], p, None, thresholds)["accuracy"] == pytest.approx(mine["accuracy"])
    assert card.bedside is not None
    assert card.bedside.counts.total == len(test) == card.test
    assert card.bedside.counts.events.sum() == y[test].sum()
    assert card.bedside.counts.expected.sum() == pytest.approx(p[:, 1].sum(), abs=1e-4)


def test_other_rows_are_told_as_such(place: Path) -> None:
    run = vt.Run.load(place / "run")
    seen = run.info["fingerprints"]["north <b>"]
    other = make_card(run.model_of("north <b>"), "north <b>", "run", make_table(9), seen, None, [], [])
    assert not other.same
    assert other.train == 0
    assert other.test == 120
    assert any("not the rows that the run saw" in line for line in other.limits)
    assert any("was not compared" in line for line in other.limits)


def test_limits_name_gaps_and_a_score_that_tells_nothing(card: Card) -> None:
    assert any("dose (51 %)" in line for line in card.limits)
    assert no_better([CardScore("auc", RateInterval(0.6, 0.45, 0.7), 0.5)])
    assert no_better([CardScore("brier", RateInterval(0.2, 0.15, 0.3), 0.25)])
    assert not no_better([CardScore("auc", RateInterval(0.7, 0.6, 0.8), 0.5)])
    assert not no_better([CardScore("brier", RateInterval(0.1, 0.05, 0.2), 0.25)])


def test_names_are_never_markup(card: Card) -> None:
    page, plain = render_card(card), to_markdown(card)
    for text in (page, plain.split(MARK)[1]):  # the header above it is data
        assert "<script>x" not in text
        assert "north <b>" not in text
    assert "&lt;script&gt;x" in page
    assert "\\|\\`a\\`" in plain
    assert page.index("This stays at") < page.index("Intended use") < page.index("What left the site")
    for words in ("baseline", "Calibration intercept", "Brier score"):
        assert words in page
        assert words in plain


def test_only_a_card_is_written_over(card: Card, tmp_path: Path) -> None:
    write_card(card, tmp_path / "card.html")
    write_card(card, tmp_path / "card.html")
    (tmp_path / "card.md").write_text("my notes")
    with pytest.raises(VitrailError, match="no card of ours"):
        write_card(card, tmp_path / "card.html")
    assert (tmp_path / "card.md").read_text() == "my notes"


def test_by_the_command_line(place: Path, tmp_path: Path) -> None:
    def call(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    run, data = str(place / "run"), str(place / "0.csv")
    told = call("card", run, "--site", "north <b>", "--data", data, "--out", str(tmp_path / "c.html"))
    assert "Both are private to north <b>" in told
    assert "what training on your rows changed" in (tmp_path / "c.md").read_text()
    model = tmp_path / "north.vitrail"
    assert "stays at the site" in call("export", run, "--site", "north <b>", "--to", str(model))
    ours = call("predict", run, data, "--site", "north <b>")
    assert call("predict", str(model), data) == ours
    with pytest.raises(VitrailError, match="there is no site"):
        call("export", run, "--site", "nowhere", "--to", str(tmp_path / "m.vitrail"))
