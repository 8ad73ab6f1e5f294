"""What a run cost is on its page: of one process, or by each site's own word."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.command import vitrail
from tests.support.small import opposed_tables
from vitrail.core.errors import VitrailError
from vitrail.core.text import size
from vitrail.data.datasets.catalogue import packaged
from vitrail.engine.resource_usage import Footprint, cpu_seconds, footprint, read_footprint
from vitrail.methods import TABLE
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.sections.cost import traffic_words
from vitrail.runs.plan import Plan
from vitrail.runs.result import Run
from vitrail.study.model import Study


@pytest.fixture(scope="module")
def run() -> Run:
    tables: dict[str, pd.DataFrame] = opposed_tables({"north": 30, "south": 30})
    study = vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 1}, screen={"ask": False})
    return vt.federate(study, tables, method="fedavg")


def cells(run: Run) -> list[list[str]]:
    part = render(page_of(run)).split('id="cost"')[1].split("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", part, re.S)
    return [[re.sub(r"<.*?>", "", c).strip() for c in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)] for row in rows]


def test_on_one_machine_it_is_one_process(run: Run) -> None:
    (row,) = [r for r in cells(run) if r[0].startswith("all sites and the coordinator")]
    assert 0 < run.info["footprint"]["cpu"] < 60
    assert row[1] == f"{run.info['footprint']['cpu']:.1f} s"
    assert run.info["footprint"]["peak"] > 5e7  # torch alone takes more
    page = render(page_of(run))
    assert "what each would have used alone is not known" in page
    assert "Energy is not told" in page


def test_between_machines_each_site_says_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"north": Footprint(7200.0, 5e8, 12.0).plain()}
    monkeypatch.setattr(run, "info", {**run.info, "engine": "deployed", "footprints": told})
    rows = {r[0]: r for r in cells(run)}
    assert rows["north"][1:3] == ["7200.0 s", "500.0 MB"]
    assert rows["north"][5] == "24.00 Wh at 12.0 W"
    assert rows["south"][1:3] == ["not told", "not told"]
    out, into = (int(run.ledger[run.ledger.direction == w]["bytes"].sum()) for w in ("from site", "to site"))
    assert rows["the coordinator"][3:5] == [
        f"{into / 1e3:.1f} KB",
        f"{out / 1e3:.1f} KB",
    ]
    assert "south did not say" in render(page_of(run))


def test_carbon_is_told_from_two_stated_numbers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whoever stated both, with both beside it; and of nobody else."""
    told = {"north": Footprint(7200.0, 5e8, 12.0, 250.0).plain(), "south": Footprint(7200.0, 5e8, 12.0).plain()}
    monkeypatch.setattr(run, "info", {**run.info, "engine": "deployed", "footprints": told})
    rows = {r[0]: r for r in cells(run)}
    assert rows["north"][5:] == ["24.00 Wh at 12.0 W", "6.00 g at 250 g/kWh"]
    assert rows["south"][5:] == ["24.00 Wh at 12.0 W", "not told"]
    assert rows["the coordinator"][5:] == ["not told", "not told"]
    assert "It counts processors only" in render(page_of(run))


def test_a_simulated_run_tells_carbon_where_its_study_states_both() -> None:
    tables: dict[str, pd.DataFrame] = opposed_tables({"north": 30, "south": 30})
    study = vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 1}, screen={"ask": False})
    for energy, last in (({}, None), ({"watts": 8.0}, "Wh at 8.0 W"), ({"watts": 8.0, "grid": 120}, "at 120 g/kWh")):
        stated = vt.Study.parse(tomllib.loads(study.with_changes(energy=energy).to_toml()))
        run = vt.federate(stated, tables, method="fedavg")
        (row,) = [r for r in cells(run) if r[0].startswith("all sites")]
        assert len(row) == 5 + len(energy)
        assert last is None or row[-1].endswith(last)
        assert ("CO2 is this energy times" in render(page_of(run))) == ("grid" in energy)
    used = Footprint(**run.info["footprint"])
    assert used.carbon == used.cpu * 8 / 3600 * 120 / 1000 > 0


