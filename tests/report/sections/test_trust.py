"""Whom each site learned from: what the page of a run says and draws, and the choice of a site in a browser."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

from tests.support.report.browser import BROWSER, Browser
from tests.support.report.pages import HEART, HOSTILE, SEEDS, make, run_of
from tests.support.report.trust import ROUNDS, WARDS, facts_of, page, scores_of
from vitrail.analysis.trust import Trust, read_trust
from vitrail.core import facts as means
from vitrail.core.facts import ALONE, OWN, SHARED, Fact
from vitrail.core.tensors import Params, flatten
from vitrail.data.encoding import Encoder
from vitrail.methods import IFedAvg, Influence, WeightErosion
from vitrail.report import render
from vitrail.report.sections.learning.matrix import matrix
from vitrail.report.sections.learning.sources import LearningSources, effects, read_learned
from vitrail.report.sections.learning.trust import contents_of
from vitrail.report.sections.learning.user import recent
from vitrail.report.sections.learning.wording import trust_sentences, user_sentences
from vitrail.runs.result import Run
from vitrail.runs.setup import build_task


def trust_of(sites: Sequence[str], **given: Any) -> Trust:
    found = read_trust(sites, facts_of(sites, **given))
    assert found is not None
    return found


def learned(sites: Sequence[str] = WARDS, linear: bool = True, **given: Any) -> LearningSources:
    rng, weights = np.random.default_rng(0), []
    for site in sites:
        for model in (OWN, SHARED, ALONE):
            weights += [(site, "yes", f"feature {f}", model, rng.normal()) for f in range(30)]
    table = pd.DataFrame(weights, columns=["site", "answer", "feature", "model", "value"])
    found = read_learned(run_of(sites, facts_of(sites, **given), scores_of(sites), WeightErosion()))
    assert found is not None
    assert found.weights is None, "the network has hidden layers"
    return found._replace(weights=table if linear else None, refused=sites[1:2])


def svgs(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>") for part in html.split("<svg")[1:]]


def test_it_says_who_trusts_whom() -> None:
    said = [str(s) for s in trust_sentences(trust_of(WARDS), [0, 3])]
    assert said[0] == "<b>ward 0</b> trusts <b>ward 1</b> most (0.34) and <b>ward 3</b> least (0.00)."
    assert said[1] == "<b>ward 3</b> trusts <b>ward 0</b> most (0.40) and <b>ward 4</b> least (0.16)."


def test_a_user_that_ends_alone_is_told() -> None:
    html = render(page(rate=0.1))
    assert "<b>ward 0</b> ends alone: from round 10 on it trusts nobody but itself." in html
    assert "Trust in <b>ward 1</b> lasted longest." in html
    assert "Mean trust over all rounds" in html
    assert "Mean trust over all rounds" not in render(page())


def test_what_happened_on_the_way_is_told() -> None:
    stopped = torch.zeros(ROUNDS, 5, dtype=torch.bool)
    stopped[20:, 2] = True
    vanished = torch.zeros(ROUNDS, 5, dtype=torch.bool)
    vanished[4:6, 1] = True
    html = render(page(stopped=stopped, vanished=vanished))
    assert "<b>ward 2</b> stopped in round 21" in html
    assert html.count("stopped in round") == 1
    assert "In 2 rounds the own update of <b>ward 1</b> was nothing" in html
    assert "750 gradients over 30 rounds for the models of all 5 users, 25.0 a round" in html
    assert "300 gradients for Global and Local" in html
    assert "messages hold something for each of the 5 sites" in html, "the method says so"
    assert "rows it had set aside" not in html
    html = render(page(stopped=stopped, validation=torch.ones(ROUNDS, 5)))
    assert "<b>ward 2</b> stopped in round 21: from then on its model no longer changes; the loss on the rows" in html


def test_the_local_model_is_near_is_told() -> None:
    near = torch.full((ROUNDS, 5), 0.01)
    assert render(page(to_alone=near)).count("It has all but become its local model") == 5
    assert "It has all but become" not in render(page())


def test_the_matrix_has_a_cell_for_every_pair_and_the_tree() -> None:
    found = contents_of(learned(), "accuracy")
    drawn = svgs(str(found["views"][0].drawing))[1]
    titles = [e.text for e in drawn.iter("title")]
    assert sum(" trusts " in (t or "") for t in titles) == 20
    assert sum("mean mutual trust" in (t or "") for t in titles) == 4
    order = [u["site"] for u in found["users"]]
    assert sorted(order) == WARDS
    trust = trust_of(WARDS).final.copy()
    trust[0, 1] = np.nan
    assert "ward 1 never met ward 0" in matrix(WARDS, trust, range(5), [])


def test_the_figure_of_a_user_draws_all_lines() -> None:
    user = next(u for u in contents_of(learned(), "accuracy (share)")["users"] if u["site"] == "ward 2")
    wide, narrow = svgs(str(user["figure"]))
    for drawn in (wide, narrow):
        assert sum(e.get("class") == "line" for e in drawn.iter("path")) == 3 + 4 + 2
        assert sum(e.get("class") == "level" for e in drawn.iter("line")) == 1
        labels = {e.text for e in drawn.iter("text")}
        assert {"Weight Erosion", "Global", "Local", "ward 0", "ward 4", "to Local", "to Global"} <= labels
        assert "ward 2" not in labels, "nobody erodes its own weight"
    desc = wide.find("desc")
    assert desc is not None
    assert "Weight Erosion 0.79, Global 0.69, Local 0.74" in (desc.text or "")


def test_weights_are_drawn_for_linear_models_only() -> None:
    users = contents_of(learned(), "accuracy")["users"]
    ((answer, drawn, left_out),) = users[0]["weights"]
    assert (answer, left_out) == ("yes", 4)
    assert sum(e.get("class") == "of-own" for e in svgs(str(drawn))[0].iter("circle")) == 26 + 1  # and the key
    for given, why in ((False, "this network has hidden layers"), (True, "are on the sites’ own machines")):
        html = render(page(linear=given))
        assert why in html
        assert "Learned weights, towards" not in html


def test_between_machines_only_what_was_shown_is_drawn() -> None:
    run = run_of(HEART, facts_of(HEART), scores_of(HEART), WeightErosion(), linear=True)
    many = build_task(run.study, run.method, 1).net.shape[0]
    weight = torch.randn(4, many, 2, generator=torch.Generator().manual_seed(0))
    run.facts |= {
        "w": Fact(weight, ("site", "input", "output"), means.ALONE_WEIGHT),
        "b": Fact(weight[:, 0], ("site", "output"), means.ALONE_BIAS),
        "who": Fact(torch.tensor([True, True, False, True]), ("site",), means.AGREED),
    }
    found = read_learned(run)
    assert found is not None
    assert found.refused == [HEART[2]]
    assert found.weights is not None
    assert set(found.weights["model"]) == {ALONE}
    assert set(found.weights["site"]) == {HEART[0], HEART[1], HEART[3]}
    html = render(make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run))
    assert html.count("What its local model makes of each feature") == 3
    assert html.count("did not show its local model") == html.count(f"{HEART[2]} did not show its local model") == 1
    one = found.weights[found.weights["site"] == HEART[3]]["value"].to_numpy()
    assert np.allclose(one[:-1], (weight[3, :, 1] - weight[3, :, 0]).numpy())


@pytest.mark.parametrize("ends", [False, True])
def test_a_linear_model_is_asked_what_it_makes_of_each_feature(ends: bool) -> None:
    method = IFedAvg(output="each") if ends else WeightErosion()
    task = build_task(run_of(HEART, linear=True).study, method, 1)
    rng = torch.Generator().manual_seed(0)
    params: Params = {k: torch.randn(v.shape, generator=rng) for k, v in task.start.items()}
    found = effects(task, params)
    x = torch.randn(1, 5, task.net.shape[0], generator=rng)
    asked = x[0].double() @ found[:-1] + found[-1]
    assert torch.allclose(asked, task.output({k: v[None] for k, v in params.items()}, x)[0].double(), atol=1e-4)


NAN = float("nan")
# round, user, site: in the first there is nothing to weigh; b is away in the third
WEIGHTS = [
    [[NAN] * 3] * 3,
    [[0.1, 0.6, 0.3], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]],
    [[0.5, 0.2, 0.3], [NAN] * 3, [0.0, 0.0, 1.0]],
    [[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]],
]


def shared(linear: bool = False) -> LearningSources:
    found = read_learned(share_run())
    assert found is not None
    weights = [(site, "yes", "age", OWN, 0.4) for site in "abc"]
    table = pd.DataFrame(weights, columns=["site", "answer", "feature", "model", "value"]) if linear else None
    return found._replace(weights=table)


def share_run() -> Run:
    """Linear, with every site's model at hand."""
    rounds = {"when": Fact(torch.arange(1, 5), (), means.ROUND, every=True)}
    facts = rounds | {"who": Fact(torch.tensor(WEIGHTS), ("user", "site"), means.SHARE, every=True)}
    scores = [(0, r, site, "test", "balanced_accuracy", 0.5 + r / 10) for r in range(5) for site in "abc"]
    run = run_of("abc", facts, scores, Influence(), linear=True)
    task = build_task(run.study, run.method, run.seed)
    state = run.method.settle(task, run.method.state(task, 1), None)  # type: ignore[arg-type]
    run.models = {site: {k: v[0] for k, v in flatten(state)} for site in "abc"}
    run.encoders = dict.fromkeys("abc", Encoder(run.study, {}, {}))
    return run


