"""A federation with scikit-learn's habits: its own checks, whose rows are whose, tables with words, grids."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
import warnings
from functools import partial
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import vitrail as vt
from tests.support import ROOT
from vitrail.report.pages.builder import write_report

SMALL = {"rounds": 4, "hidden": (8,), "lr": 0.05, "dropout": 0.0, "screen": False}
NEEDS_A_SETTING = "check_array_api_input"  # asks for SCIPY_ARRAY_API in the environment, whatever the estimator
Classifier, Regressor = vt.sklearn.FederatedClassifier, vt.sklearn.FederatedRegressor


def three_sites(rows=60):
    """Rows of three sites; at the last one the outcome is the other way round, so that models must differ."""
    rng = np.random.default_rng(5)
    x, sites = rng.normal(size=(rows, 3)), np.tile(["north", "south", "west"], rows // 3)
    y = np.where((x[:, 0] > 0) ^ (sites == "west"), "ill", "well")
    return x, y, sites


ALONE = next(name for name, kind in vt.methods.TABLE.items() if kind.catalogue.alone)


@pytest.fixture(scope="module")
def apart():
    """Every site's own model, each for itself."""
    x, y, sites = three_sites()
    return Classifier(ALONE, **SMALL | {"rounds": 40}).fit(x, y, sites=sites)


@pytest.mark.parametrize(("kind", "lr"), [(Classifier, 0.05), (Regressor, 0.03)])
def test_the_checks_of_scikit_learn(kind, lr):
    skipped, done = [], 0
    for estimator, check in estimator_checks_generator(kind(**SMALL | {"lr": lr})):
        assert isinstance(check, partial)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check(estimator)
            except SkipTest:
                skipped.append(check.func.__name__)
        done += 1
    assert skipped in ([], [NEEDS_A_SETTING])
    assert done > 40


def test_each_row_is_asked_of_its_site(apart):
    x, y, sites = three_sites()
    assert apart.sites_ == ["north", "south", "west"]
    assert apart.score(x, y, site=sites) > 0.9
    assert apart.score(x[sites == "west"], y[sites == "west"], site="north") < 0.2
    mixed = apart.predict_proba(x, site=sites)
    for name in apart.sites_:
        mine = sites == name
        np.testing.assert_allclose(mixed[mine], apart.predict_proba(x[mine], site=name))
    assert apart.classes_.tolist() == ["ill", "well"]
    assert (apart.predict(x, site="west") == apart.classes_[apart.predict_proba(x, site="west").argmax(1)]).all()


def test_who_names_no_site_is_told_which_there_are(apart):
    x, _, _ = three_sites()
    with pytest.raises(vt.VitrailError, match="north, south, west"):
        apart.predict(x)
    with pytest.raises(vt.VitrailError, match="Did you mean 'north'"):
        apart.predict(x, site="nroth")
    with pytest.raises(ValueError, match="one label for each of 60 rows, got 59"):
        apart.predict(x, site=["north"] * 59)


@pytest.mark.parametrize("sites", [["a"] * 59, [None] * 60, "a"])
def test_labels_that_fit_no_rows_are_refused(sites):
    x, y, _ = three_sites()
    with pytest.raises(vt.VitrailError, match="not clear which site each row belongs to"):
        Classifier(**SMALL).fit(x, y, sites=sites)


def test_a_wrong_setting_is_named_like_a_key_of_the_study():
    x, y, _ = three_sites()
    with pytest.raises(vt.VitrailError, match=r"training\.lr: expected more than 0") as told:
        Classifier(lr=-1.0, dropout=2.0).fit(x, y)
    assert len(told.value.problems) == 2
    with pytest.raises(vt.VitrailError, match="Did you mean"):
        Classifier(method=ALONE[:-1] + "x").fit(x, y)


def test_a_table_with_words_and_gaps():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"age": rng.normal(60, 9, 80), "ward": rng.choice(["A", "B", "C"], 80)})
    frame.loc[:4, "age"] = np.nan
    y = pd.Series((frame["ward"] == "A").to_numpy() * 5.0 + 20, name="days")
    model = Regressor(**SMALL | {"rounds": 20}).fit(frame, y, sites=["one", "two"] * 40)
    study = model.run_.study
    assert (study.target.column, study.features["ward"].kind, study.features["age"].kind) == (
        "days",
        "categorical",
        "numeric",
    )
    assert list(model.feature_names_in_) == ["age", "ward"]
    assert model.score(frame, y, site=["one", "two"] * 40) > 0.9
    with pytest.raises(vt.VitrailError, match="column ward"):
        model.predict(frame.assign(ward="D"), site="one")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["ward", "age"]], site="one")
    with pytest.raises(vt.VitrailError, match="column note"):
        model.fit(frame.assign(note=[f"seen on day {i} by Dr {i % 7}" for i in range(80)]), y)


@pytest.mark.parametrize("names", [("1", "1.0", "true"), ("", " ", "a"), ("Yes", "yes", "nan"), ("?", "-", "NA")])
def test_classes_that_look_alike_are_kept_apart(names):
    x, _, _ = three_sites()
    y = np.array(names, object)[x.argmax(1)]
    model = Classifier(**SMALL | {"rounds": 20}).fit(x, y)
    assert model.run_.sizes["train_rows"].sum() == 60  # none was taken for a row without a class
    assert model.score(x, y) > 0.9
    assert model.classes_.tolist() == sorted(names)
    assert model.predict_proba(x).shape == (60, 3)


def test_clones_pipelines_and_grids():
    x, y, sites = three_sites()
    model = Classifier(options={"mu": 0.5}, method="fedprox", study={"seeds": [3]}, **SMALL)
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert not hasattr(again, "run_")
    chain = make_pipeline(StandardScaler(), model).fit(x, y, federatedclassifier__sites=sites)
    assert chain.predict(x, site=sites).shape == (60,)
    run = chain[-1].run_
    assert (run.method.mu, run.seed) == (0.5, 3)
    grid = GridSearchCV(Classifier(**SMALL), {"method": [ALONE, vt.methods.FedAvg()]}, cv=2)
    with sklearn.config_context(enable_metadata_routing=True):
        asks = grid.estimator.set_fit_request(sites=True).set_score_request(site=True)
        held = cross_val_score(asks, x, y, cv=2, params={"sites": sites, "site": sites})
        assert np.isfinite(held).all()
    grid.set_params(error_score="raise").fit(x, y)
    assert np.isfinite(grid.cv_results_["mean_test_score"]).all()


def test_the_run_tells_what_runs_tell(tmp_path):
    """All rows are trained on unless some are held out; then the page has scores."""
    x, y, sites = three_sites(90)
    model = Classifier(**SMALL | {"screen": True, "test": 0.3}).fit(x, y, sites=sites)
    assert model.run_.sizes["test_rows"].tolist() == [9, 9, 9]
    assert model.run_.screening is not None
    assert "How well is each site served?" in write_report(model.run_, tmp_path / "page.html").read_text()
    everything = Classifier(**SMALL).fit(x, y, sites=sites)
    assert everything.run_.sizes["train_rows"].tolist() == [30, 30, 30]


def test_without_scikit_learn_one_is_told_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **more):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "vitrail.integrations.sklearn")
    with pytest.raises(vt.VitrailError, match=r"pip install 'vitrail\[sklearn\]'"):
        importlib.import_module("vitrail.integrations.sklearn")


def test_the_page_about_it_runs():
    text = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    told = {}
    exec(block, told)
    assert told["model"].run_.method.mu == 0.1
