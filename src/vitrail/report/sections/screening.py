"""Whose data does not fit: what a screening found, as the first section of a page and as a page of its own.

On its own page the figure is open: sites x columns, the gravest findings first, and under it what differs, column by
column. On the page of a run, which is about something else, both are folded below what needs attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
from markupsafe import Markup

from vitrail.core.text import several
from vitrail.quality.screening import budget
from vitrail.quality.screening.result import CAUSES, LABEL, Finding, Screening, by_column
from vitrail.quality.screening.text import calm, known_words, twin_sentences, written
from vitrail.report.charts.published_values import figures
from vitrail.report.charts.screening_map import STANDINGS, MapCell, ScreeningMap, SiteStanding, screening_map
from vitrail.report.pages.frame import fill, fill_part, write_page
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import LAYERS, listed, name
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

SHOWN = 2  # of what is likely wrong, above the figure
WRONG = 10  # with figures of what was published, before the rest is folded
COLUMNS = 12  # that differ, before the rest is folded
DRAWN = 60  # columns with figures of what was published
NAMED = 4  # sites in a line
RESULTS = "benchmarks/faults/results/planted_faults.md"


class ShownFinding(NamedTuple):
    """One cell: its place on the page, what is said of it, and what was published."""

    link: str
    sentence: Markup
    figures: list[Markup]


class ShownColumn(NamedTuple):
    """What differs in one column, and may be real."""

    title: Markup
    hint: str
    findings: list[ShownFinding]
    figures: list[Markup]


class ShownStanding(NamedTuple):
    """The sites that stand alike."""

    kind: str
    standing: SiteStanding
    sites: Markup


def contents(page: Page) -> Contents:
    assert page.screening is not None, "the section needs a screening"
    info = page.run.info if page.run else {}
    deployed = info.get("engine") == "deployed"
    pseudonyms = () if deployed else info.get("pseudonyms", ())  # between machines: participation.py
    return contents_of(page.screening, _ask_of_run(deployed), pseudonyms, folded=True)


def contents_of(screening: Screening, ask: Markup, pseudonyms: Sequence[str] = (), folded: bool = False) -> Contents:
    """What the template is given, on the page of a run and on one of its own. `ask`: how a site looks behind a
    finding."""
    links = {id(f): f"finding-{i}" for i, f in enumerate(screening.findings)}
    wrong, maybe = screening.wrong, screening.maybe
    standings = standings_of(screening)
    judged = screening.sites["judged"].eq(True).any()
    return {
        "answer": answer(screening, standings),
        "needs": STANDINGS["wrong"].sign if "wrong" in standings.values() else None,
        "twins": twin_sentences(screening),
        "wrong": [ShownFinding(links[id(f)], sentence(f), _figures([f], screening)) for f in wrong],
        "shown": SHOWN,
        "most_wrong": WRONG,
        "next": next_step(wrong, ask) if wrong else Markup(),
        "standings": shown_standings(screening, standings),
        "notes": pseudonymous(screening.sites, pseudonyms),
        "map": map_of(screening, standings, links) if judged else None,
        "columns": columns_of(screening, maybe, links),
        "known": [ShownFinding(links[id(f)], known_sentence(f), []) for f in screening.known],
        "most_columns": COLUMNS,
        "single_sites": any(of["sites"] for of in screening.evidence.values()),
        "boxes": any(of["sites"] and "quantiles" in of["all"] for of in screening.evidence.values()),
        "rests": rests_on(screening) if judged else [],
        "folded": folded,
    }


def standings_of(screening: Screening) -> dict[str, str]:
    """Site -> how it stands, of STANDINGS: the gravest first, and in each the strongest finding first."""
    sites = screening.sites
    strongest: dict[tuple[str, bool], float] = {}
    for f in (*screening.wrong, *screening.maybe):
        strongest[f.site, f.wrong] = max(strongest.get((f.site, f.wrong), 0.0), f.strength)
    twins = set(sites["site"][sites["same rows"].ne("")]) if "same rows" in sites else set[str]()
    kinds = {}
    for site, judged in zip(sites["site"], sites["judged"], strict=True):
        needs = site in twins or (site, True) in strongest
        kinds[site] = "wrong" if needs else "maybe" if (site, False) in strongest else "fits" if judged else "silent"
    order = list(STANDINGS)
    rank = {s: (order.index(kind), -strongest.get((s, kind == "wrong"), 0.0)) for s, kind in kinds.items()}
    return {site: kinds[site] for site in sorted(kinds, key=lambda s: rank[s])}


def answer(screening: Screening, standings: Mapping[str, str]) -> Markup:
    """In one sentence: which sites need attention."""
    needs = [name(site) for site, kind in standings.items() if kind == "wrong"]
    if needs:
        what = "Data is likely wrong" if screening.wrong else "The same rows were given"
        return Markup("{} at {} of {}: {}.").format(
            what, len(needs), several(len(standings), "site"), listed(needs, NAMED)
        )
    if not screening.sites["judged"].any():
        return Markup("{}").format(calm(screening))
    maybe, cells = len(screening.maybe), several(len(screening.cells), "cell")
    differ = f" {maybe} of {cells} {'differs' if maybe == 1 else 'differ'}, and may be real." if maybe else ""
    return Markup("Nothing is likely wrong.{}").format(differ)


def shown_standings(screening: Screening, standings: Mapping[str, str]) -> list[ShownStanding]:
    """One line for the sites that stand alike; those that need attention are in the answer above."""
    why = dict(zip(screening.sites["site"], screening.sites["why not"], strict=True))
    differs = pd.Series([f.site for f in screening.maybe], dtype=object).value_counts()
    out = []
    for kind, standing in list(STANDINGS.items())[1:]:
        sites = [site for site, of in standings.items() if of == kind]
        if kind == "silent":
            same: dict[str, list[str]] = {}
            for site in sites:
                same.setdefault(str(why[site]), []).append(site)
            words = Markup("; ").join(Markup("{} ({})").format(sites_named(who), why) for why, who in same.items())
        elif kind == "maybe":
            counts = [Markup("{} ({})").format(name(s), several(int(differs[s]), "column")) for s in sites]
            words = listed(counts, NAMED)
        else:
            words = listed([name(site) for site in sites], NAMED)
        if sites:
            out.append(ShownStanding(kind, standing, words))
    return out


def sites_named(sites: Sequence[str]) -> Markup:
    """At the beginning of a sentence: Sites va and hungarian."""
    return Markup("{} {}").format("Site" if len(sites) == 1 else "Sites", listed([name(s) for s in sites], NAMED))


def column_name(feature: str) -> str:
    return "outcome" if feature == LABEL else feature


def sentence(finding: Finding) -> Markup:
    """Site and column in bold with the likely cause, then what was seen and what to ask."""
    cause = f": {CAUSES[finding.kind]}." if finding.wrong and finding.kind in CAUSES else ":"
    head = f"Site {finding.site}, {column_name(finding.feature)}{cause}"
    return Markup("{} {}").format(name(head), unbroken(finding.text))


def unbroken(text: str) -> str:
    """A number and its percent sign stay in one line."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def columns_of(screening: Screening, maybe: Sequence[Finding], links: Mapping[int, str]) -> list[ShownColumn]:
    """What differs and may be real, the column that would move a model's answers the most first."""
    out = []
    for i, findings in enumerate(by_column(maybe)):
        feature = findings[0].feature
        shown = [ShownFinding(links[id(f)], sentence_in_column(f), []) for f in findings]
        drawn = _figures(findings, screening) if i < DRAWN else []
        out.append(ShownColumn(name(column_name(feature)), hint(findings, screening), shown, drawn))
    return out


