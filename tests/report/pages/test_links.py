"""Pages of one study link to each other, to nothing that is not there, and never from what everybody may read to what
stays at a site."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import vitrail as vt
from tests.support.cards import make_table
from tests.support.report.explanations import made
from vitrail.analysis.explanations.summary import summarise_sites
from vitrail.report.pages.builder import write_report
from vitrail.report.pages.card.page import write_card
from vitrail.report.pages.explanation import write_explained
from vitrail.report.pages.explanation_summary import write_explanation_summary
from vitrail.report.pages.index import Demo, DemoPage, write_index
from vitrail.report.pages.links import CLOSE, OPEN, read_head
from vitrail.report.pages.site import write_look
from vitrail.runs.integrity import verify_folder
from vitrail.runs.site.card import make_card
from vitrail.runs.site.inspection import look_behind

STUDY, OTHER = "Heart & <b>soul</b>", "Another study"
SITES = ("north <b>", "south")


def links(page: Path) -> list[str]:
    return [unescape(address) for address in re.findall(r'href="([^"]*)"', page.read_text("utf-8"))]


def linked_files(page: Path) -> set[str]:
    return {(page.parent / unquote(a)).resolve().name for a in links(page) if not a.startswith("#")}


def stays_at(page: Path) -> str:
    head = read_head(page.read_text("utf-8"))
    return head.site if head else ""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run folder with every page that its verbs write there, and one of another study."""
    folder = tmp_path_factory.mktemp("pages") / "run"
    tables = {site: make_table(i) for i, site in enumerate(SITES)}
    study = vt.Study.infer(tables, name=STUDY, target="sick", training={"rounds": 1}, network={"hidden": (4,)})
    trained = vt.federate(study, tables, out=folder)
    write_report(trained, folder / "report.html")
    for i, (site, table) in enumerate(tables.items()):
        seen = trained.info["fingerprints"][site]
        write_card(make_card(trained.model_of(site), site, "run", table, seen, [], [], []), folder / f"card-{i}.html")
        write_explained(made(), folder / f"explain-{i}.html", site=site, study=STUDY)
        write_look(look_behind(trained, site, table), folder / f"look & see {i}.html")
    write_explanation_summary(summarise_sites({"a": made()}), folder / "explain.html", STUDY)
    write_explained(made(), folder / "other.html", site="south", study=OTHER)
    return folder


def test_every_link_leads_somewhere(run: Path) -> None:
    pages = sorted(run.glob("*.html"))
    assert len(pages) == 9
    for page in pages:
        for address in links(page):
            file, _, anchor = address.partition("#")
            target = page if not file else page.parent / unquote(file)
            assert target.is_file(), f"{page.name}: {address}"
            assert not anchor or f'id="{anchor}"' in target.read_text("utf-8"), f"{page.name}: {address}"


def test_all_that_may_link_do(run: Path) -> None:
    """Also those that were written first."""
    assert linked_files(run / "report.html") == {"explain.html"}
    assert linked_files(run / "explain.html") == {"report.html"}
    for i in range(2):
        own = {f"card-{i}.html", f"explain-{i}.html", f"look & see {i}.html"}
        for name in own:
            assert linked_files(run / name) == (own - {name}) | {"report.html", "explain.html"}
    assert linked_files(run / "other.html") == set()


def test_what_all_may_read_never_leads_to_what_stays_at_a_site(run: Path) -> None:
    private = {page.name: stays_at(page) for page in run.glob("*.html") if stays_at(page)}
    assert sorted(set(private.values())) == sorted(SITES)
    for page in run.glob("*.html"):
        reached = {private[name] for name in linked_files(page) & private.keys()}
        assert reached <= {stays_at(page)} - {""}


def test_a_closed_run_stays_as_it_was_closed(run: Path, tmp_path: Path) -> None:
    """Pages that were written anew are in its log, and one that was changed is not made good by a new link."""
    assert verify_folder(run).wrong == []
    report = run / "report.html"
    before = report.read_text("utf-8")
    report.write_text(before.replace("<h1>", "<h1>Not "), encoding="utf-8")
    write_explanation_summary(summarise_sites({"a": made()}), run / "explain again.html", STUDY)
    assert [problem.where for problem in verify_folder(run).wrong] == ["report.html"]
    assert "explain%20again.html" not in report.read_text("utf-8")
    report.write_text(before, encoding="utf-8")
    for name in ("explain again.html", "explain again.csv"):
        (run / name).unlink()


def test_a_page_that_is_gone_is_no_longer_linked(tmp_path: Path) -> None:
    write_explained(made(), tmp_path / "a.html", site="south", study=STUDY)
    write_explained(made(), tmp_path / "b.html", site="south", study=STUDY)
    assert linked_files(tmp_path / "a.html") == {"b.html"}
    (tmp_path / "b.html").unlink()
    write_explained(made(), tmp_path / "c.html", site="south", study=STUDY)
    assert linked_files(tmp_path / "a.html") == {"c.html"}
    assert "Explanations at south (c.html)" in (tmp_path / "a.html").read_text(), "two of one name are told apart"


def test_a_page_of_a_site_leads_to_the_run_in_another_folder(run: Path, tmp_path: Path) -> None:
    beyond = [run / "report.html", run / "card-0.html", run / "nothing.html"]
    first = write_explained(made(), tmp_path / "a.html", site="south", study=STUDY, beyond=beyond)
    assert linked_files(first) == {"report.html"}, "and not to what stays at another site"
    write_explained(made(), tmp_path / "b.html", site="south", study=STUDY)
    assert linked_files(first) == {"report.html", "b.html"}, "it keeps that link when another page comes"
    assert linked_files(run / "report.html") == {"explain.html"}


def test_pages_of_a_demo_lead_to_its_index(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    (demo / "run").mkdir(parents=True)
    write_explanation_summary(summarise_sites({"a": made()}), demo / "run" / "report.html", STUDY)
    write_explained(made(), demo / "look.html", site="south", study=STUDY)
    write_explained(made(), demo / "other.html", site="south", study=OTHER)
    pages = [DemoPage("run/report.html", "The run", ""), DemoPage("look.html", "The look", "", "south")]
    index = write_index(demo, Demo("one", STUDY, "", pages), {"one": "this"})
    assert linked_files(index) == {"report.html", "look.html"}
    assert linked_files(demo / "run" / "report.html") == {"index.html"}
    assert linked_files(demo / "look.html") == {"index.html"}
    assert linked_files(demo / "other.html") == set()


def test_the_index_is_linked_once_also_from_a_page_that_is_named_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_index(tmp_path, Demo("one", STUDY, "", []), {"one": "this"})
    write_explained(made(), Path("look.html"), site="south", study=STUDY)
    assert [a for a in links(Path("look.html")) if not a.startswith("#")] == ["index.html"]


def test_names_are_text_in_links(run: Path) -> None:
    text = (run / "card-0.html").read_text("utf-8")
    (nav,) = re.findall(f"{OPEN}(.*?){CLOSE}", text)
    assert "north &lt;b&gt;" in nav
    assert "<b>" not in nav
    assert "look%20%26%20see%200.html" in nav


def test_a_page_loads_nothing_and_sends_nothing(run: Path) -> None:
    for page in run.glob("*.html"):
        html = page.read_text("utf-8")
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
        (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert policy == (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        )
