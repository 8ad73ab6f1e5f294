"""A run screens before its first round: for every method, once, by consent, and it is kept."""

from __future__ import annotations

import copy
import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

import vitrail as vt
from tests.support.report.heatmaps import findings_shown
from vitrail.data.encoding import clean_sites
from vitrail.quality import screening as quality_screening
from vitrail.quality.screening import parts
from vitrail.quality.screening.result import LABEL, Screening
from vitrail.report.pages.builder import load, write_report
from vitrail.runs import screening as screening_module
from vitrail.runs.screening import (
    CACHED,
    SCREEN,
    as_kept,
    load_screening,
    screen_lines,
    screen_rows,
    screening_key,
    screens,
    unscreened,
)

NAMES = [f"ward-{i}" for i in range(6)]
ODD = "ward-2"


def make_sites(rows: int = 150) -> dict[str, pd.DataFrame]:
    """Alike, but that one writes a column in another unit."""
    out = {}
    for i, name in enumerate(NAMES):
        rng = np.random.default_rng(i)
        n = rows + 20 * i
        frame = pd.DataFrame({"age": rng.normal(60, 9, n).round(), "chol": rng.normal(240, 40, n).round()})
        frame["sex"] = rng.choice(["f", "m"], n)
        frame["disease"] = ((frame.age - 60) / 9 + (frame.chol - 240) / 40 + rng.normal(0, 0.7, n) > 0).astype(int)
        out[name] = frame
    out[ODD] = out[ODD].assign(chol=(out[ODD].chol / 38.67).round(2))
    return out


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    return make_sites()


@pytest.fixture(scope="module")
def study(sites) -> vt.Study:
    return vt.Study.infer(sites, "disease").with_changes(training={"rounds": 2}, network={"hidden": [4]})


