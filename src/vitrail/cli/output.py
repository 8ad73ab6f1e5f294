"""What a person is shown: a bar while it takes time, tables when it is done."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.core.errors import printable
from vitrail.core.text import print_table

if TYPE_CHECKING:
    import pandas as pd

    from vitrail.quality.screening.result import Screening
    from vitrail.runs import Run
    from vitrail.studies.compare.result import Comparison


WORST = "Worst site: the one whose score is the least improvement over its own baseline."
EVERY = 60.0  # seconds between lines where progress is written to a file


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on the error stream; where that is no terminal, a line every minute."""
    from rich.console import Console

    console = Console(file=sys.__stderr__)  # past what makes text harmless: a bar moves the cursor
    if not console.is_terminal:
        yield Lines()
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    shown = [BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}")]
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda words, done, total: progress.update(
            task, completed=done, total=total, description=printable(words)
        )


class Lines:
    """How far it is, on the error stream: nothing in the first minute, then a line every minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.last = clock, clock()

    def __call__(self, words: str, done: int, total: int) -> None:
        if (now := self.clock()) - self.last < EVERY:
            return
        self.last = now
        share = f" ({100 * done / total:.0f} %)" if total else ""
        print(f"{time.strftime('%H:%M')}  {words}: {done} of {total}{share}", file=sys.stderr, flush=True)


def print_run(result: Run) -> None:
    """The scores, and what the method found out."""
    from vitrail.analysis.shortcuts.detector import read_standing
    from vitrail.analysis.shortcuts.wording import labels_of, to_text
    from vitrail.analysis.trust import read_trust
    from vitrail.metrics.scores import metric_name
    from vitrail.report.pages.builder import page_of
    from vitrail.report.sections.participation import left_out_words
    from vitrail.report.sections.scores.findings import baseline_sentences
    from vitrail.report.text import marked, why_not
    from vitrail.runs.protection.budget import budget_words, spent_by

    if result.screening is not None:
        print_screening(result.screening)
    if not result.trained:
        print("Nothing was trained: no site took part in any round. These are the scores of the untrained model.\n")
    study, few = result.study, small_samples_of(result.sizes)
    table = result.scores().pivot(index="site", columns="metric", values="value").loc[result.sites]
    same = result.baseline().pivot(index="site", columns="metric", values="value").reindex(result.sites)
    held = dict(zip(result.sizes.site, result.sizes.test_rows, strict=True))
    rows, why = [], []
    for site in table.index:
        row: list[Any] = [marked(site, few)]
        for m in study.metrics:
            row += [defined(table.loc[site, m]), *([defined(same.loc[site, m])] if m in same else [])]
            if m in same and math.isnan(same.loc[site, m]):
                why.append(f"{metric_name(m)} at {site} is not defined: {why_not(m, int(held[site]), study.row_word)}")
        rows.append(row)
    if study.person_column:
        print(f"{persons_words(result.sizes, study.row_word)}\n")
    names = {m: metric_name(m) for m in study.metrics}
    heads = (head for m, name in names.items() for head in ([name, "baseline"] if m in same else [name]))
    print_table(["site", *heads], rows)
    page = page_of(result)
    why += [*[page.event] * bool(page.event), *(line.striptags() for line in baseline_sentences(page, page.table))]
    print_notes(few, why, study.unit_word, len(same.columns) > 0)
    if outside := left_out_words(result):
        print(f"\n{outside}")
    if spent := spent_by(study, result.method):
        print(f"\n{budget_words(spent)}")
    if standing := read_standing(result.facts):
        labels = labels_of(result.study.target.levels, standing)
        print(f"\nWhose class stands out?\n{to_text(standing, result.sites, labels)}")
    if trust := read_trust(result.sites, result.facts):
        words = "How far each site trusts the others after the last round (1: fully, 0: not at all)"
        if trust.shares:
            words = "Whom each site learned from (share of its model, mean over rounds)"
        print(f"\n{words}\n")
        shown = trust.mean if trust.shares else trust.final
        print_table(["user", *trust.sites], [[u, *map(float, a)] for u, a in zip(trust.sites, shown, strict=True)])


def print_screening(screening: Screening) -> None:
    """What is likely wrong; of what differs and may be real only how much, the page has it."""
    from vitrail.quality.screening.text import calm, sentence, twin_sentences

    wrong = [*twin_sentences(screening), *map(sentence, screening.wrong)]
    print("Whose data does not fit?" + " Likely wrong:" * bool(wrong))
    print("\n".join(f"  - {text}" for text in wrong) or f"  {calm(screening)}")
    if maybe := len(screening.maybe):
        print(f"  {maybe}{' more' * bool(screening.wrong)} differ{'s' * (maybe == 1)}, and may be real: on the page.")
    print()


def persons_words(sizes: pd.DataFrame, row: str) -> str:
    """How many patients and rows are held out, and trained on."""
    from vitrail.core.text import several

    held, trained = (
        f"{several(int(sizes[f'{part}_persons'].sum()), 'patient')} ({several(int(sizes[f'{part}_rows'].sum()), row)})"
        for part in ("test", "train")
    )
    return f"Held out: {held}. Trained on: {trained}. No patient is on both sides."


def print_comparison(result: Comparison) -> None:
    """Whose data does not fit; method x site, worst site named; then the verdicts."""
    from vitrail.core.text import several
    from vitrail.metrics.scores import metric_name
    from vitrail.report.pages.builder import page_of
    from vitrail.report.sections.scores.findings import baseline_sentences
    from vitrail.report.text import SAME, marked

    if result.screening is not None:
        print_screening(result.screening)
    metric = result.study.metrics[0]
    mean = result.means(metric)
    summary = {row["method"]: row for row in result.summary().to_dict("records") if row["metric"] == metric}
    sites = list(result.sites.site)
    shown = sites if len(sites) <= 8 else []  # more do not fit a line; the page has them all
    few, page = small_samples_of(result.sites), page_of(result)
    rows, worst = [], []
    for method, title in titles_of(result).items():
        row = summary[method]
        ends = [row["mean"], row["worst"], marked(row["worst_site"], few)]
        rows.append([title, *(defined(mean[method, s]) for s in shown), *map(defined, ends)])
        worst.append(1 + shown.index(row["worst_site"]) if row["worst_site"] in shown else -1)
    if page.table.chance:
        same = [defined(page.table.chance.get(s, math.nan)) for s in shown]
        rows.append([SAME, *same, defined(page.table.chance_mean), "", ""])
        worst.append(-1)
    if paid := result.budget_table():
        print(f"{result.budget.sentence}\n")
        print_table(["method", "rounds", "bytes", "gradient steps"], [list(row) for row in paid])
        print()
    where = f"on each site's own {result.judged_words}"
    print(f"{metric_name(metric)} {where}; mean over {several(len(result.seeds), 'seed')}\n")
    heads = [marked(s, few) for s in shown]
    print_table(["method", *heads, "mean", "worst", "worst site"], rows, lambda r, c: c == worst[r])
    why = [f"Not defined: {line.striptags()}" for line in page.table.why]
    why += [
        *[page.event] * bool(page.event),
        WORST,
        *(line.striptags() for line in baseline_sentences(page, page.table)),
    ]
    print_notes(few if not shown or set(shown) & set(few) else {}, why, result.study.unit_word, False)
    if len(result.left_out):
        print_left_out(result)
    verdicts = result.verdicts()
    if len(verdicts):
        print(f"\nIs joining worth it? ({yardstick_words(result)})\n")
        print_verdict_table(result, few)
        print_apart(result)


def print_verdict_table(result: Comparison, few: dict[str, str]) -> None:
    """Each site's verdict with its losses, alone and together, beside those of the baseline."""
    from vitrail.core.text import number
    from vitrail.metrics.scores import metric_name
    from vitrail.report.text import marked

    verdicts = result.verdicts()
    losses = {metric_name(result.yardstick): ("alone", "joined", "same")}
    if verdicts["brier_same"].notna().any():
        losses["Brier score"] = ("brier_alone", "brier_joined", "brier_same")
    rows = [
        [
            marked(v["site"], few),
            v["verdict"],
            *(" / ".join(number(v[key]) for key in keys) for keys in losses.values()),
            v["why"],
        ]
        for v in verdicts.to_dict("records")
    ]
    print_table(["site", "verdict", *(f"{words} *" for words in losses), "why"], rows)
    print(f"\n* alone / together / baseline (the same prediction for every {result.study.row_word} of the site)")