def known_sentence(finding: Finding) -> Markup:
    """A finding that somebody answered."""
    head = f"Site {finding.site}, {column_name(finding.feature)}:"
    return Markup("{} {}. {}").format(name(head), known_words(finding), unbroken(finding.text))


def sentence_in_column(finding: Finding) -> Markup:
    """Under the name of its column."""
    return Markup("{} {}").format(name(f"Site {finding.site}:"), unbroken(finding.text))


def hint(findings: Sequence[Finding], screening: Screening) -> str:
    """How many sites differ, and the strongest difference in a few words."""
    absent, first = [f for f in findings if f.kind == "not here"], findings[0]
    if absent:
        rest = len(findings) - len(absent)
        more = f"; {several(rest, 'other site')} {'differs' if rest == 1 else 'differ'}" if rest else ""
        return f"not measured at {listed([f'site {f.site}' for f in absent], 2).unescape()}{more}"
    if first.kind == "only here":
        return f"measured at site {first.site} only"
    many = several(len(findings), "site")
    if "here" not in first.numbers:
        return many
    here, elsewhere = written(first.numbers, screening.evidence.get(first.feature, {}).get("unit", ""))
    return unbroken(f"{many}; {first.numbers['statistic']}: {here} at site {first.site}, {elsewhere} elsewhere")