@pytest.fixture(scope="module")
def ran(study, sites, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("screened") / "run"
    vt.federate(study, sites, method="fedavg", out=out)
    return out


def same(one: Screening, other: Screening) -> None:
    assert one.findings == other.findings
    pdt.assert_frame_equal(one.cells, other.cells, check_dtype=False)
    pdt.assert_frame_equal(one.sites, other.sites, check_dtype=False)
    assert (one.alpha, one.pooled, one.evidence) == (other.alpha, other.pooled, other.evidence)


def test_a_run_of_any_method_says_whose_data_does_not_fit(study, sites, ran) -> None:
    told = vt.screen_sites(study, sites)
    first = told.findings[0]
    assert (first.site, first.feature, first.wrong) == (ODD, "chol", True)
    for method in ("local", "ifedavg", "centralized"):
        assert vt.federate(study, sites, method=method).findings() == vt.Run.load(ran).findings()
    assert [f._replace(numbers={}) for f in vt.Run.load(ran).findings()] == [
        f._replace(numbers={}) for f in told.findings
    ]


def test_it_is_kept_and_read_again(study, sites, ran, tmp_path) -> None:
    run = vt.Run.load(ran)
    assert run.screening is not None
    json.loads((ran / SCREEN).read_text(), parse_constant=pytest.fail)  # no NaN: others read it too
    run.save(tmp_path / "copy")
    again = vt.Run.load(tmp_path / "copy").screening
    assert again is not None
    same(again, run.screening)


def test_the_page_and_findings_have_one_order(ran, tmp_path) -> None:
    run = vt.Run.load(ran)
    html = write_report(load(ran), tmp_path / "page.html").read_text()
    said = findings_shown(html)
    assert said
    for i, finding in enumerate(run.findings()):
        assert said[f"finding-{i}"].endswith(finding.text)
        assert said[f"finding-{i}"].startswith(f"Site {finding.site}")
    strong = [(not f.wrong, -f.strength) for f in run.findings()]
    assert strong == sorted(strong), "the likely wrong first, then by strength"


def test_what_was_published_of_a_finding_is_that_of_its_site(study, sites, ran) -> None:
    screening = vt.Run.load(ran).screening
    assert screening is not None
    mine = screening.evidence["chol"]
    own = np.quantile(sites[ODD].chol, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert mine["sites"][ODD]["quantiles"] == pytest.approx(own, rel=1e-4)
    assert 200 < mine["all"]["quantiles"][2] < 280
    assert {f.site for f in screening.findings if f.feature == "chol"} == set(mine["sites"]), "no other site's"


def test_a_screening_of_an_earlier_version_is_read(ran, tmp_path) -> None:
    content = json.loads((ran / SCREEN).read_text())
    del content["evidence"]
    (tmp_path / SCREEN).write_text(json.dumps(content))
    screening = load_screening(tmp_path / SCREEN)
    assert screening is not None
    assert screening.evidence == {}


def test_a_run_from_before_there_was_a_screening(ran, tmp_path) -> None:
    old = tmp_path / "old"
    shutil.copytree(ran, old)
    (old / SCREEN).unlink()
    (old / "alarms.json").write_text("[]")
    run = vt.Run.load(old)
    assert run.screening is None
    assert run.findings() == []
    assert not [x for x in run.wire() if x.stage.startswith("screen")], "what did not cross is not listed"
    assert "Whose data does not fit" not in write_report(load(old), tmp_path / "page.html").read_text()


def test_it_is_asked_once_in_a_run(study, sites, tmp_path, monkeypatch) -> None:
    """One that was stopped after it goes on with what was said."""

    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise StoppedError

    given = {"method": "fedavg", "out": tmp_path / "run", "checkpoint_seconds": 0}
    with pytest.raises(StoppedError):
        vt.federate(study, sites, **given, progress=stop)
    assert (tmp_path / "run" / SCREEN).exists(), "before the first round"
    monkeypatch.setattr("vitrail.runs.training.screen_rows", lambda *given: pytest.fail("asked again"))
    run = vt.federate(study, sites, **given, resume=True)
    assert (run.findings()[0].site, run.findings()[0].feature) == (ODD, "chol")


@pytest.fixture
def screened(monkeypatch) -> list[object]:
    """What is screened and not taken from the cache, which is empty before."""
    calls: list[object] = []
    real = quality_screening.screen

    def count(*given: object) -> Screening:
        calls.append(given)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(quality_screening, "screen", count)
    monkeypatch.setattr(screening_module, "_CACHE", {})
    return calls


def test_the_same_rows_are_screened_once_in_a_process(study, sites, screened) -> None:
    one, other = (vt.federate(study, sites, method=m, rounds=1).screening for m in ("fedavg", "local"))
    assert len(screened) == 1
    same(one, other)
    before = copy.deepcopy(other)
    one.findings.clear()
    one.sites.loc[:, "judged"] = False
    third = screen_rows(study, clean_sites(sites, study))
    assert len(screened) == 1
    same(third, before)  # what somebody does to the answer stays theirs


def test_the_cache_of_screenings_stays_small(study, sites, screened, monkeypatch) -> None:
    monkeypatch.setattr(
        quality_screening, "screen", lambda *given: Screening([], *[pd.DataFrame({"site": []})] * 2, 0.05)
    )
    monkeypatch.setattr(screening_module, "with_silent", lambda screening, why: screening)
    for i in range(CACHED + 5):
        screen_rows(study, {f"ward {i}": pd.DataFrame({"age": [1.0 + i]})})
    assert len(screening_module._CACHE) == CACHED


def test_the_key_of_a_screening_changes_with_everything_it_depends_on(study, sites) -> None:
    cleaned = clean_sites(sites, study)
    first, *_ = cleaned

    def changed_cell() -> dict[str, pd.DataFrame]:
        rows = cleaned[first].copy()
        rows.iloc[3, 1] = 77.25
        return {**cleaned, first: rows}

    narrower = study.model_copy(update={"features": dict(list(study.features.items())[:-1])})
    keys = [
        screening_key(study, cleaned),
        screening_key(study, changed_cell()),
        screening_key(study, {**cleaned, first: cleaned[first].iloc[:-1]}),
        screening_key(study, dict(reversed(cleaned.items()))),
        screening_key(study, {f"{site}'": rows for site, rows in cleaned.items()}),
        screening_key(study, cleaned, [first]),
        screening_key(study, cleaned, (), {first: "A"}),
        screening_key(study, cleaned, (), {first: "B"}),
        screening_key(narrower, cleaned),
    ]
    assert len(set(keys)) == len(keys)
    assert screening_key(study.with_changes(training={"rounds": 77}), {**cleaned}) == keys[0]


def test_who_refuses_publishes_nothing(study, sites) -> None:
    """It is left out as if it were not there, that is told, and nothing of it is in the ledger."""
    run = vt.federate(study, sites, method="fedavg", refuse=[ODD])
    assert run.screening is not None
    others = vt.screen_sites(study, {n: f for n, f in sites.items() if n != ODD})
    assert run.findings() == as_kept(others.findings)
    pdt.assert_frame_equal(run.screening.cells, others.cells)
    about = run.screening.sites.set_index("site")
    assert list(about.index) == NAMES
    assert not about.judged[ODD]
    assert about["why not"][ODD] == "it does not publish"
    assert np.isnan(about.rows[ODD])
    asked = run.ledger[run.ledger.stage.str.startswith("screen")]
    assert set(asked.site) == set(NAMES) - {ODD}
    assert (run.models[ODD]["params/head.bias"] != 0).any(), "it trained"


def test_what_crosses_is_in_the_ledger_and_on_the_wire(study, sites, ran) -> None:
    run = vt.Run.load(ran)
    lines = [x for x in run.wire() if x.stage.startswith("screen")]
    assert lines == screen_lines(run.study)
    assert [(x.stage, x.direction, x.name, x.shape) for x in lines] == [
        (f"screen: {p.leg}", p.direction, p.name, p.shape) for p in parts(study)
    ]
    assert all(x.words and x.asks for x in lines)
    assert {x.name for x in lines if x.seen == "sum"} == {p.name for p in parts(study) if p.total}
    for (stage, way), part in run.ledger[run.ledger.stage.str.startswith("screen")].groupby(["stage", "direction"]):
        want = sum(x.bytes for x in lines if (x.stage, x.direction) == (stage, way))
        assert set(part.bytes) == {want}
        assert set(part.messages) == {1}
        assert set(part.site) == set(sites)


def test_a_study_may_say_no(study, sites, tmp_path) -> None:
    quiet = study.with_changes(screen={"ask": False})
    assert "[screen]\nask = false" in quiet.to_toml()
    assert quiet == unscreened(study)
    run = vt.federate(quiet, sites, method="fedavg", out=tmp_path / "run")
    assert run.screening is None
    assert not (tmp_path / "run" / SCREEN).exists()
    assert "screen" not in " ".join(run.ledger.stage)
    html = write_report(run, tmp_path / "page.html").read_text()
    assert "Whose data does not fit" not in html
    assert "screen.ask = false" in html
    for given, words in (
        ({"refuse": ["ward-1"]}, "nothing to refuse"),
        ({"pseudonyms": {"ward-1": "x"}}, "publishes nothing"),
    ):
        with pytest.raises(vt.VitrailError, match=words):
            vt.federate(quiet, sites, method="fedavg", **given)


def test_under_pseudonyms(study, sites, tmp_path) -> None:
    """Found under the name that was published under; how many rows it has would tell who it is."""
    other = {ODD: "a", "ward-0": "z"}
    run = vt.federate(study, sites, method="fedavg", pseudonyms=other, out=tmp_path / "run")
    told = vt.Run.load(tmp_path / "run").screening
    assert told is not None
    assert (run.findings()[0].site, run.findings()[0].feature) == ("a", "chol")
    assert list(told.sites.site) == sorted({*NAMES, "a", "z"} - other.keys())
    assert told.sites.rows.isna().all()
    assert told.evidence["chol"]["all"], "what all sites published together"
    assert not any(of["sites"] for of in told.evidence.values()), "shares of rows tell how many there are"
    text = (tmp_path / "run" / SCREEN).read_text()
    assert not [name for name in other if name in text]


def test_two_sites_accuse_nobody(study, sites) -> None:
    run = vt.federate(study, {n: sites[n] for n in (ODD, "ward-0")}, method="fedavg")
    assert run.findings() == []
    assert run.screening is not None
    assert not run.screening.sites.judged.any()


def test_a_comparison_is_screened_once(study, sites, tmp_path, monkeypatch) -> None:
    asked = []

    def count(*given: object) -> Screening:
        asked.append(given)
        return screen_rows(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.import_module("vitrail.studies.compare.execution"), "screen_rows", count)
    monkeypatch.setattr("vitrail.runs.training.screen_rows", lambda *given: pytest.fail("a run asked too"))
    told = vt.compare(study, sites, ["fedavg", "local"], [1, 2], out=tmp_path / "all")
    assert len(asked) == 1
    assert told.screening is not None
    assert (told.screening.findings[0].site, told.screening.findings[0].feature) == (ODD, "chol")
    again = load(tmp_path / "all")
    assert isinstance(again, vt.Comparison)
    assert again.screening is not None
    same(again.screening, told.screening._replace(findings=again.screening.findings))
    html = write_report(again, tmp_path / "page.html").read_text()
    assert html.count('id="fit"') == 1
    assert f"{ODD}, chol" in html


def test_pictures_and_parties_are_not_screened(study) -> None:
    pictures = vt.Study.load(vt.datasets.packaged("pneumonia.toml"))
    assert not screens(pictures)
    assert screen_lines(pictures) == []
    assert "[screen]" not in pictures.to_toml()
    with pytest.raises(vt.VitrailError, match="pictures"):
        vt.screen_sites(pictures, {})


def test_a_text_names_no_factor_of_a_model(study, sites) -> None:
    """What a finding says comes from what sites published: the same whatever was learned, and however long."""
    short, long = (vt.federate(study, sites, method="ifedavg", rounds=r) for r in (1, 6))
    assert not np.allclose(short.shifts().value, long.shifts().value)
    assert [f.text for f in short.findings()] == [f.text for f in long.findings()]
    assert LABEL not in set(short.shifts().feature)


def test_a_screening_that_is_not_there(tmp_path) -> None:
    assert load_screening(tmp_path / SCREEN) is None
