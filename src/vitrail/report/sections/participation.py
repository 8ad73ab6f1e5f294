"""Who takes part: pseudonyms of a run between machines, and the share of each site in a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitrail.core.text import number, several
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.runs.result import DEPLOYED, Run

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


def has_participation(run: Run | None) -> bool:
    return run is not None and bool(run.info.get("share") or _pseudonyms(run))


def contents(page: Page) -> Contents:
    run = run_of(page)
    share, hidden = run.info.get("share", {}), _pseudonyms(run)
    return {
        "pseudonyms": hidden,
        "of": several(len(run.sites), "site"),
        "share": share,
        "limits": _limits(share) if share else "",
        "rows": [_row(run, share, site) for site in run.sites] if share else [],
        "deployed": run.info["engine"] == DEPLOYED,
    }


def left_out_words(run: Run) -> str:
    """For a terminal: sites whose share is outside the study's limits if all take part; "" without such."""
    if not (share := run.info.get("share")):
        return ""
    rounds, many = run.info["took_part"], share["rounds"]
    out = [site for site, part in share["whole"].items() if not share["least"] <= part <= share["most"]]
    named = [f"{site} ({_percent(share['whole'][site])}, in {rounds[site]} of {many} rounds)" for site in out]
    return f"Share of a round outside the limits of the study: {', '.join(named)}." if named else ""


def _pseudonyms(run: Run) -> list[str]:
    """Between machines; in a simulation scores stay under the sites' own names, and the screening says the rest."""
    available = run.info.get("pseudonyms", []) if run.info["engine"] == DEPLOYED else []
    return [site for site in run.sites if site in available]


def _limits(share: dict[str, Any]) -> str:
    least, most = share["least"], share["most"]
    limits = [f"below {_percent(least)}"] * (least > 0) + [f"above {_percent(most)}"] * (most < 1)
    if not limits:
        return "The study sets no limit; a site may have set its own."
    return f"In a round in which the share of a site would be {' or '.join(limits)}, the site takes no part."


def _row(run: Run, share: dict[str, Any], site: str) -> dict[str, str]:
    whole, rounds = share["whole"].get(site), run.info.get("took_part", {}).get(site)
    out = whole is not None and not share["least"] <= whole <= share["most"]
    refused = site in share.get("refused", [])
    status = "outside the study’s limits" if out else "refused by its own limits" if refused else "within the limits"
    took = "not told" if rounds is None else f"{rounds} of {share['rounds']}"
    return {"site": site, "share": "not told" if whole is None else _percent(whole), "status": status, "rounds": took}


def _percent(share: float) -> str:
    return f"{number(100 * share, 1)} %"


SECTION = Section(contents, lambda page: has_participation(page.run))
