"""The sections of a page, from the top. Each says what it needs, which facts it draws, and what its template is given.

A section for facts with a new meaning is a line here, a function beside it and a template in parts/. Facts are looked
for by what they mean, never by name. What no section draws is listed at the end of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.analysis.clusters import read_groups
from vitrail.analysis.shortcuts.detector import ShortcutSignals, read_standing
from vitrail.analysis.trust import read_trust
from vitrail.analysis.uncertainty import read_choice, read_uncertainty
from vitrail.core import facts as means
from vitrail.data.encoding import columns, owners
from vitrail.methods import named
from vitrail.quality.screening.result import LABEL
from vitrail.report.charts import comparison as comparison_charts
from vitrail.report.charts.heatmap import heatmaps
from vitrail.report.charts.tables import methods_of, score_table, traffic, where
from vitrail.report.pages import site_benefit
from vitrail.report.sections import (
    calibration,
    cost,
    joint_choice,
    protection,
    scores,
    screening,
    selective_prediction,
    shortcuts,
    survival_by_risk,
    uncertainty,
)
from vitrail.report.sections import shared_model_use as agreed
from vitrail.report.sections.learning import class_overlap, groups, mixture, trust
from vitrail.report.sections.learning.sources import read_learned
from vitrail.report.text import LAYERS, metric_words

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page
    from vitrail.runs.result import Run

Contents = dict[str, Any]


class Section(NamedTuple):
    template: str
    contents: Callable[[Page], Contents]
    needs: Callable[[Page], bool] = lambda page: True
    draws: tuple[str, ...] = ()  # meanings of facts
    heat: bool = False  # whether it takes the styles of heatmaps


def chosen(page: Page) -> list[Section]:
    """The sections of this page."""
    return [section for section in SECTIONS if section.needs(page)]


def tells(*meanings: str) -> Callable[[Page], bool]:
    """Needs a run with a fact that means one of these."""
    return lambda page: page.run is not None and any(page.run.fact(what) is not None for what in meanings)


def undrawn(page: Page) -> list[dict[str, str]]:
    """The facts of a run that no section of its page draws."""
    drawn = {what for section in chosen(page) for what in section.draws}
    return [
        {
            "name": name,
            "means": fact.means,
            "axes": " x ".join(["round"] * fact.every + list(fact.axes)),
            "shape": " x ".join(map(str, fact.value.shape)) or "1 number",
        }
        for name, fact in (page.run.facts if page.run else {}).items()
        if fact.means not in drawn
    ]


def _run(page: Page) -> Run:
    assert page.run is not None, "the section needs a run"
    return page.run


# whose data does not fit, and what private layers do about it


def _fit(page: Page) -> Contents:
    assert page.screening is not None, "the section needs a screening"
    info = page.run.info if page.run else {}
    return screening.contents(page.screening, info.get("engine") == "deployed", info.get("pseudonyms", ()))


def _shifts(page: Page) -> Contents:
    run = _run(page)
    shifts, wrong = run.shifts(), {(f.site, f.feature) for f in run.findings() if f.wrong}
    of = dict(zip(columns(run.study), owners(run.study), strict=True))
    places = zip(shifts["layer"], shifts["feature"], strict=True)
    about = [of.get(c, c) if LAYERS[layer].column == "feature" else LABEL for layer, c in places]
    cells = zip(shifts["site"], about, strict=True)
    return {
        "maps": heatmaps(shifts.assign(flagged=[cell in wrong for cell in cells])),
        "layers": LAYERS,
        "said": screening.refusals(shifts),
        "paper": bool(shifts["flagged_paper"].astype(str).str.contains("[Ox]").any()),
    }


# whom each site learned from


def _has_trust(page: Page) -> bool:
    return page.run is not None and read_trust(page.run.sites, page.run.facts) is not None


def _trust(page: Page) -> Contents:
    learned = read_learned(_run(page))
    assert learned is not None
    return trust.contents(learned, metric_words(page.metric))


def _mixed(page: Page) -> Contents:
    run = _run(page)
    weights, agreed = run.fact(means.MIXED), run.fact(means.AGREED)
    assert weights is not None
    shown = weights.double() if agreed is None else weights.double().where(agreed[:, None], math.nan)
    return mixture.contents(run.sites, shown.numpy())


# who was put together


def _has_groups(page: Page) -> bool:
    return page.run is not None and read_groups(page.run.sites, page.run.facts) is not None


def _groups(page: Page) -> Contents:
    found = read_groups(_run(page).sites, _run(page).facts)
    assert found is not None
    return groups.contents(found)


# how unsure sites are, and what came of it


def _has_doubt(page: Page) -> bool:
    return page.run is not None and read_uncertainty(page.run.sites, page.run.facts) is not None


def _doubt(page: Page) -> Contents:
    run = _run(page)
    told, curve = read_uncertainty(run.sites, run.facts), run.curve()
    assert told is not None
    curve, words = curve[curve["metric"] == page.metric], metric_words(page.metric)
    return uncertainty.contents(told, curve, words, page.lower_is_better, page.chance_in(page.metric))


def _chosen(page: Page) -> Contents:
    run = _run(page)
    told = read_choice(run.sites, run.facts)
    assert told is not None
    return uncertainty.chosen_contents(told)


def _classes(page: Page) -> Contents:
    return class_overlap.contents(_run(page))


# whose class stands out

STANDING = (means.TRAVEL, means.PIECE, means.EASY, means.PROTOTYPE_DISTANCE)


def _read_standing(page: Page) -> ShortcutSignals:
    found = read_standing(_run(page).facts)
    assert found is not None
    return found


def _stands_out(page: Page) -> Contents:
    run = _run(page)
    deployed = run.info["engine"] == "deployed"
    return shortcuts.stands_out(_read_standing(page), run.sites, run.study.target.levels, deployed)


def _standing(page: Page) -> Contents:
    return shortcuts.contents(_read_standing(page), _run(page).sites, _run(page).study.target.levels)


# whom to learn from, and how much


def _choice(page: Page) -> Contents:
    found = joint_choice.read_choice(_run(page))
    assert found is not None
    return joint_choice.contents(found)


def _agreed(page: Page) -> Contents:
    found = agreed.read_agreed(_run(page))
    assert found is not None
    return agreed.contents(found, named(lambda kind: kind.catalogue.alone)[0])


# the rest


def _coverage(page: Page) -> Contents:
    return selective_prediction.contents(_run(page), page.chance_in("accuracy"), page.few)


def _left(page: Page) -> Contents:
    wire = [(m, where(page.wire, method=m).to_dict("records")) for m in methods_of(page)]
    return {"traffic": traffic(page), "wire": [(m, tensors) for m, tensors in wire if tensors]}


def _more(page: Page) -> Contents:
    pairs = set() if page.scores.empty else set(zip(page.scores["metric"], page.scores["split"], strict=True))
    others = sorted(pairs - {(page.metric, "test")}, key=lambda o: (o[1] != "test", o[0] != page.metric, o[0]))
    columns = [c for c in page.sites.columns if c not in ("site", "train_rows", "test_rows")]
    of = "with the event" if page.timed else "of their rarest class"
    unit = "patient" if "test_persons" in columns else page.row_word
    rare = {"test_rarest": f"hold-out {unit}s {of}", "few_rows": f"few {unit}s"}
    rare |= {"train_persons": "training patients", "test_persons": "hold-out patients"}
    columns = [c for c in columns if c != "test_rarest" or page.classes or page.timed]
    usual = {m: score_table(page, m).chance_mean for m in set(page.summary.get("metric", ()))}
    return {
        "summary": page.summary.to_dict("records"),
        "others": [score_table(page, m, s) for m, s in others],
        "site_rows": page.sites.to_dict("records"),
        "site_columns": columns,
        "site_heads": [(rare.get(c, c.replace("_", " ")), "") for c in columns],
        "usual": usual,
        "facts": undrawn(page),
        "more_sites": max(0, len(scores.worst_first(page)) - comparison_charts.PANELS)
        if scores.has_curves(page)
        else 0,
    }


SECTIONS = (
    Section("parts/fit.html", _fit, lambda page: page.screening is not None, heat=True),
    Section("parts/stands_out.html", _stands_out, tells(*STANDING), STANDING, heat=True),
    Section("short.html", scores.short),
    Section("parts/prototypes.html", _standing, tells(*STANDING), STANDING, heat=True),
    Section(
        "parts/trust.html",
        _trust,
        _has_trust,
        (
            means.ROUND,
            means.TRUST,
            means.SHARE,
            means.VANISHED,
            means.STOPPED,
            means.GRADIENTS,
            means.TO_ALONE,
            means.TO_SHARED,
            means.BETWEEN,
            means.AGREED,
            means.ALONE_WEIGHT,
            means.ALONE_BIAS,
        ),
        heat=True,
    ),
    Section("parts/mixed.html", _mixed, tells(means.MIXED), (means.MIXED, means.AGREED), heat=True),
    Section(
        "parts/groups.html",
        _groups,
        _has_groups,
        (means.ROUND, means.GROUP, means.GROUP_SPLIT, means.GROUP_MOVED, means.GROUP_LONGEST, means.ALIKE),
        heat=True,
    ),
    Section("parts/doubt.html", _doubt, _has_doubt, (means.ROUND, means.UNCERTAINTY), heat=True),
    Section("parts/chosen.html", _chosen, tells(means.CHOSEN), (means.ROUND, means.CHOSEN, means.SURE), heat=True),
    Section(
        "parts/classes.html",
        _classes,
        lambda page: class_overlap.differing(page.run) is not None,
        (means.SHARE, means.SIMILARITY),
        heat=True,
    ),
    Section(
        "parts/choice.html",
        _choice,
        tells(means.CHOICE),
        (
            means.ROUND,
            means.CHOICE,
            means.COSTS,
            means.TRIED,
            means.GROUP,
            means.LEFT_OUT,
            means.ALONE_LEFT_OUT,
            means.AGREED,
        ),
    ),
    Section(
        "parts/agreed.html",
        _agreed,
        tells(means.AGAINST_ALONE),
        agreed.DRAWS,
    ),
    Section("parts/shifts.html", _shifts, tells(*means.ENDS), (*means.ENDS, means.AGREED), heat=True),
    Section("parts/scores.html", lambda page: {}),  # the table is the page's own
    Section("parts/joining.html", scores.joining, scores.asks_for_joining),
    Section("parts/shown_verdicts.html", site_benefit.shown, site_benefit.is_shown),
    Section("parts/spread.html", scores.spread, scores.has_spread),
    Section(
        "parts/coverage.html",
        _coverage,
        lambda page: page.run is not None and selective_prediction.has_coverage(page.run),
    ),
    Section(
        "parts/bedside.html",
        lambda page: calibration.contents(_run(page)),
        lambda page: calibration.has_risk_counts(page.run),
    ),
    Section(
        "parts/by_risk.html",
        lambda page: survival_by_risk.contents(_run(page), page.few),
        lambda page: page.run is not None and survival_by_risk.has_groups(page.run),
    ),
    Section("parts/curves.html", scores.curves, scores.has_curves),
    Section(
        "parts/protected.html",
        lambda page: protection.contents(_run(page)),
        lambda page: page.run is not None and protection.has_protection(page.run),
        (means.ROUND, means.OUTLYING),
    ),
    Section("parts/left.html", _left),
    Section("parts/cost.html", lambda page: cost.contents(_run(page)), lambda page: cost.has_cost(page.run)),
    Section("parts/more.html", _more),
)
