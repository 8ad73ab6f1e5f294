"""The page in a few sentences, each computed from its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from vitrail.core.text import number, several, signed, size
from vitrail.methods import TABLE
from vitrail.metrics.skill import no_better, standings
from vitrail.privacy.score_rounding import TEN
from vitrail.report.charts.tables import ScoreTable, lead_method, methods_of, score_table, sites_of, traffic
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import METRICS, SAME, listed, metric_words, name, opening, spoken
from vitrail.runs.result import FOLDED, SHOWN, Run

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

RISKS = ("log_loss", "brier", "integrated_brier")  # scores of the risks themselves, and not of their order
MANY = 4  # with more sites than that, the sites at which a method fails are also counted


def contents(page: Page) -> Contents:
    return {"findings": findings(page, page.table, page.verdicts.empty)}


def headline(page: Page) -> str:
    """What was done, in one sentence."""
    methods = methods_of(page)
    federated = [m for m in methods if m in page.federated]
    yards = [page.titles[m] for m in methods if m in page.yardsticks]
    late = [site for site in sites_of(page) if site in page.newcomers]
    count = len(sites_of(page)) - len(late)
    many = several(count, "site")
    if not methods:
        return "Nothing has been scored yet."
    if not was_trained(page):
        return f"Nothing was trained: each of {many} was absent in every round."
    if federated:
        by = page.titles[federated[0]] if len(federated) == 1 else several(len(federated), "method")
        what = f"{many} trained {'together ' if count > 1 else ''}with {by}"
    else:
        return f"{many} trained without joining ({' and '.join(yards)}): {several(page.seeds, 'seed')}."
    if yards:
        what += f", beside the {'yardstick' if len(yards) == 1 else 'yardsticks'} {' and '.join(yards)}"
    after = f" {listed(late).unescape()} came after training." if late else ""
    rounds = f", {several(page.rounds, 'round')}." if page.rounds else "."
    if page.budget:
        rounds = f". Every method trained as many rounds as {page.budget} pay for one training at one site."
    return f"{what}: {several(page.seeds, 'seed')}{rounds}{after}"


def was_trained(page: Page) -> bool:
    return page.run is None or page.run.trained


def findings(page: Page, table: ScoreTable, drawn: bool = False) -> list[Markup]:
    """The page in a few sentences, each computed from its tables. `drawn`: above them stands the figure of the sites
    (site_status.py), which says the scores of a single method."""
    federated = [m for m in table.methods if m in page.federated]
    words = metric_words(page.metric)
    out: list[Markup] = []
    if not was_trained(page):
        loud = Markup('<strong class="warn">Nothing was trained.</strong> ')
        rest = "No site took part in any round: all scores on this page are those of the model that everybody started "
        out.append(loud + rest + "from, and say nothing about the method.")
    if len(table.rows) == 1 and table.methods:
        site, scores = table.rows[0]
        said = [f"{page.titles[m]} {number(c.value)}" for m, c in zip(table.methods, scores, strict=True)]
        out.append(Markup("{} in {}: {}.").format(name(site), words, listed(said, len(said))))
        out.append(Markup("There is one site only: it had nobody to learn with, and there is no worst site."))
    elif page.kind == "run" or len(table.methods) < 2:
        out += [_scores_sentence(page, table, i) for i in range(len(table.methods) if not drawn else 0)]
    elif (best := best_method(page, table)) is not None:
        worst_site, interval = table.worsts[table.methods.index(best)]
        said = [name(page.titles[best]), name(str(worst_site)), spoken(interval), words]
        text = Markup("Best for the site served worst: {}. Its worst site, {}, reaches {} in {}.").format(*said)
        out.append(text + _below(table, str(worst_site), interval.value) + _rivals(table, best, federated))
    out += [*baseline_sentences(page, table), *_caveats(page)]
    joining, worst = _joining(page), [] if drawn else _worst_sentence(page, table)
    out += worst + joining if page.kind == "run" else joining + worst
    out += _traffic_sentences(page, federated)
    return out


def best_method(page: Page, table: ScoreTable) -> str | None:
    """The federated method that serves its worst site best: its score there is the largest improvement over the
    baseline."""
    served = _served(table, page.federated)
    return max(served, key=lambda m: served[m]) if served else None


def _served(table: ScoreTable, methods: Sequence[str]) -> dict[str, float]:
    """By method, how well it serves its worst site; larger is better."""
    found = {m: table.standings_of(m) for m in table.methods if m in methods}
    return {m: min(sites.values()) for m, sites in found.items() if len(sites) > 1}


def _below(table: ScoreTable, site: str, value: float) -> Markup:
    """Where even the best method does not beat the baseline at its worst site, so that no other one does."""
    baseline = table.chance.get(site, math.nan)
    if not no_better(value, baseline, table.lower):
        return Markup()
    loud = Markup(' <strong class="warn">That is no better than the baseline there, which reaches {}: {}.</strong>')
    return loud.format(number(baseline), "no federated method compared beats the baseline at every site")


def _rivals(table: ScoreTable, best: str, federated: list[str]) -> str:
    """How many methods cannot be told from the best one."""
    served, (site, interval) = _served(table, federated), table.worsts[table.methods.index(best)]
    if not (others := len(served) - 1) or site is None:
        return ""
    if not interval.known:
        return " Without an interval, this order may be chance."
    ends = [standings({site: end}, table.chance, table.lower)[site] for end in (interval.low, interval.high)]
    near = sum(min(ends) <= value <= max(ends) for m, value in served.items() if m != best)
    if not near:
        return ""
    who = f"{near} of the {others} others" if near < others else "All others" if near > 1 else "The other"
    return f" {who} lie{'s' if near == 1 else ''} within this interval, so this order may be chance."


def _scores_sentence(page: Page, table: ScoreTable, column: int) -> Markup:
    title, words = name(page.titles[table.methods[column]]), metric_words(page.metric)
    values = [(site, scores[column].value) for site, scores in table.rows]
    if len(values) <= 6:
        said = listed([Markup("{} {}").format(site, number(v)) for site, v in values], 6)
        return Markup("{} in {}: {}.").format(title, words, said)
    known = [v for _, v in values if not math.isnan(v)]
    if not known:
        return Markup("{}: {} is not defined at any site.").format(title, words)
    return Markup("{} reaches from {} to {} in {} over {} sites; the median site has {}.").format(
        title, number(min(known)), number(max(known)), words, len(known), number(float(np.median(known)))
    )


def baseline_sentences(page: Page, table: ScoreTable) -> list[Markup]:
    """What somebody reaches who knows nothing, and where the methods that the page speaks of are no better: in the
    page's own metric, and in those that judge the risks themselves."""
    known = [v for v in table.chance.values() if math.isfinite(v)]
    leading = (lead_method(page, table.methods), best_method(page, table))
    methods = [m for m in dict.fromkeys(leading) if m is not None]
    if not known or not methods:
        return []
    low, high = number(min(known)), number(max(known))
    text = Markup("Baseline ({}): {}.").format(SAME, low if low == high else f"{low} to {high}, by site")
    for method in methods:
        if behind := _behind(table, method):
            text += Markup(" {} is no better than its baseline at {}.").format(page.titles[method], behind)
    out = [text]
    metrics = [m for m in RISKS if m != table.metric and m in set(page.scores["metric"])]
    for risks in (score_table(page, m) for m in metrics):
        words = METRICS[risks.metric][0]
        for method in methods:
            judged = len(risks.standings_of(method)) if risks.chance else 0
            if behind := _behind(risks, method):
                said = Markup('<strong class="warn">In {} {} is no better than the baseline</strong> at {}.')
                out.append(said.format(words, page.titles[method], behind))
            elif judged and page.timed:
                every = "the one site" if judged == 1 else f"all {judged} sites"
                out.append(
                    Markup("In {} {} is better than the baseline at {}.").format(words, page.titles[method], every)
                )
    return out


