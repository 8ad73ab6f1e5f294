"""Is joining worth it? A row for each site: what it gains, the interval, and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from vitrail.core.text import number, signed
from vitrail.report.charts import axes, svg
from vitrail.report.charts.interval_rows import Head, IntervalRow, IntervalRows, Label, RowMark, Shape, interval_rows
from vitrail.report.sections.scores.findings import alone_title
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import ANSWERS, FEW_MARK, VERDICT_CLASS, Interval, listed, metric_words, name, spoken

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


ANSWERED = {
    "yes": "is worth it at",
    "no": "makes the model worse at",
    "no harm": "does no harm at",
    "cannot tell": "the data cannot tell for",
}
BRIER = ("baseline", "alone", "together")  # in the order in which they are drawn


class SiteGain(NamedTuple):
    """One site's row. A positive gain is always an improvement."""

    site: str
    method: str
    gain: Interval
    verdict: str  # yes, no, no harm, cannot tell
    harm: float = 0.0  # what may be lost without harm


def is_answered(page: Page) -> bool:
    return len(page.verdicts) > 0


def is_unanswered(page: Page) -> bool:
    return page.kind == "compare" and page.verdicts.empty


def contents(page: Page) -> Contents:
    verdicts = page.verdicts
    verdicts = verdicts if verdicts.empty else verdicts.sort_values("gain", ascending=False, kind="stable")
    rows = [{**r, "method": page.titles.get(r["method"], r["method"])} for r in verdicts.to_dict("records")]
    ends = ("low", "high") if page.has_intervals else ()  # two seeds allow none that says something
    gains = [
        SiteGain(r["site"], r["method"], Interval(r["gain"], *(r[e] for e in ends)), r["verdict"], r.get("harm", 0.0))
        for r in rows
    ]
    saved = "saved " if page.crossed else "gain in "
    return {
        "verdicts": rows,
        "answer": answer(rows),
        "next": next_steps(page, rows),
        "figure": verdict_figure(gains, f"{saved}{metric_words(page.yardstick)}", page.few),
        "brier_figure": brier_figure(rows, page.few),
        "answers": ANSWERS,
        "verdict_class": VERDICT_CLASS,
        "brier": any(math.isfinite(r.get("brier_alone", math.nan)) for r in rows),
        "alone": alone_title(),
    }


def answer(verdicts: Sequence[Mapping[Any, Any]]) -> Markup:
    """How many sites got which answer, and who."""
    sites = {kind: [name(v["site"]) for v in verdicts if v["verdict"] == kind] for kind in ANSWERED}
    given = [kind for kind in ANSWERED if sites[kind]]
    if given == ["cannot tell"]:
        return Markup("The data cannot tell whether joining is worth it for {}.").format(listed(sites["cannot tell"]))
    parts = [Markup("{} {}").format(ANSWERED[kind], listed(sites[kind])) for kind in given]
    return Markup("Joining {}.").format(Markup("; ").join(parts))


def next_steps(page: Page, verdicts: Sequence[Mapping[Any, Any]]) -> list[Markup]:
    """What to do with the answers; at most two steps."""
    sites = {kind: [name(v["site"]) for v in verdicts if v["verdict"] == kind] for kind in ANSWERS}
    out = []
    if sites["no"]:
        out.append(Markup("Let {} use a model of its own.").format(listed(sites["no"])))
    if sites["yes"]:
        out.append(Markup("Train together with {}, and use that model at {}.").format(
            page.titles.get(next(v["method"] for v in verdicts if v["verdict"] == "yes"), "the method named below"),
            listed(sites["yes"]),
        ))  # fmt: skip
    if sites["cannot tell"]:
        out.append(
            Markup(
                "More {}s at {} would answer it; the table below says how large a gain could have been seen."
            ).format(page.row_word, listed(sites["cannot tell"]))
        )
    return out[:2]


def brier_figure(verdicts: Sequence[Mapping[Any, Any]], few: Container[str]) -> Markup:
    """The Brier score of each site's risks alone and together, beside the baseline's; nothing where none is known."""
    rows = [row for v in verdicts if (row := _brier_row(v, FEW_MARK if v["site"] in few else ""))]
    if not rows:
        return Markup()
    low, high = axes.domain(mark.value for row in rows for mark in row.marks)
    key = [mark._replace(words=words) for mark, words in zip(rows[0].marks, BRIER, strict=True)]
    figure = IntervalRows("Brier score alone, together and of the baseline", rows, "Brier score (0 to 1)", low, high,
                          step=(28.0, 46.0), heads=[(low, "← better", "start")], key=key, rail=True)  # fmt: skip
    return svg.twice(lambda width: interval_rows(figure, width))


def _brier_row(verdict: Mapping[Any, Any], sign: str) -> IntervalRow | None:
    values = [verdict.get(f"brier_{k}", math.nan) for k in ("same", "alone", "joined")]
    if not all(map(math.isfinite, values)):
        return None
    words = ", ".join(f"{what} {number(v)}" for what, v in zip(BRIER, values, strict=True))
    kinds: tuple[tuple[Shape, str], ...] = (("tick", "level short"), ("dot", "dot few"), ("dot", "told"))
    marks = [
        RowMark(v, shape, kind, 8 if shape == "tick" else 5) for v, (shape, kind) in zip(values, kinds, strict=True)
    ]
    right = [Label(f"{number(values[2])}, baseline {number(values[0])}", "value")]
    return IntervalRow(verdict["site"], f"{verdict['site']}: {words}", marks=marks, sign=sign, right=right)


def verdict_figure(gains: Sequence[SiteGain], axis: str, few: Container[str] = (), widest: int = svg.WIDE) -> Markup:
    """Marked: those of `few`, which stand on few rows."""
    return svg.twice(lambda width: _figure(gains, axis, few, min(width, widest))) if gains else Markup()


def _figure(gains: Sequence[SiteGain], axis: str, few: Container[str], width: int) -> Markup:
    """The zero line stands in the middle. Sites of few rows do not stretch the axis, as long as there are others: what
    goes beyond it is an arrow."""
    rows = [_row(gain, FEW_MARK if gain.site in few else "") for gain in gains]
    sure = [gain.gain for gain in gains if gain.site not in few] or [gain.gain for gain in gains]
    low, high = axes.interval_domain(sure, [-gain.harm for gain in gains if gain.site not in few])
    far = max(-low, high)
    heads: list[Head] = [(0.0, "← better alone", "end"), (0.0, "better together →", "start")]
    title = f"Is joining worth it? {axis}"
    return interval_rows(IntervalRows(title, rows, axis, -far, far, signed, heads=heads), width)


def _row(gain: SiteGain, sign: str) -> IntervalRow:
    answer, kind = ANSWERS.get(gain.verdict, gain.verdict), VERDICT_CLASS.get(gain.verdict, "unsure")
    harm = [RowMark(-gain.harm, "tick", "harm", 9)] if gain.harm else []
    return IntervalRow(
        gain.site,
        f"{gain.site}: {spoken(gain.gain, signed)}, {answer}, together with {gain.method}",
        gain.gain,
        [*harm, RowMark(gain.gain.value)],
        kind=f"verdict {kind}",
        sign=sign,
        right=[Label(answer, "answer", "start"), Label(signed(gain.gain.value), "value")],
    )


SECTION, UNANSWERED = Section(contents, is_answered), Section(contents, is_unanswered)