def test_shares_say_who_learned_from_whom() -> None:
    trust = shared().trust
    said = [str(s) for s in trust_sentences(trust, [0, 1, 2])]
    a, b, c = (f"<b>{site}</b>" for site in "abc")
    assert said[0] == f"{a} learned most from {b} (mean weight 0.27), least from {c} (0.20); its own part: 0.53."
    assert said[1] == f"{b} learned most from {a} (mean weight 0.70), least from {c} (0.00); its own part: 0.30."
    assert said[2] == f"{c} learned from nobody: no other site was given weight in any round."
    told = [" ".join(map(str, user_sentences(trust, i))) for i in range(3)]
    assert "In 2 of the 3 rounds" in told[0]
    assert "From round 4 on it trained on from its own model alone." in told[0]
    assert "In 2 of the 2 rounds" in told[1], "away in one"
    assert "It never learned from c." in told[1]
    assert "From round" not in told[1] + told[2]
    assert "In 0 of the 3 rounds" in told[2]


def test_shares_draw_the_same_parts() -> None:
    found = contents_of(shared(), "accuracy")
    (view,) = found["views"]
    drawn = svgs(str(view.drawing))[1]
    titles = [e.text for e in drawn.iter("title")]
    assert "a learned from b: 0.27" in titles
    assert "a: 0.53 its own" in titles
    cells = {e.find("title").text: e.get("class") for e in drawn.iter("rect")}  # type: ignore[union-attr]
    assert cells["b learned from a: 0.70"] == "h0", "the largest weight given to another is the darkest"
    assert cells["c learned from a: 0.00"] == "h6"
    assert cells["a: 0.53 its own"] == "none"
    joins = [
        (set(who.split(", ")), value)
        for who, _, value in (str(t).rpartition(": mean mutual weight ") for t in titles[-2:])
    ]
    assert joins == [({"a", "b"}, "0.48"), ({"a", "b", "c"}, "0.05")]
    assert {e.text for e in drawn.iter("text")} >= {"0.53", "mutual weight", "0.7", "0.35"}
    user = next(u for u in found["users"] if u["site"] == "a")
    wide = svgs(str(user["figure"]))[0]
    assert sum(e.get("class") == "line" for e in wide.iter("path")) == 1 + 3, "its own weight too"
    assert {"Influence", "a", "b", "c", "weights given by a, round by round"} <= {e.text for e in wide.iter("text")}
    html = render(make(sites="abc", methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=share_run()))
    part = html[html.index('id="trust"') : html.index('id="scores"')]
    for word in ("trust ", "Trust", "alpha", "Weight Erosion", "Global", "gradient"):
        assert word not in part, "not a word of the other method"
    assert "What its model makes of each feature" in part


