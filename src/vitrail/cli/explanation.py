"""What `vitrail explain` prints and writes for all sites of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.core.text import print_table

if TYPE_CHECKING:
    from vitrail.runs import Run


def explain_all(
    told: Run, place: Path, data: Path, rows: int, seed: int, outcome: str | None, refuse: list[str], out: Path | None
) -> None:
    from vitrail.analysis.explanations.summary import LEAST_ROWS, summarise_sites
    from vitrail.report.pages.explanation_summary import write_explanation_summary
    from vitrail.runs.site.explanation import explain_sites

    among = summarise_sites(explain_sites(told, data, rows, seed, outcome, refuse), told.study.unit_word)
    page = write_explanation_summary(
        among, out or place / "explain.html", told.study.name, [told.published_name(s) for s in refuse]
    )
    top = among.table.dropna(subset="size").sort_values("size", ascending=False).groupby("site").head(3)
    print(f"Mean size of Shapley values ({among.measure}), the three largest of each site\n")
    shown = top.sort_values(["site", "size"], ascending=[True, False])
    print_table(["site", "feature", "mean size", "moves it"],
                [[r["site"], r["feature"], r["size"], r["moves"]] for r in shown.to_dict("records")])  # fmt: skip
    if among.small:
        print(f"\nLeft out, fewer than {LEAST_ROWS} {among.unit}s: {', '.join(among.small)}.")
    print(f"\nPage:  {page.resolve()}\nTable: {page.with_suffix('.csv').resolve()}")
