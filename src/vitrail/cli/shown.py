"""What a person is shown: a bar while it takes time, tables when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.core.table import print_table

if TYPE_CHECKING:
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
    where = f"on each site's own hold-out {result.study.row_word}s"
    print(f"{metric.replace('_', ' ')} {where}, mean over {len(result.seeds)} seed(s)\n")
    print_table(["method", *shown, "mean", "worst", "worst site"], rows, lambda r, c: c == worst[r])
    verdicts = result.verdicts()
    if len(verdicts):
        print("\nIs joining worth it? (best federated method against training alone)\n")
        print_table(["site", "verdict", "why"], verdicts[["site", "verdict", "why"]].to_numpy().tolist())


def titles_of(result: Comparison) -> dict[str, str]:
    from vitrail.methods import TABLE

    return {m: TABLE[m].title for m in result.methods}


def kept_size(run: Path) -> str:
    from vitrail.report.words import several, size
    from vitrail.runs.folder import UPDATES

    kept = [f.stat().st_size for f in (run / UPDATES).glob("round-*.safetensors")]
    return f"{several(len(kept), 'round')}, {size(sum(kept))}, in {run / UPDATES}"