def test_weights_that_jump_are_averaged_over_the_last_rounds() -> None:
    path = np.array([[np.nan], [1.0], [0.0], [np.nan], [0.0], [1.0]])
    assert np.allclose(recent(path, 3)[:, 0], [np.nan, 1, 0.5, np.nan, 0, 0.5], equal_nan=True)
    assert np.array_equal(recent(path, 1), path, equal_nan=True)


def test_the_line_of_one_answer_is_named_where_no_curve_is() -> None:
    user = contents_of(learned(), "accuracy (share)")["users"][0]
    for drawn in svgs(str(user["figure"])):
        label = next(e for e in drawn.iter("text") if e.text == "the same answer every time")
        assert label.get("class") == "label level"
        highest = min(float(e.get("y1", 0)) for e in drawn.iter("line") if e.get("class") == "grid")
        curves = [float(p.split(",")[1]) for e in drawn.iter("path") for p in e.get("d", "M0,999")[1:].split("L")]
        assert float(label.get("y", 0)) < min(highest, *curves)


def test_names_stay_text() -> None:
    html = render(page(sites=HOSTILE, odd=1))
    assert "<script>alert" not in html
    assert "<img src=x" not in html


def test_many_sites_stay_within_reason() -> None:
    html = render(page([f"ward {i}" for i in range(30)], rate=0.005))
    assert "Whom each of the 30 sites trusts" in html
    assert html.count("<option") == 0, "the script makes the choice"
    assert len(html) < 3_000_000


