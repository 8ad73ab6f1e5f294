"""Sections are chosen by what facts mean and by what methods declare; names of both may be any."""

from __future__ import annotations

import dataclasses
import re
from html import unescape
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.report.pages import HEART, SEEDS, make, run_of
from tests.support.small import opposed_tables
from vitrail.core import facts as means
from vitrail.core.declarations import Catalogue
from vitrail.core.facts import Fact, Facts
from vitrail.methods import RIPFL, TABLE, Centralized, IFedAvg, Local, WeightErosion
from vitrail.report import Page, render
from vitrail.report.charts.tables import lead_method
from vitrail.report.pages import frame
from vitrail.report.pages.builder import page_of
from vitrail.report.sections import registry as section_registry
from vitrail.report.sections.registry import undrawn
from vitrail.report.sections.scores.findings import findings
from vitrail.report.sections.section import Section, has_fact

STRANGE = "what nobody has thought of yet"


@dataclasses.dataclass(frozen=True)
class Pooled(Centralized):
    catalogue = Catalogue("All rows in Bern", baseline="pooled")


@dataclasses.dataclass(frozen=True)
class Hermit(Local):
    catalogue = Catalogue("Hermit", baseline="alone")


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return opposed_tables({"small": 40, "large": 60, "middle": 50})


@pytest.fixture(scope="module")
def study(tables: dict[str, pd.DataFrame]) -> vt.Study:
    return vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 2})


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The yardsticks under other names and titles."""
    for name in ("centralized", "local"):
        monkeypatch.delitem(TABLE, name)
    for name, kind in (("bern", Pooled), ("hermit", Hermit)):
        monkeypatch.setitem(TABLE, name, kind)


def page(facts: Facts) -> Page:
    return make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run_of(HEART, facts))


def words(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


@pytest.mark.usefixtures("renamed")
def test_rows_that_leave_are_told_whatever_the_method_is_called(
    study: vt.Study, tables: dict[str, pd.DataFrame]
) -> None:
    for source in (vt.federate(study, tables, "bern"), vt.compare(study, tables, ["bern", "hermit", "fedavg"], [1])):
        shown = page_of(source)
        assert shown.pooled == ("bern",)
        html = render(shown)
        assert f'<strong class="warn">{Pooled.catalogue.title} moves the training rows of every site' in html
        sent = html.partition('id="t-traffic"')[2].partition("</table>")[0]
        loud = [line for line in sent.split("</tr>") if '<strong class="warn">the rows themselves</strong>' in line]
        assert loud
        assert all(f">{Pooled.catalogue.title}</th>" in line for line in loud)
    assert "No rows left any site under FedAvg" in words(html)


@pytest.mark.usefixtures("renamed")
def test_the_yardstick_of_joining_is_known_by_what_it_declares(
    study: vt.Study, tables: dict[str, pd.DataFrame]
) -> None:
    shown = page_of(vt.compare(study, tables, ["fedper", "hermit", "fedavg"], [1]))
    assert (shown.alone, shown.yardsticks) == ("hermit", ("hermit",))
    assert any("Alone it reaches" in line for line in findings(shown, shown.table))
    shown = dataclasses.replace(shown, verdicts=pd.DataFrame())
    assert "it takes Hermit among the methods" in render(shown)


def test_the_first_federated_method_of_the_table_stands_for_all(
    study: vt.Study, tables: dict[str, pd.DataFrame]
) -> None:
    shown = page_of(vt.compare(study, tables, ["local", "ditto", "fedprox"], [1]))
    assert list(shown.titles) == ["local", "ditto", "fedprox"], "as asked for"
    assert shown.federated == ("fedprox", "ditto")
    assert lead_method(shown, list(shown.titles)) == "fedprox"
    assert lead_method(shown, ["local", "ditto"]) == "ditto"
    assert lead_method(shown, ["local"]) == "local"


def test_a_fact_that_nobody_draws_is_listed() -> None:
    shown = page({"odd <b>": Fact(torch.zeros(7, 4, 2), ("site", "pair"), STRANGE, every=True)})
    assert undrawn(shown) == [
        {"name": "odd <b>", "means": STRANGE, "axes": "round x site x pair", "shape": "7 x 4 x 2"}
    ]
    html = render(shown)
    listed = words(html).partition("Other facts of this run")[2].partition("Which run this is")[0]
    assert listed.endswith(f" name meaning axes shape odd <b> {STRANGE} round x site x pair 7 x 4 x 2 ")
    assert "odd <b>" not in html
    assert "Other facts of this run" not in render(page({}))


def test_a_fact_is_listed_where_its_section_has_nothing_to_draw() -> None:
    """Trust that is nowhere known has no matrix, but is not lost."""
    trust = {"t": Fact(torch.full((2, 4, 4), torch.nan), ("user", "site"), means.TRUST, every=True)}
    trust |= {"r": Fact(torch.arange(2), (), means.ROUND, every=True)}
    assert [f["name"] for f in undrawn(page(trust))] == ["t", "r"]


def test_a_new_meaning_takes_one_section_and_its_template(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"any name": Fact(torch.tensor([3.0, 1.0, 4.0, 1.0]), ("site",), STRANGE)}

    def contents(page: Page) -> dict[str, object]:
        assert page.run is not None
        told = page.run.fact(STRANGE)
        assert told is not None
        return {"numbers": told.tolist()}

    contents.__module__ = "elsewhere.new"  # its template has its name

    def part(name: str) -> str:
        new = '<section aria-labelledby="new"><h2 id="new">New</h2>{{ numbers | join(" ") }}</section>'
        return new if name == "sections/new.html" else (files("vitrail.report") / "templates" / name).read_text("utf-8")

    monkeypatch.setattr(
        section_registry,
        "SECTIONS",
        (*section_registry.SECTIONS, Section(contents, has_fact(STRANGE), (STRANGE,))),
    )
    monkeypatch.setattr(frame, "part", part)
    frame.templates.cache_clear()
    try:
        assert "New</h2>3.0 1.0 4.0 1.0" in render(page(facts))
        assert undrawn(page(facts)) == []
        assert "New</h2>" not in render(page({}))
    finally:
        frame.templates.cache_clear()


@pytest.mark.parametrize("method", [IFedAvg(), WeightErosion(), RIPFL()])
def test_the_same_page_when_facts_have_other_names(
    method: vt.methods.AnyMethod, study: vt.Study, tables: dict[str, pd.DataFrame]
) -> None:
    run = vt.federate(study.with_changes(network={"kind": "linear"}), tables, method)
    before = render(page_of(run))
    run.facts = {f"f{i}": fact for i, fact in enumerate(run.facts.values())}
    after = render(page_of(run))
    cut = before.index('<section aria-labelledby="more">')  # where the others are listed by name
    assert after[:cut] == before[:cut]
    assert "Whom each site learned from" in after or "What each site learned for itself" in after


def test_no_method_is_known_by_its_name() -> None:
    folder = Path(str(files("vitrail.report")))
    sources = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert len(sources) > 30
    named = [(p.name, m) for p in sources for m in TABLE if re.search(rf"[\"']{m}[\"']", p.read_text("utf-8"))]
    assert named == []