def print_left_out(result: Comparison) -> None:
    """What a model of all other sites is worth at each site, beside the baseline."""
    from vitrail.metrics.scores import metric_name
    from vitrail.report.text import SAME

    metric, scores = result.study.metrics[0], result.left_out
    mine = scores[scores.metric == metric]
    names, sites = titles_of(result), list(dict.fromkeys(mine.site))
    wide, same = mine.pivot(index="site", columns="method", values="value"), mine.groupby("site").chance.first()
    rows = [[s, *(defined(wide.loc[s, m]) for m in names), defined(same[s])] for s in sites]
    rows.append(["mean", *(defined(wide[m].mean()) for m in names), defined(same.mean())])
    print(f"\nLeave one site out: {metric_name(metric)} at each site, for a model trained by the other sites only\n")
    print_table(["site left out", *names.values(), SAME], rows)


def print_verdicts(result: Comparison) -> None:
    """Is joining worth it, site by site, without the table of methods."""
    from vitrail.core.text import number, signed
    from vitrail.report.text import ANSWERS, marked, metric_words

    few, rows = small_samples_of(result.sites), []
    for v in result.verdicts().to_dict("records"):
        bounded = math.isfinite(v["low"])
        between = f"{signed(v['low'])} to {signed(v['high'])}" if bounded else "one seed has none"
        seen = number(v["least"]) if bounded else ""
        rows.append([marked(v["site"], few), ANSWERS[v["verdict"]], signed(v["gain"]), between, seen])
    if not rows:
        print("Not answered: this needs several seeds and a metric that is defined in all of them.")
        return
    word, judged = result.study.row_word, metric_words(result.yardstick)
    what = "answers" if result.study.target.kind == "number" else "probabilities"
    print(f"Training together against training alone, on each site's own {word}s. A gain is how much less wrong the")
    print(f"model's {what} are: {judged}.\n")
    print_table(["site", "worth it?", "gain", "95 % interval", "smallest detectable gain"], rows)
    print_notes(few, [], result.study.row_word, False)


