"""Every kind of page that the product writes, made in little time: what holds for all pages is tested on these."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import vitrail as vt
from tests.support import marked_prototypes
from tests.support.album import album
from tests.support.cards import make_table
from tests.support.report import groups, heatmaps, shortcuts, trust, uncertainty
from tests.support.report.explanations import made
from tests.support.report.holdout_runs import TABLES, small_run
from tests.support.report.likeness import make_likeness
from tests.support.report.live_runs import Story
from tests.support.report.missing_columns import make_missing
from tests.support.report.pages import HEART, make, screened
from tests.support.report.site_pages import told as looked
from tests.support.report.transfers import make_found
from vitrail.analysis.explanations.summary import summarise_sites
from vitrail.data.datasets.catalogue import packaged
from vitrail.quality.screening.result import LABEL, Finding
from vitrail.report import render
from vitrail.report.live import server
from vitrail.report.live.watcher import RunWatcher
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.card.page import render_card
from vitrail.report.pages.contribution import render_contribution
from vitrail.report.pages.explanation import render_explained
from vitrail.report.pages.explanation_summary import render_explanation_summary
from vitrail.report.pages.index import Demo, DemoPage, write_index
from vitrail.report.pages.likeness import render_likeness
from vitrail.report.pages.links import write_linked
from vitrail.report.pages.missing_columns import render_missing_columns
from vitrail.report.pages.site import render_private
from vitrail.report.pages.transfer import render_transfer
from vitrail.report.pages.vertical import render_together
from vitrail.report.sections.scores.own_verdict import write_own_verdict
from vitrail.report.sections.screening import write_screen
from vitrail.runs.site.card import make_card
from vitrail.runs.site.inspection import look_behind
from vitrail.studies.contribution.rewards import reward_shares
from vitrail.studies.contribution.values import CARRIED, LOO, SHAPLEY, Contribution
from vitrail.study.model import Study
from vitrail.vertical.matching.match import Match
from vitrail.vertical.run import VerticalRun
from vitrail.vertical.training.terms import GuestOffer, Terms
from vitrail.vertical.wire import MessageCount


def compared(_: Path) -> str:
    return render(make(rounds=8, screening=screened(heatmaps.found(3), columns=heatmaps.FEATURES)))


def run_of_classes(_: Path) -> str:
    return render(page_of(small_run("classes")))


def run_of_number(_: Path) -> str:
    return render(page_of(small_run("number")))


def run_of_time(_: Path) -> str:
    return render(page_of(small_run("time")))


def shifts(_: Path) -> str:
    """40 features, 16 of them folded; one site refused."""
    sites, features = [f"ward {i}" for i in range(6)], [f"feature {i:02d}" for i in range(40)]
    return render(heatmaps.page(heatmaps.shifted(sites, features, refused=["ward 4"]), sites=sites))


def trusted(_: Path) -> str:
    return render(trust.page())


def doubted(_: Path) -> str:
    return render(uncertainty.page())


def grouped(_: Path) -> str:
    path = [[0, 0, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2 + [[0, 2, 1, 1]] * 2
    return render(groups.page(groups.facts_of(path, lengths=True, alike=True)))


def prototypes(_: Path) -> str:
    return render(shortcuts.page(shortcuts.facts_of(6, 10, 12), 6))


def screening(folder: Path) -> str:
    findings = [*heatmaps.found(12), *heatmaps.found(12, wrong=False)]
    told = screened(findings, columns=heatmaps.FEATURES, why_not={"va": "it does not publish"})
    study = Study.load(packaged("heart_disease.toml"))
    return write_screen(study, told, folder / "screen.html").read_text("utf-8")


def screening_wide(folder: Path) -> str:
    """More columns than fit beside one another, and figures of what was published."""
    sites, columns = [f"ward {i}" for i in range(14)], [f"column {i:02d}" for i in range(50)]
    two = {"statistic": "median", "scale": "value", "here": 231.0, "elsewhere": 5.9, "reason": "usual"}
    tie = {"statistic": "correlation with the outcome", "scale": "correlation", "here": 0.3, "elsewhere": -0.1}
    findings = [Finding("ward 7", "column 20", "unit", True, 9.0, "Its median is 231 mg/dL here.", two)]
    findings += [
        Finding(
            sites[i % 14],
            columns[i % 50],
            "differs",
            False,
            5.0 - i / 20,
            f"It differs by {i} %.",
            two if i % 3 else tie,
        )
        for i in range(90)
        if (i % 14, i % 50) != (7, 20)
    ]
    told = screened(findings, sites, [*columns, LABEL], why_not={"ward 3": "it does not publish"})
    usual = {"quantiles": [2.0, 4.0, 6.0, 9.0, 14.0], "missing": 0.1}
    kept = {c: {"unit": "mg/dL", "names": [], "all": usual, "sites": dict.fromkeys(sites, usual)} for c in columns}
    study = Study.load(packaged("heart_disease.toml"))
    return write_screen(study, told._replace(evidence=kept), folder / "screen.html").read_text("utf-8")


def looks(_: Path) -> str:
    told = looked()._replace(
        command="vitrail repair study.toml ours.csv", together="vitrail repair study.toml --from x"
    )
    return render_private(told)


def looks_at_hold_out(_: Path) -> str:
    return render_private(look_behind(small_run("classes"), "va", TABLES["classes"]["va"]))


def pictures(_: Path) -> str:
    draw = np.random.default_rng(0)
    return render_private(
        album(draw.integers(0, 2, 80).tolist(), draw.random(80).tolist(), [i < 30 for i in range(80)])
    )


def pictures_with_prototypes(_: Path) -> str:
    """Single pictures under two models, and the same without a prototype."""
    frame = marked_prototypes.squares(["well", "well marked", "ill", "ill marked"] * 3, 5)
    run, without = marked_prototypes.by_hand([4]), [f"{marked_prototypes.ILL}:4"]
    return render_private(look_behind(run, marked_prototypes.SITE, frame, [], ["01.png", "02.png"], without))


def own_verdict(folder: Path) -> str:
    study = Study.load(packaged("heart_disease.toml")).with_changes(verdict={"folds": 5})
    told = {"verdict": "yes", "why": "it gains.", "rows": 200, "folds": 5, "seeds": 2, "alone": 0.6, "joined": 0.57}
    told |= {"gain": 0.03, "low": 0.01, "high": 0.05, "least": 0.02, "harm": 0.02, "same": 0.69}
    return write_own_verdict("va", study, told, folder / "own.html").read_text("utf-8")


def carded(_: Path) -> str:
    tables = {"north <b>": make_table(1), "south": make_table(2)}
    run = vt.federate(vt.Study.infer(tables, target="sick", training={"rounds": 1}), tables)
    site, seen = "north <b>", run.info["fingerprints"]
    return render_card(
        make_card(run.model_of(site), site, "run", tables[site], seen[site], [], ["a sum"], ["No noise."])
    )


def transferred(_: Path) -> str:
    return render_transfer(make_found([0.4, -0.1, 0.0, 0.2, -0.4, -0.395], [0.9, 0.3, 0.5, 0.6, 0.7, 0.2]))


def alike(_: Path) -> str:
    return render_likeness(make_likeness())


def columns_missing(_: Path) -> str:
    return render_missing_columns(make_missing())


def contributed(_: Path) -> str:
    worth = [0.05, 0.03, -0.02, 0.01]
    rows = [
        (s, way, CARRIED, v, v - 0.02, v + 0.02, 0.0)
        for way in (SHAPLEY, LOO)
        for s, v in zip(HEART, worth, strict=False)
    ]
    values = pd.DataFrame(rows, columns=["site", "way", "kind", "value", "low", "high", "chance"])
    costs = pd.DataFrame([(SHAPLEY, CARRIED, 4096, "all 16")], columns=["way", "kind", "evaluations", "how"])
    ledger = values[values.way == SHAPLEY].assign(rounds=20, credit=lambda t: t.value.clip(0), credit_low=0.0)
    ledger["credit_high"] = ledger.credit + 0.01
    about = ("Heart disease", "FedAvg", 1, HEART[0], 60, 20, "cross-entropy", 0.62, 0.66)
    rewards = reward_shares(HEART[0], dict.fromkeys(HEART, 20), dict(zip(HEART, worth, strict=True)))
    return render_contribution(Contribution(*about, values, costs, ledger, ["a note"], strain=9.0, rewards=rewards))


def explained(_: Path) -> str:
    return render_explained(made(), "St. <b>Mary's</b>", "Heart & Co")


def explained_all(_: Path) -> str:
    return render_explanation_summary(summarise_sites({f"a site with a long name {i}": made(120, i) for i in range(4)}))


def parties(_: Path) -> str:
    study = Study.load(packaged("vertical.toml"))
    offers = tuple(GuestOffer(guest, 4) for guest in study.guests)
    scores = [
        (model, metric, 0.7 + 0.05 * i, 0.65, 0.8, 0.05 * i, 0.01, 0.09)
        for i, model in enumerate(("alone", "together"))
        for metric in study.metrics
    ]
    named = ["model", "metric", "value", "low", "high", "gain", "gain_low", "gain_high"]
    crossed = {
        (stage, study.host, study.guests[0], "number in common"): MessageCount(3, 4000, 52_000)
        for stage in ("match", "training")
    }
    info = {
        "seed": 1,
        "common": 4000,
        "mark": "a1b2",
        "lists": dict.fromkeys(study.parties, 5000),
        "versions": {"vitrail": "0.1.0"},
        "started": "2025-11-15",
        "left": {guest: {"after": 400, "training": 1} for guest in study.guests},
    }
    match = Match(study.host, 4000, "a1b2", {}, {}, {}, {}, {})
    run = VerticalRun(study, info, Terms(4000, offers), match, None, pd.DataFrame(scores, columns=named), crossed)  # type: ignore[arg-type]
    return render_together(run)


def _live(folder: Path, **more: str) -> str:
    story = Story(folder / "run")
    story.info |= more
    story.begin()
    for r in range(1, 30):
        story.round(r, *(["va"] if r % 9 == 0 else []))
    story.keep(29)
    html = server.render(RunWatcher(story.path).look())[0]
    html = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)  # there is nobody whom it could ask
    return html.replace('role="alert" hidden>', 'role="alert">Vitrail does not answer.')


def following(folder: Path) -> str:
    return _live(folder)


def followed(folder: Path) -> str:
    """The same at its end."""
    return _live(folder, finished="2025-11-15")


def index(folder: Path) -> str:
    for name in ("a.html", "b.html"):
        (folder / name).write_text("-", encoding="utf-8")
    pages = [DemoPage("a.html", "The run", "What came of it."), DemoPage("b.html", "The look", "Its own rows.", "va")]
    demo = Demo("one", "A demo", "Four hospitals.", pages, ["va gains."], "Thanks.")
    return write_index(folder, demo, {"one": "this", "two": "another"}).read_text("utf-8")


PAGES: dict[str, Callable[[Path], str]] = {
    page.__name__: page
    for page in (
        compared,
        run_of_classes,
        run_of_number,
        run_of_time,
        shifts,
        trusted,
        doubted,
        grouped,
        prototypes,
        screening,
        screening_wide,
        looks,
        looks_at_hold_out,
        pictures,
        pictures_with_prototypes,
        own_verdict,
        carded,
        transferred,
        alike,
        columns_missing,
        contributed,
        explained,
        explained_all,
        parties,
        following,
        followed,
        index,
    )
}


def write_all(folder: Path) -> dict[str, Path]:
    """Name of a page -> its file."""
    written = {}
    for name, page in PAGES.items():
        (folder / name).mkdir()
        written[name] = folder / f"{name}.html"
        write_linked(page(folder / name), written[name])
    return written
