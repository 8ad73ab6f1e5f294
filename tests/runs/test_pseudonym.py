"""A site may publish its layers under another name; nothing beside its own folder tells who that is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app
from vitrail.report.pages.builder import load, write_report

OTHER = {"cleveland": "ward-m", "switzerland": "ward-a", "va": "ward-z"}
ORDER = ["hungarian", "ward-a", "ward-m", "ward-z"]


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    """Of different sizes; at one, a feature is the wrong way round."""
    out = {}
    for i, site in enumerate(("switzerland", "hungarian", "va", "cleveland")):
        rng = np.random.default_rng(i)
        x = rng.normal(0, 1, (120 + 40 * i, 2))
        y = (x[:, 0] + 0.3 * rng.normal(0, 1, len(x)) > 0).astype(int)
        sign = -1 if site == "va" else 1
        out[site] = pd.DataFrame({"age": 50 + 10 * sign * x[:, 0], "chol": 200 + 30 * x[:, 1], "disease": y})
    return out


@pytest.fixture(scope="module")
def study(sites) -> vt.Study:
    return vt.Study.infer(sites, "disease").with_changes(training={"rounds": 20, "lr": 0.01}, network={"hidden": [8]})


@pytest.fixture(scope="module")
def out(study, sites, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    vt.federate(study, sites, method="ifedavg", seed=1, out=path, pseudonyms=OTHER)
    return path


def test_the_layers_are_published_under_the_pseudonym_only(out, study, sites) -> None:
    plain = vt.federate(study, sites, method="ifedavg", seed=1).shifts()
    run = vt.Run.load(out)
    shifts = run.shifts()
    assert set(shifts.site) == set(ORDER)
    back = {known: site for site, known in OTHER.items()}
    same = shifts.assign(site=shifts.site.replace(back)).merge(plain, on=["site", "feature", "layer"])
    assert len(same) == len(plain)
    assert np.allclose(same.value_x, same.value_y), "each with its own numbers"
    files = [p for p in out.rglob("*") if p.is_file() and "sites" not in p.relative_to(out).parts]
    with_layers = {"shifts.csv", "facts.safetensors", "screen.json"}
    assert with_layers <= {p.name for p in files}
    for path in files:
        words = set(re.findall(r"[\w-]+", path.read_bytes().decode("latin-1")))
        if path.name in with_layers:
            assert not words & OTHER.keys(), path
        elif path.name != "run.json":
            assert not words & set(OTHER.values()), path
    assert json.loads((out / "run.json").read_text())["pseudonyms"] == sorted(OTHER.values())
    assert set(run.scores().site) == set(sites), "scores are another thing"
    first = run.findings()[0]
    assert (first.site, first.feature) == ("ward-z", "age")


def test_the_order_of_rows_tells_nothing(out, study, sites) -> None:
    """Other sites behind the same pseudonyms: the rows still come in the order of the names."""
    turned = {"cleveland": "ward-z", "switzerland": "ward-m", "va": "ward-a"}
    other = vt.federate(study, sites, method="ifedavg", seed=1, pseudonyms=turned)
    run = vt.Run.load(out)
    for table in (run.shifts(), other.shifts()):
        for _, here in table.groupby(["layer", "feature"]):
            assert list(here.site) == ORDER
    for each in (run, other):
        wide = each.shifts().query("layer == 'b_in'").pivot(index="site", columns="feature", values="value")
        facts = pd.DataFrame(each.facts["input.shift"].value.numpy(), index=ORDER)
        features = each.shifts().query("layer == 'b_in'").feature.unique()
        assert np.allclose(wide[features], facts), "in the coordinator's file too"
    assert np.allclose(
        load_file(out / "coordinator" / "facts.safetensors")["input.shift"], run.facts["input.shift"].value
    )


def test_a_site_knows_its_own(out) -> None:
    run = vt.Run.load(out)
    assert {site: run.published_name(site) for site in run.sites} == {**OTHER, "hungarian": "hungarian"}
    kept = {p.parent.name: p.read_text().strip() for p in out.rglob("pseudonym.txt")}
    assert kept == OTHER
    copy = out.parent / "copy"
    run.save(copy)
    assert vt.Run.load(copy).pseudonyms == OTHER


def test_the_page_says_it_and_keeps_it(out, tmp_path) -> None:
    html = write_report(load(out), tmp_path / "page.html").read_text()
    layers = html[html.index('<section class="shifts"') : html.index('id="scores"')]
    assert "hungarian" in layers
    assert not OTHER.keys() & set(re.findall(r"[\w-]+", layers))
    fit = html[html.index('id="fit"') : html.index("</section>", html.index('id="fit"'))]
    assert "3 of 4 sites" in fit
    assert "cannot be matched" in fit
    assert "may still guess" in fit


def test_resumed_with_the_same_pseudonyms_or_not_at_all(study, sites, tmp_path) -> None:
    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise StoppedError

    given = {"method": "ifedavg", "seed": 1, "out": tmp_path / "run", "checkpoint_seconds": 0}
    with pytest.raises(StoppedError):
        vt.federate(study, sites, **given, pseudonyms=OTHER, progress=stop)
    turned = dict(zip(OTHER, reversed(list(OTHER.values())), strict=True))
    for other in (turned, {}, {**OTHER, "hungarian": "h"}):
        with pytest.raises(vt.VitrailError, match="this is another run") as caught:
            vt.federate(study, sites, **given, pseudonyms=other, resume=True)
        assert [p.where.rpartition(", ")[2] for p in caught.value.problems] == ["pseudonyms"]
        assert not [known for known in OTHER.values() if known in str(caught.value)]
    run = vt.federate(study, sites, **given, pseudonyms=OTHER, resume=True)
    assert set(run.shifts().site) == set(ORDER)
    again = vt.federate(study, sites, **given, pseudonyms=OTHER, resume=True)
    assert again.pseudonyms == OTHER


@pytest.mark.parametrize(
    ("pseudonyms", "refuse", "said"),
    [
        ({"switserland": "x"}, [], ["no site 'switserland'"]),
        ({"va": "cleveland"}, [], ["'cleveland' is the name of a site"]),
        ({"va": "va"}, [], ["'va' is the name of a site"]),
        ({"va": "x", "cleveland": "x"}, [], ["used more than once", "used more than once"]),
        ({"va": "x"}, ["va"], ["refuses to publish"]),
        ({"va": " ", "cleveland": "a\nb"}, [], ["expected a name", "expected a name"]),
    ],
)
def test_mistakes(pseudonyms, refuse, said, study, sites) -> None:
    with pytest.raises(vt.VitrailError) as caught:
        vt.federate(study, sites, method="ifedavg", pseudonyms=pseudonyms, refuse=refuse)
    assert len(caught.value.problems) == len(said)
    for problem, words in zip(caught.value.problems, said, strict=True):
        assert words in problem.what


@pytest.mark.parametrize("method", ["fedavg", "local", "weight_erosion", "influence"])
def test_a_method_that_publishes_nothing_takes_none(method, study, sites) -> None:
    quiet = study.with_changes(screen={"ask": False})
    with pytest.raises(vt.VitrailError, match="publishes nothing") as caught:
        vt.federate(quiet, sites, method=method, rounds=1, pseudonyms={"va": "x", "nobody": "y"})
    assert [p.where for p in caught.value.problems] == ["pseudonyms", "pseudonyms"], "all mistakes at once"
    assert "--method ifedavg" in str(caught.value)


def test_on_the_command_line(study, sites, tmp_path) -> None:
    study.save(tmp_path / "study.toml")
    (tmp_path / "data").mkdir()
    for site, frame in sites.items():
        frame.to_csv(tmp_path / "data" / f"{site}.csv", index=False)
    command = ["run", str(tmp_path / "study.toml"), "--data", str(tmp_path / "data"), "--method", "ifedavg"]
    command += ["--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*command, "--pseudonym", "va=site-7", "--pseudonym", "switzerland=site-2"])
    assert done.exit_code == 0, done.output
    assert vt.Run.load(tmp_path / "run").pseudonyms == {"va": "site-7", "switzerland": "site-2"}
    bad = CliRunner().invoke(app, [*command, "--pseudonym", "va", "--pseudonym", "va=a", "--pseudonym", "va=b"])
    assert isinstance(bad.exception, vt.VitrailError)
    assert len(bad.exception.problems) == 2