def _figures(findings: Sequence[Finding], screening: Screening) -> list[Markup]:
    feature = findings[0].feature
    return figures(column_name(feature), findings, screening.evidence.get(feature))


def map_of(screening: Screening, standings: Mapping[str, str], links: Mapping[int, str]) -> Contents:
    """The figure, columns with the gravest findings first."""
    cells: dict[tuple[str, str], MapCell] = {}
    grave: dict[str, tuple[bool, float]] = {}
    for f in screening.findings:
        column = column_name(f.feature)
        words = f"likely wrong, {CAUSES[f.kind]}" if f.wrong and f.kind in CAUSES else CAUSES.get(f.kind, "differs")
        words = known_words(f) or words
        cell = MapCell(words, f.wrong, 1.0 if f.known else f.strength, links[id(f)], f.kind == "not here")
        cells.setdefault((f.site, column), cell)
        grave[column] = max(grave.get(column, (False, 0.0)), (f.wrong, f.strength))
    columns = list(dict.fromkeys([*grave, *map(column_name, screening.cells["feature"])]))
    rest = screening.cells.groupby("feature")["strength"].max().rename(index=column_name)
    rank = {c: (c in grave, *grave.get(c, (False, float(rest.get(c, 0.0))))) for c in columns}
    shown = ScreeningMap(standings, sorted(columns, key=lambda c: rank[c], reverse=True), cells)
    return {
        "title": shown.title,
        "drawing": screening_map(shown),
        "key": shown.key,
        "columns": len(columns),
        "sites": len(standings),
    }


def rests_on(screening: Screening) -> list[str]:
    """What the findings are made of, and how often they are wrong."""
    judged = screening.sites[screening.sites["judged"].eq(True)]
    most, columns = int(judged["numbers"].max()), screening.cells["feature"].nunique()
    out = [
        f"Before the first round {several(len(judged), 'site')} published counts of {several(columns, 'column')}, the "
        f"outcome among them: at most {several(most, 'number')} for a column, and never more than one for every two "
        "rows. No row left a site. Each site is compared with the others by its counts, by the correlations of its "
        "columns with each other and with the outcome, and by how well the other sites' rows predict its outcomes."
    ]
    rate = f"{100 * screening.alpha:.0f} in 100"
    out.append(
        f"If all sites had the same kind of patients and no fault, at most {rate} federations would have a finding. "
        "Hospitals do not have the same kind of patients: a real difference can be taken for a fault, and a fault for "
        f"a real difference. How often that happened in our tests is in {RESULTS}."
    )
    return out


