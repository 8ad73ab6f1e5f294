"""What notebooks show; and the three of docs/notebooks, run from the first cell to the last."""

from __future__ import annotations

import re
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient

import vitrail as vt
from tests.support import ROOT
from vitrail.core import display
from vitrail.quality.screening.result import Finding, Findings
from vitrail.report.pages.builder import write_report

NOTEBOOKS = ROOT / "docs" / "notebooks"
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def run():
    """Three sites, one with a name that means harm."""
    rng = np.random.default_rng(3)
    sites = {}
    for name in ("north", "south", f"west{EVIL}"):
        rows = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "chol", f"bp{EVIL}"])
        sites[name] = rows.assign(ill=np.where(rows["age"] > 0, "yes", f"no{EVIL}"))
    study = vt.Study.infer(sites, target="ill", name=f"three{EVIL}", network={"hidden": [4]})
    return vt.federate(study, sites, method="fedavg", rounds=3)


def test_short_in_one_line(run):
    assert repr(run).startswith("<run of 'three")
    assert repr(run.study).startswith("<study 'three")
    assert str(run.study) == repr(run.study)
    assert all(len(repr(thing).splitlines()) == 1 and len(repr(thing)) < 150 for thing in (run, run.study))
    compared = vt.Comparison(run.study, ["fedavg"], [1], *[pd.DataFrame()] * 3, run.sizes, {})
    assert repr(compared).endswith("fedavg; 3 sites, 1 seed>")


def test_findings_are_a_list_that_says_sentences():
    found = Findings(
        [
            Finding("va", "chol", "unit", True, 9.0, "It is smaller."),
            Finding("x", "age", "differs", False, 1.2, "Older."),
        ]
    )
    assert repr(found) == "likely wrong: va, chol: in another unit. It is smaller.\nmay be real: x, age: Older."
    assert found == list(found)
    shown_ = found._repr_html_()
    assert shown_.index("Likely wrong") < shown_.index("va, chol") < shown_.index("may be real") < shown_.index("Older")
    assert repr(Findings()) == "no findings"


def test_names_that_mean_harm_are_harmless(run):
    wrong = Findings([Finding(EVIL, EVIL, "unit", True, 9.0, EVIL)])
    pieces = [run._repr_html_(), run.study._repr_html_(), run.screening._repr_html_(), wrong._repr_html_()]
    pieces += [run.plot._repr_html_(), *(figure._repr_html_() for figure in run.plot)]
    assert all("<script" not in piece and "alert(1)" in piece for piece in pieces[:2])
    assert not any("<script" in piece for piece in pieces)


def test_a_run_shows_what_its_page_says_first(run):
    told = run._repr_html_()
    assert "3 sites trained together with FedAvg" in told
    assert "balanced accuracy" in told
    assert "<th>north</th>" in told


def test_figures_are_those_of_the_page(run, tmp_path):
    page = write_report(run, tmp_path / "page.html").read_text()
    assert {"curves", "sites"} <= set(dir(run.plot))
    for figure in run.plot:
        assert figure.drawing in page
        assert "<svg" in figure.drawing
    assert run.plot.curves == run.plot["curves"]
    assert repr(run.plot.curves) == "<figure curves: Learning curves on each site’s own hold-out rows>"
    with pytest.raises(vt.VitrailError, match="Did you mean 'curves'"):
        run.plot["curve"]
    with pytest.raises(AttributeError, match="Did you mean 'curves'"):
        run.plot.curve  # noqa: B018


def test_the_styles_of_a_figure_stay_inside_it(run):
    """Whatever they say is within the braces of our own class."""
    css = re.search(r"<style>(.*)</style>", run.plot.curves._repr_html_(), re.DOTALL)[1]
    assert css.startswith(".vitrail-figure {")
    assert ":root" not in css
    assert not re.search(r"^body\b", css, re.MULTILINE)
    depth = np.cumsum([{"{": 1, "}": -1}.get(c, 0) for c in re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)])
    assert (depth[css.index("{") : -1] > 0).all()
    assert depth[-1] == 0


def test_a_bar_only_in_a_notebook(monkeypatch):
    assert display.notebook_bar("round") is None
    looks = []
    handle = SimpleNamespace(update=looks.append)
    ways = SimpleNamespace(HTML=str, display=lambda bar, display_id: (looks.append(bar), handle)[1])
    monkeypatch.setattr(display, "kernel_display", lambda: ways)
    monkeypatch.setattr(display, "SECONDS", 1000)
    bar = display.notebook_bar("round")
    for done in range(1, 11):
        bar(done, 10)
    assert len(looks) == 2  # the first and the last; what is between comes too soon
    assert "round 1 of 10" in looks[0]
    assert 'value="10" max="10"' in looks[1]


def read_bare(name):
    """It is kept without what it showed, which would grow old."""
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    return book, cells


@pytest.mark.parametrize("name", ["coordinator", "researcher"])
def test_a_notebook_runs_from_the_first_cell_to_the_last(name, tmp_path, monkeypatch):
    """In this interpreter, cell by cell."""
    monkeypatch.chdir(tmp_path)
    shell, last = InteractiveShell(), []
    with capture_output():
        for cell in read_bare(name)[1]:
            done = shell.run_cell(cell.source)
            done.raise_error()
            last.append(done.result)
    shown_ = [thing for thing in last if hasattr(thing, "_repr_html_")]
    assert len(shown_) >= 3
    assert all(thing._repr_html_() for thing in shown_)


def test_in_a_kernel_there_are_a_bar_sentences_and_figures(tmp_path):
    """The hospital's notebook as a person runs it."""
    book, cells = read_bare("hospital")
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    htmls = ["".join(out.data.get("text/html", "") for out in cell.outputs if "data" in out) for cell in cells]
    told = "".join(htmls)
    assert "round 5 of 5" in told
    found = next(said for said in htmls if "Likely wrong" in said)
    assert "cleveland, thalach" in found
    assert "times as large" in found
    assert any("vitrail-figure" in said and "<svg" in said for said in htmls)
    assert "4 sites trained together" in told


def test_there_is_a_notebook_for_every_kind_of_user():
    assert {place.stem for place in NOTEBOOKS.glob("*.ipynb")} == {"hospital", "coordinator", "researcher"}