def test_stated_power_has_bounds(tmp_path: Path) -> None:
    tables: dict[str, pd.DataFrame] = opposed_tables({"north": 30, "south": 30})
    study = vt.Study.infer(tables, target="sick")
    for energy, why in (
        ({"grid": 120}, "no `watts` are stated"),
        ({"watts": 0}, "watts"),
        ({"watts": 8, "grid": -1}, "grid"),
        ({"watts": 8, "grid": 2001}, "grid"),
        ({"watts": 8, "grid": math.nan}, "grid"),
    ):
        with pytest.raises(VitrailError, match=why):
            study.with_changes(energy=energy)
    (tmp_path / "x.csv").write_text("a\n")
    done = vitrail("join", tmp_path, "--data", tmp_path / "x.csv", "--grid", "120")
    assert done.returncode == 2
    assert "no --watts are stated" in done.stdout + done.stderr
    done = vitrail("join", tmp_path, "--data", tmp_path / "x.csv", "--watts", "8", "--grid", "2001")
    assert done.returncode == 2
    assert "2000" in done.stdout + done.stderr


def test_a_process_knows_what_it_used() -> None:
    since = cpu_seconds()
    total = sum(i * i for i in range(200_000))
    used = footprint(since)
    assert total > 0
    assert 0 < used.cpu < 5
    assert math.isnan(used.energy)
    assert "watts" not in used.plain()
    assert footprint(math.inf).cpu == 0


@pytest.mark.parametrize(
    "said",
    [
        (-1, 1e8, 1), (1e10, 1e8, 1), (math.nan, 1e8, 1), (1, 0, 1), (1, 1e300, 1), (1, 1e8, -3),
        (1, 1e8, 8, -1), (1, 1e8, 8, 2001), (1, 1e8, 8, math.inf),
    ],
)  # fmt: skip
def test_what_cannot_be_true_is_not_taken(said: tuple[float, ...]) -> None:
    assert read_footprint(said) is None
    assert read_footprint((1, 1e8, 8, 2000)) is not None
    assert read_footprint((1, 1e8, math.nan)) is not None


def test_bytes_are_told_before_training_and_are_those_of_the_wire(tmp_path: Path) -> None:
    """The sum that `vitrail wire` prints: by `init` for its draft, by `run` for the rounds that it is given."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for site in ("a", "b", "c"):
        x = rng.normal(size=(60, 2))
        frame = pd.DataFrame(x, columns=["x", "z"]).assign(sick=np.where(x[:, 0] > 0, "yes", "no"))
        frame.to_csv(tmp_path / "data" / f"{site}.csv", index=False)
    study = tmp_path / "study.toml"
    drafted = vitrail("init", tmp_path / "data", "--target", "sick", "--out", study).stdout
    assert "in 100 rounds" in drafted
    trained = vitrail("run", study, "--data", tmp_path / "data", "--out", tmp_path / "run", "--rounds", "3").stdout
    agreed = Study.load(study).with_changes(training={"rounds": 3})
    method = agreed.build_method()
    plan = Plan(agreed, method, sites=3)
    lines = [*plan.wire(), *plan.later_wire()]
    out, into = (sum(x.bytes * x.rounds for x in lines if x.direction == way) for way in ("from site", "to site"))
    words = f"Between machines about {size(out)} would leave each site and {size(into)} reach it, in 3 rounds"
    assert trained.startswith(words)
    assert words not in drafted
    table = vitrail("wire", "fedavg", study).stdout
    amount = re.search(r"In all ([\d.,]+) MB leaves", table)
    assert amount is not None
    assert f"about {float(amount[1]):.1f} MB would leave" in drafted


def test_much_traffic_says_how_to_send_less_and_a_pool_that_rows_leave() -> None:
    study = Study.load(packaged("heart_disease.toml"))
    assert "send less" not in traffic_words(Plan(study, study.build_method(), sites=4))
    large = study.with_changes(network={"hidden": [1000, 1000]})
    words = traffic_words(Plan(large, large.build_method(), sites=4))
    assert words.endswith("A smaller network or fewer rounds send less.")
    pool = next(kind for kind in TABLE.values() if kind.catalogue.pools_rows)
    assert "takes every training row out of its site" in traffic_words(Plan(study, pool(), sites=4))
