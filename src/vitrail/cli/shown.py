"""What a person is shown: a bar while it takes time, tables when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.core.table import print_table

if TYPE_CHECKING:
    from vitrail.runs import Run
    from vitrail.studies import Comparison


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on the error stream; silent when that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = [BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}")]
    with Progress(*shown, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda words, done, total: progress.update(task, completed=done, total=total, description=words)


def print_run(result: Run) -> None:
    """The scores, and what the method found out."""
    from vitrail.explain.prototype_words import labels_of, to_text
    from vitrail.explain.prototypes import read_standing
    from vitrail.explain.trust import read_trust
    from vitrail.report.findings import no_shifts

    table = result.scores().pivot(index="site", columns="metric", values="value").loc[result.sites]
    print_table(
        ["site", *result.study.metrics],
        [[s, *(table.loc[s, m] for m in result.study.metrics)] for s in table.index],
    )
    if result.shift_table is not None:
        print("\nWhose data does not fit?")
        found = result.findings()
        print("\n".join(f"  - {f.text}" for f in found) or f"  {no_shifts(result.shifts(), result.study.row_word)}")
    if standing := read_standing(result.facts):
        labels = labels_of(result.study.target.levels, standing)
        print(f"\nWhose class stands out?\n{to_text(standing, result.sites, labels)}")
    if trust := read_trust(result.sites, result.facts):
        words = "How far each site trusts the others after the last round: 1 fully, 0 no more"
        if trust.shares:
            words = "Whom each site learned from: share of its model, mean over rounds"
        print(f"\n{words}\n")
        shown = trust.mean if trust.shares else trust.final
        print_table(["user", *trust.sites], [[u, *map(float, a)] for u, a in zip(trust.sites, shown, strict=True)])


def print_comparison(result: Comparison) -> None:
    """Method x site, worst site named; then the verdicts."""
    metric = result.study.metrics[0]
    mean = result.means(metric)
    summary = {row["method"]: row for row in result.summary().to_dict("records") if row["metric"] == metric}
    sites = list(result.sites.site)
    shown = sites if len(sites) <= 8 else []  # more do not fit a line; the page has them all
    rows, worst = [], []
    for method, title in titles_of(result).items():
        row = summary[method]
        rows.append([title, *(mean[method, s] for s in shown), row["mean"], row["worst"], row["worst_site"]])
        worst.append(1 + shown.index(row["worst_site"]) if row["worst_site"] in shown else -1)
    where = f"on each site's own {result.study.row_word}s, each judged by a model not trained on it"
    print(f"{metric.replace('_', ' ')} {where}, mean over {len(result.seeds)} seed(s)\n")
    print_table(["method", *shown, "mean", "worst", "worst site"], rows, lambda r, c: c == worst[r])
    verdicts = result.verdicts()
    if len(verdicts):
        print(f"\nIs joining worth it? (best federated method against training alone, {words_of(result)})\n")
        print_table(["site", "verdict", "why"], verdicts[["site", "verdict", "why"]].to_numpy().tolist())


def words_of(result: Comparison) -> str:
    from vitrail.report.words import metric_words

    return f"{metric_words(result.yardstick)}; a gain is a loss saved" if result.rows.losses else "over seeds"


def titles_of(result: Comparison) -> dict[str, str]:
    from vitrail.methods import TABLE

    return {m: TABLE[m].title for m in result.methods}


def kept_size(run: Path) -> str:
    from vitrail.report.words import several, size
    from vitrail.runs.folder import UPDATES

    kept = [f.stat().st_size for f in (run / UPDATES).glob("round-*.safetensors")]
    return f"{several(len(kept), 'round')}, {size(sum(kept))}, in {run / UPDATES}"
