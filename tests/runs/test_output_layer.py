"""iFedAvg with one half of the output layer: what is not trained is in no message, no table, no page and no file."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import vitrail as vt
from vitrail.analysis.private_layers import paper_flags
from vitrail.export.torch import given_rows
from vitrail.export.writer import export_model
from vitrail.report.pages.builder import write_report
from vitrail.report.text import LAYERS

HALVES = {"shift": ("b_out", "w_out"), "factor": ("w_out", "b_out")}
PARAMETERS = {"b_out": "output.shift", "w_out": "output.scale"}
LATE = "va"


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    return vt.datasets.heart_disease()


@pytest.fixture(scope="module", params=list(HALVES))
def run(request: pytest.FixtureRequest, sites: dict[str, pd.DataFrame]) -> vt.Run:
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    study = study.with_changes(training={"rounds": 3}, network={"hidden": [8]}, screen={"ask": False})
    early = {name: frame for name, frame in sites.items() if name != LATE}
    return vt.federate(study, early, method=vt.methods.IFedAvg(output=request.param), seed=1)


def test_only_the_trained_half_is_published_and_drawn(run: vt.Run, tmp_path) -> None:
    there, absent = HALVES[run.method.output]
    table = run.shifts()
    assert set(table.layer) == {"b_in", "w_in", there}
    assert table[table.layer == there].value.notna().all()
    assert (table[table.layer == there].value != LAYERS[there].neutral).all(), "it was trained"
    parameters = {k for k in run.models["cleveland"] if "output" in k}
    assert parameters == {f"params/{PARAMETERS[there]}"}
    assert not [line for line in run.plan.wire() if PARAMETERS[absent] in line.name]
    text = write_report(run, tmp_path / "page.html").read_text()
    assert f'data-figure="{there}"' in text
    assert absent not in text
    assert LAYERS[absent].title not in text


def test_the_consent_form_names_that_half(run: vt.Run) -> None:
    (publish,) = run.method.plan(3)[1].exchanges
    assert f"a {run.method.output} for each answer" in publish.consent
    assert "can be estimated before" in publish.consent


def test_a_newcomer_fits_that_half(run: vt.Run, sites: dict[str, pd.DataFrame]) -> None:
    there, absent = HALVES[run.method.output]
    grown = run.adopt(LATE, sites[LATE])
    name = f"params/{PARAMETERS[there]}"
    assert f"params/{PARAMETERS[absent]}" not in grown.models[LATE]
    assert bool((grown.models[LATE][name] != run.facts[PARAMETERS[there]].value.mean(0)).any())
    rows = grown.shifts()
    assert set(rows.layer) == set(run.shifts().layer)
    wide = rows[rows.layer == there].pivot(index="site", columns="feature", values="value")
    assert wide.loc[LATE].notna().all()
    assert not paper_flags(wide.to_numpy())[0].any(), "with four sites the O cannot appear"


def test_a_file_answers_as_the_model(run: vt.Run, sites: dict[str, pd.DataFrame], tmp_path) -> None:
    mine = run.model_of("cleveland")
    exported = export_model(mine, "cleveland", "run", tmp_path / "model.pt2")
    outputs = torch.export.load(exported.path).module()(given_rows(mine, sites["cleveland"]))
    want = torch.from_numpy(mine.predict(sites["cleveland"])[["0", "1"]].to_numpy(float))
    assert torch.allclose(outputs[0].double(), want, atol=1e-5)
