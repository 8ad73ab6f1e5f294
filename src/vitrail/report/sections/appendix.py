"""Everything else: other metrics, the sites, facts that no figure shows, which run this is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.report.charts.tables import score_table
from vitrail.report.sections.scores import learning_curves
from vitrail.report.sections.section import Contents, Section

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


def contents(page: Page) -> Contents:
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
        "more_sites": learning_curves.left_out(page),
    }


SECTION = Section(contents)