# in a browser

if BROWSER is None and not os.environ.get("CI"):
    pytest.skip("no Chromium found: install it to test the pages in a browser", allow_module_level=True)

SHOWN = (
    "[...document.querySelectorAll('[data-choose] > [data-name]')]"
    ".filter(e => e.checkVisibility()).map(e => e.dataset.name)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as driven:
        yield driven


def written(folder: Path, *sites: str) -> Path:
    path = folder / "page.html"
    path.write_text(render(page(list(sites) or WARDS)), encoding="utf-8")
    return path


def test_one_site_is_chosen_at_a_time(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path))
    names = browser.ask("[...document.querySelectorAll('.choose option')].map(o => o.textContent)")
    assert sorted(names) == WARDS
    assert browser.ask(SHOWN) == [names[0]]
    assert browser.ask("document.querySelector('.choose').textContent.startsWith('Site')")
    browser.click("document.querySelector('.choose select')")  # opens it; the keyboard chooses
    browser.ask("document.querySelector('.choose select').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.tell("Input.dispatchKeyEvent", type=kind, key="Escape", code="Escape", windowsVirtualKeyCode=27)
    for kind in ("keyDown", "keyUp"):
        browser.tell("Input.dispatchKeyEvent", type=kind, key="End", code="End", windowsVirtualKeyCode=35)
    browser.wait(f"{SHOWN}.join() === {names[-1]!r}")
    assert browser.says == []


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_and_its_figures_can_be_kept(browser: Browser, tmp_path: Path, width: int) -> None:
    browser.open(written(tmp_path), width=width)
    assert browser.ask("document.documentElement.scrollWidth") == width
    button = "[...document.querySelectorAll('[data-figure=\"{}\"] > .keep button')][0]"
    for name in ("trust", "user-1"):
        browser.click(button.format(name))
        file = browser.downloaded(f"{name}.svg")
        text = " ".join(ElementTree.fromstring(file.read_bytes()).itertext())
        file.unlink()
        assert "ward 3" in text
        assert ("Weight Erosion" in text) == (name == "user-1")
    assert browser.says == []


def test_shares_fit_a_telephone_and_its_figures_can_be_kept(browser: Browser, tmp_path: Path) -> None:
    shown = make(sites="abc", methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=share_run())
    path = tmp_path / "influence.html"
    path.write_text(render(shown), encoding="utf-8")
    browser.open(path, width=390)
    assert browser.ask("document.documentElement.scrollWidth") == 390
    for name, words in (("shares", "mutual weight"), ("user-1", "weights given by"), ("user-1-weights-1", "age")):
        browser.click(f"document.querySelector('[data-figure=\"{name}\"] > .keep button')")
        file = browser.downloaded(f"{name}.svg")
        assert words in " ".join(ElementTree.fromstring(file.read_bytes()).itertext())
        file.unlink()
    assert browser.says == []
