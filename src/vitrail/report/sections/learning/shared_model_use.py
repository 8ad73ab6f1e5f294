"""How much of the shared model each site uses, as all agreed; and whom that is expected to serve worse than alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.analysis.harm import HarmEstimate, chance_worse, expect_worse
from vitrail.core import facts as means
from vitrail.core.text import number, several, signed
from vitrail.methods import named
from vitrail.report.charts import svg
from vitrail.report.sections.learning.joint_choice import AlternativeCosts, cost_figure, share
from vitrail.report.sections.section import Contents, Section, has_fact, run_of
from vitrail.report.text import listed, name
from vitrail.runs.result import Run

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

DRAWS = (
    means.ROUND,
    means.MIX,
    means.MIX_COSTS,
    means.MIX_EPOCHS,
    means.TRIED,
    means.AGAINST_ALONE,
    means.LEFT_OUT,
    means.ALONE_LEFT_OUT,
    means.ERROR_LEFT_OUT,
    means.AGREED,
)
NAMED = 0.8  # chance from which on a site is named


class AgreedLosses(NamedTuple):
    """What a site agreed to show, per row left out."""

    agreed: float
    alone: float
    error: float  # of their difference
    chance: float  # that it is served worse than alone

    @property
    def more(self) -> float:
        return self.agreed - self.alone


class SharedModelUse(NamedTuple):
    sites: list[str]
    epochs: int  # of tuning
    own: float  # the share of one's own model
    steps: list[int]
    tried: list[float]
    costs: np.ndarray  # [epochs, own share]
    worse: HarmEstimate | None
    shown: dict[str, AgreedLosses]

    @property
    def cost(self) -> float:
        return float(self.costs[self.steps.index(self.epochs), self.tried.index(self.own)])

    @property
    def named(self) -> list[str]:
        """From the likeliest on."""
        out = [s for s, v in self.shown.items() if v.more > 0 and v.chance >= NAMED]
        return sorted(out, key=lambda s: -self.shown[s].chance)


def read_agreed(run: Run) -> SharedModelUse | None:
    mix = [run.fact(what) for what in (means.MIX, means.MIX_COSTS, means.MIX_EPOCHS, means.TRIED)]
    sums = run.fact(means.AGAINST_ALONE)
    if sums is None or any(t is None for t in mix):
        return None
    (epochs, own), costs, steps, tried = (t[-1].double().numpy() for t in mix if t is not None)
    at = list(steps).index(epochs), list(tried).index(own)
    over = sums[-1][:, at[0], at[1]].tolist()
    shown = {}
    agreed = run.fact(means.AGREED)
    losses = [run.fact(what) for what in (means.LEFT_OUT, means.ALONE_LEFT_OUT, means.ERROR_LEFT_OUT)]
    if agreed is not None and all(v is not None for v in losses):
        for i, site in enumerate(run.sites):
            by, alone, error = (float(v[i]) for v in losses if v is not None)
            if bool(agreed[i]) and np.isfinite([by, alone, error]).all() and (by, alone) != (0.0, 0.0):
                shown[site] = AgreedLosses(by, alone, error, chance_worse(by - alone, error, over))
    whole_steps = [round(e) for e in steps]
    worse = expect_worse(over) if own < 1 else None
    return SharedModelUse(run.sites, round(epochs), float(own), whole_steps, tried.tolist(), costs, worse, shown)


def start_words(epochs: int) -> str:
    return f"tuned for {several(epochs, 'epoch')}" if epochs else "the shared model as it is"


def contents(page: Page) -> Contents:
    use = read_agreed(run_of(page))
    assert use is not None, "the section needs a mix"
    return contents_of(use, named(lambda kind: kind.catalogue.alone)[0])


def contents_of(use: SharedModelUse, keep: str) -> Contents:
    rows = [
        {
            "words": start_words(e),
            "own": share(use.tried[int(use.costs[i].argmin())]),
            "cost": number(float(use.costs[i].min()), 4),
            "more": signed(float(use.costs[i].min()) - use.cost, 4),
            "chosen": e == use.epochs,
        }
        for i, e in enumerate(use.steps)
    ]
    for words, own in (("everybody with the shared model, nothing of one's own", 0.0), ("everybody alone", 1.0)):
        if own in use.tried:
            cost = float(use.costs[0, use.tried.index(own)])
            losses = {"cost": number(cost, 4), "more": signed(cost - use.cost, 4)}
            rows.append({"words": words, "own": share(own), **losses, "chosen": False})
    sites = sorted(use.shown.items(), key=lambda item: -item[1].chance)
    return {
        "sentences": [_agreed(use), *_worse(use, keep)],
        "rows": rows,
        "figure": svg.twice(lambda width: _figure(use, width)) if len(use.tried) > 1 else "",
        "sites": [
            {
                "site": s,
                "agreed": v.agreed,
                "alone": v.alone,
                "more": signed(v.more, 4),
                "error": number(v.error, 4),
                "chance": share(v.chance),
            }
            for s, v in sites
        ],
        "named": share(NAMED),
    }


def _agreed(use: SharedModelUse) -> Markup:
    if use.own == 1:
        what, how = name("to stay alone"), "every site predicts by its own model, so that nobody learns from anybody"
    else:
        theirs = start_words(use.epochs) if not use.epochs else f"the shared model, {start_words(use.epochs)}"
        what = Markup("on {}").format(name(f"{share(use.own)} their own model, {share(1 - use.own)} the shared one"))
        how = f"a site's scores are so much of a model of its cases alone, and of {theirs}"
        if use.epochs:
            how += " on its own cases"
    lowest = float(use.costs[np.isfinite(use.costs)].min(initial=use.cost))
    if use.cost <= lowest:
        why = Markup("This had the lowest loss on cases that were left out, {} per case.").format(number(use.cost, 4))
    else:
        text = "Its loss on cases that were left out, {} per case, is hardly above the lowest, {}, and of those it is "
        text += "expected to serve fewest sites worse than alone."
        why = Markup(text).format(number(use.cost, 4), number(lowest, 4))
    return Markup("All sites together agreed {}: {}. {}").format(what, how, why)


def _worse(use: SharedModelUse, keep: str) -> list[Markup]:
    if use.own == 1:
        return [Markup("Nobody is served worse than alone: everybody is alone.")]
    out = []
    if use.worse is None:
        out.append(Markup("With so few sites it is not known how many of them it serves worse than training alone."))
    else:
        w = use.worse
        many = f"{number(w.share * w.sites, 1)} of {several(w.sites, 'site')} ({share(w.share)})"
        text = "It is expected to serve {} worse than alone; in nine of ten such cases it is {} of them."
        between = f"{w.low}" if w.low == w.high else f"{w.low} to {w.high}"
        out.append(Markup(text).format(name(many), between))
    if use.named:
        who = [
            Markup("{} ({} per case more, give or take {}; likely at {})").format(
                name(s), number(v.more, 4), number(v.error, 4), share(v.chance)
            )
            for s in use.named
            for v in (use.shown[s],)
        ]
        text = "Whose own cases say that alone serves it better: {}. Such a site may keep its model: {}."
        how = Markup("<code>vitrail predict … --keep {}</code>").format(keep)
        out.append(Markup(text).format(listed(who, 12), how))
    elif use.shown:
        text = "Of {} that show it, none has cases of its own that say alone would serve it better."
        out.append(Markup(text).format(several(len(use.shown), "site")))
    if silent := [name(s) for s in use.sites if s not in use.shown]:
        out.append(Markup("Not shown, as they wish or since they were not there: {}.").format(listed(silent, 12)))
    return out


def _figure(use: SharedModelUse, width: int) -> Markup:
    lines = [
        AlternativeCosts(start_words(e), use.costs[i], svg.colour(i), e == use.epochs) for i, e in enumerate(use.steps)
    ]
    return cost_figure(width, use.tried, lines, (use.own, use.cost), "the shared model")


SECTION = Section(contents, has_fact(means.AGAINST_ALONE), DRAWS)