def _behind(table: ScoreTable, method: str) -> Markup:
    """The sites at which a method is no better than their baseline, with both numbers; nothing without any."""
    scores = table.scores_of(method)
    known = [site for site in scores if math.isfinite(scores[site]) and math.isfinite(table.chance.get(site, math.nan))]
    behind = [site for site in known if no_better(scores[site], table.chance[site], table.lower)]
    said = [
        Markup("{} ({} against {})").format(name(site), number(scores[site]), number(table.chance[site]))
        for site in behind
    ]
    if len(known) > MANY and behind:
        return Markup("{} of {} sites: {}").format(len(behind), len(known), listed(said))
    return listed(said)


def _caveats(page: Page) -> list[Markup]:
    """How scores were rounded, and which rest on few rows."""
    out = []
    if page.rounded:
        out.append(
            Markup(
                "Each site rounded its scores to multiples of {} {}s or more, up or down by chance, before they left, "
                "so that they say hardly anything about a single {}. A site with few {}s told none. Each site has its "
                "own exact scores."
            ).format(TEN, page.row_word, page.row_word, page.row_word)
        )
    few = [Markup("{} ({})").format(name(site), rows) for site, rows in page.few.items()]
    if len(few) == 1:
        (site, rows), *_ = page.few.items()
        words = "The score of {} rests on few hold-out {}s ({})."
        out.append(Markup(words).format(name(site), page.unit_word, rows))
    elif few:
        out.append(Markup("The scores of {} rest on few hold-out {}s.").format(listed(few), page.unit_word))
    return out


def alone_title() -> str:
    """The method to compare with, to know what joining is worth."""
    return " or ".join(kind.catalogue.title for kind in TABLE.values() if kind.catalogue.alone)