def next_step(wrong: Sequence[Finding], ask: Markup) -> Markup:
    """Whom to ask about what, and how a site looks behind it."""
    about: dict[str, list[Markup]] = {}
    for f in wrong:
        about.setdefault(f.site, []).append(Markup("{}").format(column_name(f.feature)))
    asked = [Markup("site {} about {}").format(name(site), listed(of, 3)) for site, of in about.items()]
    kind = "this is a question, not a verdict" if len(wrong) == 1 else "these are questions, not verdicts"
    return Markup("Ask {}: {}. {}").format(listed(asked, 3), kind, ask)


def _ask_of_run(deployed: bool) -> Markup:
    """How a site looks at its own rows; where it took part from its own machine, it has its page already."""
    if deployed:
        text = "Each site has a page of its own with its own rows behind it, made there (look.html in its home); other "
        return Markup("{}columns: <code>vitrail look --kit KIT --data FILE --feature NAME</code>").format(text)
    text = "A site can look at its own rows behind it, and nothing leaves the site:"
    return Markup("{} <code>vitrail look RUN --site NAME --data FILE</code>").format(text)


def _ask_before_run() -> Markup:
    text = "At the site, {} shows what a repair would change; it writes nothing."
    return Markup(text).format(Markup("<code>vitrail repair STUDY FILE --from screen.json --site NAME</code>"))


def pseudonymous(sites: pd.DataFrame, pseudonyms: Sequence[str]) -> list[Markup]:
    """What a pseudonym hides here, and what it cannot."""
    if not pseudonyms:
        return []
    many, of = len(pseudonyms), several(sites["site"].nunique(), "site")
    if many == 1:
        text = f"1 of {of} published under a pseudonym: being the only one, it can be told by elimination."
    else:
        text = f"{many} of {of} published under pseudonyms: "
        text += "these cannot be matched to the scores except by who knows the mapping; "
        text += "in a small federation one may still guess."
    return [Markup("{}").format(text)]


def refusals(shifts: pd.DataFrame) -> list[Markup]:
    """Who did not publish, and which layers where others were published."""
    if shifts.empty:
        return []
    silent = shifts["value"].isna().groupby([shifts["site"], shifts["layer"]], sort=False).all().unstack()
    silent = silent[[layer for layer in LAYERS if layer in silent]].eq(True)
    same: dict[tuple[str, ...], list[Markup]] = {}
    for site, row in silent.iterrows():
        same.setdefault(tuple(row.index[row]), []).append(name(str(site)))
    out = []
    for layers, sites in same.items():
        its = "its" if len(sites) == 1 else "their"
        if len(layers) == len(silent.columns):
            out.append(Markup("{} did not publish {} own layers.").format(listed(sites, len(sites)), its))
        elif layers:
            what = listed([f"the {LAYERS[layer].title} ({layer})" for layer in layers])
            out.append(Markup("{} did not publish {}.").format(listed(sites, len(sites)), what))
    return out


def write_screen(study: Study, screening: Screening, path: Path) -> Path:
    """The page of `vitrail screen`: nothing was trained."""
    given = contents_of(screening, _ask_before_run())
    if not given["next"] and screening.sites["judged"].any():
        given["next"] = Markup(
            "Look through what differs below, and ask a site where you did not expect it. Then train: <code>vitrail "
            "run STUDY --data DATA</code>"
        )
    section, rows = fill_part(SECTION.template, **given), published(study, screening)
    html = fill("screen.html", heat=True, study=study, screening=screening, section=section, rows=rows)
    return write_page(html, path, "screen")


def published(study: Study, screening: Screening) -> list[list[str]]:
    """For each site: rows, numbers that it publishes in all and of a column at most, and whether it is judged."""
    out = []
    for site, rows, _, judged, why in (
        screening.sites[["site", "rows", "numbers", "judged", "why not"]].to_numpy().tolist()
    ):
        each = budget(study, int(rows)).values() if rows == rows else [0]
        counts = "" if rows != rows else f"{rows:.0f}"
        out.append([str(site), counts, str(sum(each)), str(max(each)), "yes" if judged else f"no: {why}"])
    return out


SECTION = Section(contents, lambda page: page.screening is not None, heat=True)