def print_apart(result: Comparison) -> None:
    """Why verdicts differ from the table above them, where they do."""
    from vitrail.report.sections.scores.verdict_differences import why_apart

    if lines := why_apart(result):
        print("\n".join(["", lines[0], *(f"  {line}" for line in lines[1:])]))


def explain_all(
    run: Run, place: Path, data: Path, rows: int, seed: int, outcome: str | None, refuse: list[str], out: Path | None
) -> None:
    from vitrail.analysis.explanations.summary import LEAST_ROWS, summarise_sites
    from vitrail.report.pages.explanation_summary import effect_scale, write_explanation_summary
    from vitrail.runs.site.explanation import explain_sites

    among = summarise_sites(explain_sites(run, data, rows, seed, outcome, refuse), run.study.unit_word)
    page = write_explanation_summary(
        among, out or place / "explain.html", run.study.name, [run.published_name(s) for s in refuse]
    )
    top = among.table.dropna(subset="size").sort_values("size", ascending=False).groupby("site").head(3)
    print(f"How much features move the {among.moved}: the three largest at each site\n")
    size = effect_scale(among).size
    shown = top.sort_values(["site", "size"], ascending=[True, False])
    print_table(["site", "feature", "mean size", "moves it"],
                [[r["site"], r["feature"], size(r["size"]), r["moves"]] for r in shown.to_dict("records")])  # fmt: skip
    if among.small:
        print(f"\nLeft out because they have fewer than {LEAST_ROWS} {among.unit}s: {', '.join(among.small)}.")
    print(f"\nPage:  {page.resolve()}\nTable: {page.with_suffix('.csv').resolve()}")


def small_samples_of(sizes: pd.DataFrame) -> dict[str, str]:
    """Sites whose scores stand on few hold-out rows -> how many."""
    pairs = zip(sizes["site"], sizes.get("few_rows", [""] * len(sizes)), strict=True)
    return {str(site): str(words) for site, words in pairs if words}


def defined(value: Any) -> Any:
    return "not defined" if isinstance(value, float) and math.isnan(value) else value


def print_notes(few: dict[str, str], why: Sequence[str], word: str, same: bool) -> None:
    """What marks and columns of a table of scores mean, and why a score is not there."""
    from vitrail.report.text import SAME, few_words

    lines = [f"Baseline: {SAME}, the most common class or the mean of the site's own hold-out {word}s."] if same else []
    lines += [*why, *([few_words(few, word).striptags()] if few else [])]
    print("\n".join(["", *lines]) if lines else "", end="\n" if lines else "")


def yardstick_words(result: Comparison) -> str:
    """What verdicts are about, in a line."""
    from vitrail.report.text import metric_words

    which = "the best over seeds"
    if result.rows.losses:
        yardstick = metric_words(result.yardstick)
        which = f"the method that does best at the other sites; {yardstick}; a gain is a reduction of the loss"
    return f"a federated method against training alone, {which}"


def titles_of(result: Comparison) -> dict[str, str]:
    from vitrail.methods import TABLE

    return {m: TABLE[m].catalogue.title for m in result.methods}


def kept_size(run: Path) -> str:
    from vitrail.core.text import several, size
    from vitrail.runs.folder import UPDATES

    sizes = [f.stat().st_size for f in (run / UPDATES).glob("round-*.safetensors")]
    return f"{several(len(sizes), 'round')}, {size(sum(sizes))}, in {run / UPDATES}"