def _joining(page: Page) -> list[Markup]:
    """For whom joining is worth it."""
    verdicts = page.verdicts
    if verdicts.empty:
        one = page.seeds == 1
        if page.run is not None and page.run.study.verdict is not None:
            return [_own_verdicts(page.run)]
        if page.kind == "run":
            start = "One seed" if one else "A run of one method"
            tail = "`vitrail compare` can: it also trains every site alone, and judges every "
            tail += f"{page.row_word} out of its fold."
        else:
            start = "One seed" if one else "This page"
            tail = f"It takes {alone_title()} among the methods, several seeds, and a metric defined in them."
        return [Markup("{} cannot tell whether joining is worth it. {}").format(start, _code(tail))]
    said: list[Markup] = []
    ways = (("yes", "gain{}"), ("no", "lose{}"), ("no harm", "lose{} nothing that matters"), ("cannot tell", ""))
    for verdict, words in ways:
        rows = verdicts[verdicts["verdict"] == verdict]
        rows = rows.reindex(rows["gain"].abs().sort_values(ascending=False, kind="stable").index)
        if rows.empty:
            continue
        gains = zip(rows["site"], rows["gain"], strict=True)
        sites = [Markup("{} ({})").format(name(site), signed(gain)) for site, gain in gains]
        who = listed(sites)
        if len(verdicts) > 6:  # how many comes before who
            who = Markup("{} of {} sites ({})").format(len(sites), len(verdicts), listed(sites, 2))
        if verdict == "cannot tell" and not said:
            return [Markup("Whether joining is worth it is unclear for {}.").format(who)]
        if verdict == "cannot tell":
            said.append(Markup("for {} it is unclear").format(who))
        else:
            said.append(Markup("{} {}").format(who, words.format("s" if len(sites) == 1 else "")))
    unit = f" (saved {metric_words(page.yardstick)})" if page.crossed else ""
    return [Markup("By joining, {}{}.").format(Markup("; ").join(said), unit)]


def _own_verdicts(run: Run) -> Markup:
    """Of a study with [verdict]: who has the answer, and where it is shown."""
    if FOLDED not in run.info:
        text = (
            "Whether joining is worth it, each site finds out for itself after a run between machines, as the study's "
        )
        return _code(text + "[verdict] asks; in a simulation `vitrail compare` tells it.")
    shown, silent = list(run.info.get(SHOWN, ())), [site for site in run.sites if site not in run.info.get(SHOWN, ())]
    said = Markup("Each site has found out for itself whether joining is worth it there.")
    if shown:
        said += Markup(" {} showed the others the answer: see below.").format(listed([name(site) for site in shown]))
    if silent:
        said += Markup(" {} kept it: the page {} in the home of a site has it.").format(
            listed([name(site) for site in silent]), Markup("<code>verdict.html</code>")
        )
    return said


def _worst_sentence(page: Page, table: ScoreTable) -> list[Markup]:
    """The worst site under the leading method, and how it does alone."""
    if (lead := lead_method(page, table.methods)) is None:
        return []
    site, interval = table.worsts[table.methods.index(lead)]
    if site is None:
        return []
    text = Markup("{} does worst under {}: {}.").format(opening(site), page.titles[lead], spoken(interval))
    if page.alone in table.methods and lead != page.alone:
        alone = dict(table.rows)[site][table.methods.index(page.alone)].value
        gap = (alone - interval.value) * (-1 if page.lower_is_better else 1)
        if math.isfinite(gap):
            how = f"{number(abs(gap))} {'better' if gap > 0 else 'worse'}" if abs(gap) >= 0.0005 else "the same"
            text += Markup(" Alone it reaches {}, {}.").format(number(alone), how)
    return [text]


def _traffic_sentences(page: Page, federated: list[str]) -> list[Markup]:
    """What left each site, and loudly whether rows did."""
    out = []
    if federated and not page.ledger.empty:
        lines = traffic(page)
        sent = {m: max((t.out for t in lines if t.method == m), default=0) for m in federated}
        least, most = min(sent, key=lambda m: sent[m]), max(sent, key=lambda m: sent[m])
        lead = lead_method(page, federated) or least
        amount = "" if len([t for t in lines if t.method == lead]) == 1 else "at most "
        text = Markup("No {}s left any site under {}. ").format(
            page.row_word,
            "a federated method" if len(federated) > 1 else page.titles[lead],
        )
        text += Markup("Each site sent {}{} of parameters and summary numbers").format(amount, name(size(sent[lead])))
        if len(federated) > 1:
            text += Markup(" with {}").format(page.titles[lead])
        if page.seeds > 1:
            text += " per seed"
        if sent[least] < sent[most]:
            ends = [f"{size(sent[m])} ({page.titles[m]})" for m in (least, most)]
            text += Markup("; over all methods from {} to {}").format(*ends)
        out.append(text + ".")
    rows = "" if page.sites.empty else f", {several(int(page.sites['train_rows'].sum()), page.row_word)} in all,"
    loud = Markup('<strong class="warn">{} moves the training {}s of every site{} to one place.</strong>')
    pooled = [page.titles[m] for m in methods_of(page) if m in page.pooled]
    return out + [loud.format(title, page.row_word, rows) + " It is only a yardstick." for title in pooled]


def _code(text: str) -> Markup:
    """Words between backquotes as code."""
    parts = text.split("`")
    return Markup().join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))


SECTION = Section(contents)
