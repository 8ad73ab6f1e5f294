"""Which site's class stands out, in words: for a terminal, and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitrail.analysis.shortcuts.detector import ShortcutFinding, ShortcutSignals, too_few

LOOK = "vitrail look RUN --site NAME --data PICTURES"
LOOK_THERE = "vitrail look --kit KIT --data PICTURES"  # where the site took part from its own machine


class ShortcutWording(NamedTuple):
    site: str
    label: str
    what: str  # the numbers behind it
    sure: str
    ask: str

    @property
    def text(self) -> str:
        return f"Site {self.site}, class {self.label}: {self.what}. {self.sure}"


def sentences(standing: ShortcutSignals, sites: Sequence[str], labels: Sequence[str]) -> list[ShortcutWording]:
    """Of each cell that stands out, the surest first."""
    return [_wording_of(standing, finding, sites[finding.site], labels[finding.label]) for finding in standing.found]


def calm(standing: ShortcutSignals) -> str:
    """What it means that nothing was found; empty where something was."""
    if standing.found:
        return ""
    if too_few(standing):
        return (
            "Fewer than three sites reported how their models perform. If two differ, nobody can say which "
            "of them is unusual."
        )
    if not standing.cells:
        return (
            "The sites reported too little to say whether a class at a site stands out; the distance between "
            "prototypes alone cannot show it."
        )
    return (
        f"No class at any site stands out: nothing in {standing.cells} cells (a class at a site) is rarer "
        f"than what {100 * standing.level:.0f} in 100 federations without any shortcut show. This does not prove "
        "that there is no shortcut."
    )


def to_text(standing: ShortcutSignals, sites: Sequence[str], labels: Sequence[str]) -> str:
    """For a terminal."""
    findings = sentences(standing, sites, labels)
    if not findings:
        return f"  {calm(standing)}"
    lines = [line for one in findings for line in (f"  - {one.text}", f"    To ask {one.site}: {one.ask}")]
    return "\n".join([*lines, f"  Each site can look at its own pictures, and nothing leaves it: {LOOK}"])


def labels_of(levels: Sequence[str], standing: ShortcutSignals) -> list[str]:
    """The names of the classes; numbers where they are not known."""
    many = standing.chance.shape[1]
    return list(levels) if len(levels) == many else [str(i + 1) for i in range(many)]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def times(log_odds: float) -> str:
    """A difference of log-odds as a factor of odds."""
    factor = float(np.exp(min(max(log_odds, -7.0), 14.0)))
    return f"{factor:.1f} times" if factor < 10 else f"{float(f'{factor:.1g}'):,.0f} times"


def _wording_of(standing: ShortcutSignals, finding: ShortcutFinding, site: str, label: str) -> ShortcutWording:
    at, usual, parts = (finding.site, finding.label), standing.usual, []
    for signal in finding.by:
        if signal == "travel":
            home, away, expected = (percent(t[at]) for t in (standing.home, standing.away, usual[signal]))
            part = (
                f"its model classifies {home} of these pictures correctly at its own site and {away} at the "
                "other sites (usual at its own "
            )
            parts.append(f"{part}site, for a model with such results elsewhere: {expected})")
        elif signal == "margin":
            more, expected = times(standing.margin[at]), times(usual[signal][at])
            part = "compared with the other sites' models on the same pictures, its model gives the right class odds "
            part += f"{more} higher at its own site than elsewhere (usual: {expected}"
            available = np.isfinite(standing.home[at]) and "travel" not in finding.by
            right = f"; correct there {percent(standing.home[at])}, elsewhere {percent(standing.away[at])}"
            parts.append(f"{part}{right if available else ''})")
        elif signal == "piece":
            more, expected = times(standing.piece[at]), times(usual[signal][at])
            part = (
                "a piece of its own pictures, put into other pictures, raises the odds of the class "
                f"{more} more for its own model than "
            )
            parts.append(f"{part}for the other sites' models (usual: {expected})")
        else:
            parts.append(
                f"it was learned unusually fast (loss {standing.easy[at]:.2g}, usual: {usual[signal][at]:.2g})"
            )
    chance = "below 0.001" if finding.chance < 0.001 else f"{finding.chance:.3f}"
    sure = f"Probability that a federation without any shortcut shows as much at any site: {chance}."
    ask = f"look at your pictures of class {label} for a mark, a tube, a text or a device that your other "
    return ShortcutWording(site, label, "; ".join(parts), sure, f"{ask}classes lack.")
