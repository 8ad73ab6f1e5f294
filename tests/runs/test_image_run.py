"""Every verb on a small study of pictures: folders of PNG files in, and each works or says in plain words why not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
from tests.support.stripes import STUDY, stripes, write_folders
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import class_weights
from vitrail.data.readers.tables import read_sites, read_table
from vitrail.data.splitting import split_rows
from vitrail.deploy.audit.verification import verify
from vitrail.metrics.scores import score
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.runs.setup import check_trainable
from vitrail.runs.site.inspection import look_behind
from vitrail.studies.transfer import transfer

SITES = stripes()
# rows of a table that is shown, and a tensor's name
OTHER_ROWS = r"Row: a |\brow, the label|\brow (sums|need not sum)|two rows compare|compare within a row|>rows<"
NOT_READ = r"<(style|script).*?</\1>|scope=\"row\"|class=\"[^\"]*\""


def do(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    if isinstance(done.exception, VitrailError):  # `main` prints it and ends with 2
        assert code == 2, done.exception
        return of_pictures(str(done.exception))
    assert done.exit_code == code, f"vitrail {words}: {done.output}{done.exception!r}"
    return of_pictures(done.output)


def of_pictures(text: str) -> str:
    """What a person reads here calls no picture a row."""
    read = re.sub(OTHER_ROWS, "", re.sub(NOT_READ, "", text, flags=re.DOTALL))
    said = re.findall(r".{0,60}\brows?\b.{0,30}", read, re.IGNORECASE)
    assert not said
    return text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """study.toml; data/SITE/CLASS/*.png; new/*.png; and a finished run with its updates."""
    root = tmp_path_factory.mktemp("pictures")
    STUDY.save(root / "study.toml")
    write_folders(root / "data", SITES)
    write_folders(root, {"new": SITES["east"].iloc[8:15]}, labels=False)
    told = do("run", root / "study.toml", "--data", root / "data", "--out", root / "run", "--keep-updates")
    assert "balanced accuracy" in told
    return root


def models_equal(one: vt.Run, other: vt.Run) -> bool:
    return all(torch.equal(v, other.models[site][k]) for site, model in one.models.items() for k, v in model.items())


def trainable(method: str) -> vt.Study:
    """By Adam, or by SGD where the method cannot be trained by Adam."""
    try:
        check_trainable([(STUDY, vt.methods.build(method))])
    except VitrailError:
        return STUDY.with_changes(training={"optimiser": "sgd"})
    return STUDY


# the run itself


def test_folders_and_frames_give_the_same_run(place: Path) -> None:
    from_folder, from_frames = vt.Run.load(place / "run"), vt.federate(STUDY, SITES)
    assert from_folder.info["fingerprints"] == from_frames.info["fingerprints"]
    assert models_equal(from_folder, from_frames)
    pdt.assert_frame_equal(from_folder.scores(), from_frames.scores())


def test_engines_agree() -> None:
    one, other = (vt.federate(STUDY, SITES, engine=engine) for engine in ("vectorised", "looped"))
    for site in SITES:
        torch.testing.assert_close(one.models[site], other.models[site], rtol=0, atol=1e-6)


def test_it_learns_what_there_is_to_learn() -> None:
    run = vt.federate(STUDY, SITES, rounds=40)
    scores = run.scores().pivot(index="site", columns="metric", values="value")
    assert scores.balanced_accuracy.min() > 0.8
    assert scores.auc.min() > 0.9


def test_stopped_and_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vt.federate(STUDY, SITES, rounds=5, out=tmp_path / "run", checkpoint_seconds=0, progress=stop)
    resumed = vt.federate(STUDY, SITES, rounds=5, out=tmp_path / "run", resume=True)
    whole = vt.federate(STUDY, SITES, rounds=5)
    assert models_equal(resumed, whole)
    other = {**SITES, "east": SITES["east"].assign(picture=list(SITES["east"].picture[::-1]))}
    with pytest.raises(VitrailError, match="another run"):
        vt.federate(STUDY, other, rounds=5, out=tmp_path / "run", resume=True)


def test_predictions_give_the_scores(place: Path) -> None:
    run = vt.Run.load(place / "run")
    for site, frame in SITES.items():
        y = (frame.finding == "stripes").to_numpy().astype(int)
        _, test = split_rows(y, STUDY, run.seed, site)
        said = run.predict(site, frame.iloc[test])[list(STUDY.target.levels)]
        cut = np.array(run.encoders[site].thresholds)  # where the site decides
        told = score(STUDY.metrics, y[test], said.to_numpy().astype(float), thresholds=cut)
        mine = run.scores().query("site == @site").set_index("metric").value
        assert told == pytest.approx(mine.to_dict(), abs=1e-6)


@pytest.mark.parametrize("method", vt.methods.TABLE)
def test_the_page_of_every_method(method: str) -> None:
    """It speaks of pictures, shows none, and draws nothing that is about columns."""
    html = of_pictures(render(page_of(vt.federate(trainable(method), SITES, method=method, rounds=2))))
    assert "hold-out pictures" in html
    assert "16 x 16 pixels, grey" in html
    network = (
        "prototypes, 16 channels first"
        if vt.methods.TABLE[method].catalogue.required_net
        else "cnn [8, 4], 2 channels first"
    )
    assert network in html
    assert not re.search("data:image/(png|jpeg)|<img", html)
    assert not re.search(r"Standardised|Learned weights, towards", html)
    assert not any(name in html for frame in SITES.values() for name in frame.index)


def test_private_layers_are_shown_and_not_tested() -> None:
    run = vt.federate(STUDY, SITES, method="ifedavg", rounds=2)
    assert set(run.shifts().feature) == {"grey"}
    assert run.findings() == []
    html = render(page_of(run))
    assert run.screening is None, "pictures have no columns to compare"
    assert "Whose data does not fit" not in html
    assert "Fewer than three sites" not in html
    assert "brighter or darker" in html


# the verbs


def test_check_counts_pictures(place: Path) -> None:
    told = do("check", place / "study.toml", *(place / "data" / site for site in SITES))
    assert "north: 40 pictures, 0 errors, 0 warnings" in told


def test_report_and_resume(place: Path) -> None:
    (place / "run" / "report.html").unlink()
    do("report", place / "run")
    assert "hold-out pictures" in (place / "run" / "report.html").read_text()
    words = ["run", place / "study.toml", "--data", place / "data", "--out", place / "run", "--keep-updates"]
    assert "balanced accuracy" in do(*words, "--resume")


def test_predict_names_the_files(place: Path) -> None:
    out = place / "told.csv"
    do("predict", place / "run", "--site", "north", "--data", place / "new", "--out", out)
    told = pd.read_csv(out, index_col="picture")
    assert list(told.index) == [f"{i:03d}.png" for i in range(8, 15)]
    want = vt.Run.load(place / "run").predict("north", read_table(place / "new", STUDY))
    np.testing.assert_allclose(told[["plain", "stripes"]], want[["plain", "stripes"]], atol=1e-6)
    assert "Did you mean 'north'" in do("predict", place / "run", "--site", "nroth", "--data", place / "new", code=2)


def test_compare(place: Path) -> None:
    words = ["compare", place / "study.toml", "--data", place / "data", "--rounds", 1, "--seeds", 2, "--workers", 1]
    told = do(*words, "--out", place / "compared")
    assert "hold-out pictures" in told
    assert "own pictures" in told
    html = of_pictures((place / "compared" / "report.html").read_text())
    assert re.search(r"moves the training pictures of every site, \d+ pictures in all, to one place", html)


def test_tune_and_the_section_it_prints(place: Path) -> None:
    words = ["tune", place / "study.toml", "--data", place / "data", "--rounds", 1, "--folds", 2, "--workers", 1]
    told = do(*words, "--grid", "lr=0.01,0.001", "--grid", "width=2,3")
    assert len(re.findall(r"^0\.0\d+ +[23] ", told, re.MULTILINE)) == 4
    assert 'kind = "cnn"' in told


def test_transfer_tries_the_models_that_the_sites_trained(place: Path) -> None:
    """Each model's loss on the user's training pictures, beside the same by hand: as it was trained, without the
    constant that its own site adds."""
    study = STUDY.with_changes(training={"class_weights": "inverse"})
    found = transfer(study, SITES, folds=2, rounds=2)
    alone = vt.federate(study, SITES, method="local", rounds=2)
    alone.encoders = {site: replace(encoder, constants={}) for site, encoder in alone.encoders.items()}
    for row in found.table.itertuples():
        y = (SITES[row.user].finding == "stripes").to_numpy().astype(int)
        train, _ = split_rows(y, STUDY, found.seed, row.user)
        p = alone.predict(row.site, SITES[row.user].iloc[train])[["plain", "stripes"]].to_numpy()
        weights = class_weights(y[train], 2)[y[train]]
        losses = -np.log(p[np.arange(len(train)), y[train]])
        assert row.loss_on_user == pytest.approx((losses * weights).sum() / weights.sum(), abs=1e-5)
    assert found.feedback.empty
    out = place / "transfer"
    words = ["transfer", place / "study.toml", "--data", place / "data", "--folds", 2, "--rounds", 1, "--out", out]
    told = do(*words, "--train-with", "top:1", "--workers", 1)
    assert "columns" not in told
    assert "hold-out pictures" in told
    assert not (out / "feedback.csv").exists()
    html = of_pictures((out / "transfer.html").read_text())
    assert "another site’s pictures" in html
    assert "used most differently" not in html


@pytest.mark.parametrize("where", ["data", "data/north"])
def test_contribution(place: Path, where: str, tmp_path: Path) -> None:
    words = "--user", "north", "--data", place / where, "--out", tmp_path / "told", "--no-retrain"
    told = do("contribution", place / "run", *words)
    assert "north, 13 test pictures of its own" in told
    of_pictures((tmp_path / "told" / "contribution.html").read_text())
    ledger = pd.read_csv(tmp_path / "told" / "ledger.csv")
    run = vt.Run.load(place / "run")
    y = (SITES["north"].finding == "stripes").to_numpy().astype(int)
    _, test = split_rows(y, STUDY, run.seed, "north")
    p = run.predict("north", SITES["north"].iloc[test])[["plain", "stripes"]].to_numpy()
    end = -np.log(p[np.arange(len(test)), y[test]]).mean()
    baseline = float(re.search(r"has ([\d.]+): a gain", told)[1])
    assert ledger.value.sum() == pytest.approx(baseline - end, abs=2e-4)


@pytest.mark.parametrize("where", ["data", "data/north"])
def test_a_slip_in_the_users_name_is_told_first(place: Path, where: str) -> None:
    """And not that folders of sites are no classes."""
    told = do("contribution", place / "run", "--user", "nroth", "--data", place / where, "--coalitions", 1, code=2)
    assert "no site 'nroth' took part in the run. Did you mean 'north'?" in told
    assert "no class" not in told
    assert told.index("nroth") < told.index("expected at least 80, got 1")


def test_a_folder_without_the_users_pictures_says_so(place: Path, tmp_path: Path) -> None:
    data = write_folders(tmp_path, {"east": SITES["east"]})
    told = do("contribution", place / "run", "--user", "north", "--data", data, code=2)
    assert "expected one folder or file for site 'north' here, got 0" in told
    assert "no class" not in told


def test_adopt(place: Path, tmp_path: Path) -> None:
    do("run", place / "study.toml", "--data", place / "data", "--out", tmp_path / "fit", "--method", "ifedavg")
    more = write_folders(tmp_path, stripes({"west": 20}))
    do("adopt", tmp_path / "fit", "--site", "west", "--data", more / "west", "--out", tmp_path / "more")
    assert vt.Run.load(tmp_path / "more").sites == ["east", "north", "south", "west"]
    of_pictures((tmp_path / "more" / "report.html").read_text())
    words = ["adopt", place / "run", "--site", "west", "--data", more / "west", "--out", tmp_path / "none"]
    assert "learns no private layers" in do(*words, code=2)


def test_wire(place: Path) -> None:
    told = do("wire", "centralized", place / "study.toml")
    assert re.search(r"ALL TRAINING PICTURES: pixels, per picture +1 x 16 x 16 +uint8 +256 ", told)
    assert "260 bytes for every training picture: THE PICTURES THEMSELVES LEAVE" in told
    assert "change/head.weight" in do("wire", "fedavg", place / "study.toml")
    assert "model/head.weight" in do("wire", "ndoye", place / "study.toml")


@pytest.mark.parametrize("method", ["fedavg", "local", "ifedavg"])
def test_look_needs_no_private_layers(place: Path, method: str, tmp_path: Path) -> None:
    do("run", place / "study.toml", "--data", place / "data", "--out", tmp_path / "run", "--method", method)
    page, mine = tmp_path / "look.html", place / "data" / "north"
    told = do("look", tmp_path / "run", "--site", "north", "--data", mine, "--out", page)
    assert "This stays at north." in told
    assert "Of 13 pictures that were not used in training" in told
    assert "data:image/png;base64" in of_pictures(page.read_text())
    told = do("look", tmp_path / "run", "--site", "north", "--data", mine, "--feature", "grey", code=2)
    assert "has no columns" in told


def test_look_at_other_pictures_says_so(place: Path) -> None:
    run = vt.Run.load(place / "run")
    seen = look_behind(run, "north", SITES["south"])
    assert not seen.same
    assert {s.held_out for g in seen.galleries for s in g.shots} == {None}


def test_one_broken_picture_stops_a_run_before_it_begins(place: Path, tmp_path: Path) -> None:
    data = write_folders(tmp_path / "data", SITES)
    (data / "north" / "plain" / "000.png").write_bytes(b"not a picture")
    told = do("run", place / "study.toml", "--data", data, "--out", tmp_path / "run", code=2)
    assert "north, plain/000.png" in told
    assert not (tmp_path / "run").exists()


def test_a_parquet_file_of_all_sites(tmp_path: Path) -> None:
    from vitrail.data.readers.images import png

    frames = [f.assign(picture=[png(p) for p in f.picture], site=site) for site, f in SITES.items()]
    pd.concat(frames, ignore_index=True).to_parquet(tmp_path / "all.parquet")
    study = STUDY.with_changes(site_column="site")
    sites = read_sites(tmp_path / "all.parquet", study)
    assert models_equal(vt.federate(study, sites, rounds=1), vt.federate(STUDY, SITES, rounds=1))


# the demo


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short, and in this process: what it shows, not how well it learns."""
    monkeypatch.setattr("vitrail.cli.demo.cores", lambda: 1)
    load, few = vt.Study.load, {name: frame[::6] for name, frame in vt.datasets.pneumonia().items()}
    monkeypatch.setattr(vt.datasets, "pneumonia", lambda: few)
    monkeypatch.setattr(vt.Study, "load", lambda path: load(path).with_changes(training={"rounds": 1}))
    told = do("demo", "pictures", "--seeds", 1, "--out", tmp_path / "demo")
    assert "PneumoniaMNIST" in told
    assert "CC BY 4.0" in told
    html = (tmp_path / "demo" / "report.html").read_text()
    assert "Kermany" in html
    assert "the sites are a cut of ours" in html
    shown = [
        kind
        for kind in vt.methods.TABLE.values()
        if not kind.catalogue.required_net and (kind.catalogue.in_short_comparison or not kind.catalogue.federated)
    ]
    assert len(shown) >= 4
    assert all(kind.catalogue.title in html for kind in shown)
    index = (tmp_path / "demo" / "index.html").read_text()
    assert 'href="report.html"' in index
    assert "vitrail demo prototypes" in index
    assert verify(tmp_path / "demo").wrong == [], "what a demo adds to the folder of a run is in its log"
    assert "Did you mean 'pictures'" in do("demo", "picture", code=2)


def test_the_demo_of_prototypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The federation's page names site and class and shows no picture; the site's own shows where the mark is."""
    few = {name: frame[::2] for name, frame in vt.datasets.pneumonia().items()}
    monkeypatch.setattr(vt.datasets, "pneumonia", lambda: few)
    told = do("demo", "prototypes", "--out", tmp_path / "demo")
    assert "referral, class pneumonia" in told
    html = (tmp_path / "demo" / "report.html").read_text()
    assert "<img" not in html
    assert "referral" in html
    private = (tmp_path / "demo" / "look-referral.html").read_text()
    assert "One place decides on class pneumonia, at the upper right of the picture" in private
    assert [p.name for p in (tmp_path / "demo").glob("look-*")] == ["look-referral.html"]
