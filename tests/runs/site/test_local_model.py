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
    assert (
        "Kept: the model trained on this site's rows alone. On its left-out rows, the agreed model has a loss of"
        in words
    )
    assert "Kept" not in silent


def test_what_cannot_be_kept_is_refused(run: Path) -> None:
    with pytest.raises(VitrailError, match="expected local"):
        kept_alone(vt.Run.load(run).model_of(MINE), "fedavg")
    with pytest.raises(VitrailError, match="trains no model on the site's rows alone"):
        kept_alone(vt.Run.load(run.with_name("alone")).model_of(MINE), "local")


@pytest.mark.parametrize(
    ("agreed", "alone", "error", "words"),
    [
        (0.5, 0.4, 0.01, "alone is better; chance gives a difference this large at 1 site in 20"),
        (0.5, 0.49, 0.01, "a difference of 0.0100, give or take 0.0100. Chance alone can give such a difference"),
        (0.4, 0.5, 0.01, "give or take 0.0100. Its own rows say that the agreed model is better"),
        (0.0, 0.0, 0.0, "Which of the two models is better is not known"),
        (0.5, 0.4, None, "The error of this difference was not kept"),
    ],
)
def test_what_it_rests_on(agreed: float, alone: float, error: float | None, words: str) -> None:
    knows = {LEFT_OUT: agreed, ALONE_LEFT_OUT: alone} | ({} if error is None else {ERROR_LEFT_OUT: error})
    assert words in rests_on(knows, "row")
