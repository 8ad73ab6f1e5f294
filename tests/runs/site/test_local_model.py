"""A site that keeps the model of its rows alone: it predicts as if it had never joined, and is told what that rests
on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.core.facts import ALONE_LEFT_OUT, ERROR_LEFT_OUT, LEFT_OUT
from vitrail.data.datasets.catalogue import heart_disease
from vitrail.runs.site.local_model import kept_alone, rests_on

MINE = "cleveland"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sites = heart_disease()
    study = vt.Study.infer(sites, target="disease").with_changes(training={"rounds": 3})
    place = tmp_path_factory.mktemp("runs") / "mix"
    vt.federate(study, sites, method=vt.methods.AgreedMix(folds=2, tuned=(1,))).save(place)
    vt.federate(study, sites, method=vt.methods.Local()).save(place.with_name("alone"))
    sites[MINE].head(20).to_csv(place.with_name("new.csv"), index=False)
    return place


def predicted(*given: object) -> tuple[pd.DataFrame, str]:
    told = CliRunner().invoke(app, ["predict", *map(str, given)])
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("line"))
    rows = pd.DataFrame([line.split(",") for line in lines[first + 1 :]], columns=lines[first].split(","))
    return rows.drop(columns="outside").astype(float), told.stderr


def test_it_predicts_as_the_run_of_those_who_stay_alone(run: Path) -> None:
    new = run.with_name("new.csv")
    kept, words = predicted(run, new, "--site", MINE, "--keep", "local")
    alone, _ = predicted(run.with_name("alone"), new, "--site", MINE)
    agreed, silent = predicted(run, new, "--site", MINE)
    np.testing.assert_allclose(kept.to_numpy(), alone.to_numpy(), atol=1e-6)
    assert np.abs(kept.to_numpy() - agreed.to_numpy()).max() > 1e-4
    assert "Kept: the model trained on this site's rows alone. On its rows left out, what was agreed cost" in words
    assert "Kept" not in silent


def test_what_cannot_be_kept_is_refused(run: Path) -> None:
    with pytest.raises(VitrailError, match="expected local"):
        kept_alone(vt.Run.load(run).model_of(MINE), "fedavg")
    with pytest.raises(VitrailError, match="trains no model on the site's rows alone"):
        kept_alone(vt.Run.load(run.with_name("alone")).model_of(MINE), "local")


@pytest.mark.parametrize(
    ("agreed", "alone", "error", "words"),
    [
        (0.5, 0.4, 0.01, "Its own rows say that alone is better; so large a difference comes by chance at one"),
        (0.5, 0.49, 0.01, "0.0100 more, give or take 0.0100. That is within what chance does"),
        (0.4, 0.5, 0.01, "0.1000 less, give or take 0.0100. Its own rows say that what was agreed is better"),
        (0.0, 0.0, 0.0, "Nothing is known here of which is better"),
        (0.5, 0.4, None, "How sure that is was not kept"),
    ],
)
def test_what_it_rests_on(agreed: float, alone: float, error: float | None, words: str) -> None:
    knows = {LEFT_OUT: agreed, ALONE_LEFT_OUT: alone} | ({} if error is None else {ERROR_LEFT_OUT: error})
    assert words in rests_on(knows, "row")
