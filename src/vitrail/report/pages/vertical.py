"""The page of a run with parties, which all of them may read: what guests are worth to the host, and what crossed.

It holds no row, no column of a guest and no name of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

from markupsafe import Markup

from vitrail.core.text import number, several, signed
from vitrail.core.text import size as bytes_words
from vitrail.data.datasets.catalogue import ATTRIBUTIONS
from vitrail.report.charts import svg
from vitrail.report.pages.frame import fill
from vitrail.report.text import ANSWERS, SAME, VERDICT_CLASS, Interval, listed, metric_words, name, spoken
from vitrail.runs.setup import MAJORITY
from vitrail.vertical import messages
from vitrail.vertical.matching import lookup
from vitrail.vertical.matching import protocol as matching_protocol
from vitrail.vertical.matching.match import consent
from vitrail.vertical.pipeline import ALONE, TOGETHER
from vitrail.vertical.run import VerticalRun
from vitrail.vertical.training.knn import GIVES_AWAY

STAGES = {
    "match": "finding whom they have in common",
    "training": "training",
    "scoring": "scoring, once, on held-out rows",
    "afterwards": "afterwards: predictions and explanations",
}


SELDOM = 5
OFTEN = (
    " Asked so often with changing weights, answers tell much more of a guest’s columns than asked two or three times: "
    "what differs between them is free of the noise that stays."
)


class ModelScore(NamedTuple):
    """One model's row."""

    title: str
    value: Interval
    gain: Interval
    verdict: str


def render_together(run: VerticalRun) -> str:
    study, metrics = run.study, list(run.study.metrics)
    table = {m: scores_of(run, m) for m in metrics}
    first = metrics[0]
    return fill(
        "together.html",
        study=study,
        run=run,
        guests=listed([name(g) for g in study.guests]),
        findings=findings(run),
        figure=svg.twice(lambda width: values(table[first], metric_words(first), width)),
        table=table,
        answers=ANSWERS,
        verdict_class=VERDICT_CLASS,
        held=run.scored,
        crossed=crossed(run),
        trains=trains(run),
        tells=tells(run),
        consents={party: consent(study, party) for party in study.parties},
        about=about(run),
        note=next((said for key, said in ATTRIBUTIONS.items() if study.name.startswith(key)), ""),
    )


def trains(run: VerticalRun) -> bool:
    """Whether guests have a model; else they tell distances."""
    return bool(run.method.joint != "neighbours")


def scores_of(run: VerticalRun, metric: str) -> list[ModelScore]:
    out = []
    for r in run.scores[run.scores.metric == metric].to_dict("records"):
        gain = Interval(r["gain"], r["gain_low"], r["gain_high"])
        title = str(r["model"])
        if title == TOGETHER:
            title = f"with {' and '.join(run.study.guests)}"
        elif title == MAJORITY:
            title = SAME
        out.append(ModelScore(title, Interval(r["value"], r["low"], r["high"]), gain, verdict(gain)))
    return out


def verdict(gain: Interval) -> str:
    if not gain.known:
        return ""
    return "yes" if gain.low > 0 else "no" if gain.high < 0 else "cannot tell"


def findings(run: VerticalRun) -> list[Markup]:
    study, metric = run.study, run.study.metrics[0]
    alone, whole, *rest = scores_of(run, metric)
    away, same = [r for r in rest if r.title != SAME], [r for r in rest if r.title == SAME]
    guests, host, what = listed([name(g) for g in study.guests]), name(study.host), metric_words(metric)
    said = Markup("With {}, {}’s {} on {} is {}; alone it is {}. ").format(
        guests, host, what, several(run.scored, "held-out row"), spoken(whole.value), number(alone.value.value)
    )
    words = {
        "yes": "The guests’ columns are worth something to {}: {}.",
        "no": "{} does better without: {}.",
        "cannot tell": "Whether {} gains cannot be told from so few rows: {}.",
        "": "What {} gains is {}.",
    }[whole.verdict]
    out = [said + Markup(words).format(host, spoken(whole.gain, signed))]
    out += [Markup("{} would reach {}.").format(SAME.capitalize(), number(row.value.value)) for row in same]
    for row in away:
        words = "While {} is away, {} for everybody: {}, against {} with it."
        stands = "its median answer stands" if trains(run) else "the distances of its reference stand"
        gone = name(row.title.removesuffix(" away"))
        out.append(Markup(words).format(gone, stands, number(row.value.value), number(whole.value.value)))
    total, many = (int(run.ledger[c].sum()) for c in ("bytes", "messages"))
    kept = "No column of a guest did, and no outcome." if trains(run) else GIVES_AWAY
    said = Markup("In all {} in {} crossed between the parties. {}")
    out.append(said.format(bytes_words(total), several(many, "message"), kept))
    for guest, left in run.left().items():
        more = f", and in training {several(left['training'], 'time')} more about each" if trains(run) else ""
        out.append(Markup("{} may be asked about {} more{}.").format(name(guest), several(left["after"], "row"), more))
    return out


def values(rows: Sequence[ModelScore], axis: str, width: int) -> Markup:
    """One row per model: its value and interval."""
    narrow = svg.is_narrow(width)
    height, top = (50.0, 8.0) if narrow else (38.0, 8.0)
    left = 6.0 if narrow else 24 + 7.2 * max(len(r.title) for r in rows)
    right = width - (8.0 if narrow else 70.0)
    low, high = svg.domain([v for r in rows for v in r.value if math.isfinite(v)])
    x, bottom = svg.AxisScale(low, high, left, right), top + height * len(rows)
    parts = svg.axis_below(x, svg.ticks(low, high, 4 if narrow else 6), top, bottom, axis, number)
    said = []
    for i, row in enumerate(rows):
        base = top + i * height + height * (0.7 if narrow else 0.5)
        words = f"{row.title}: {spoken(row.value)}"
        said.append(words)
        label = base - 16 if narrow else base + 4
        mark = [svg.tip(words)]
        if row.value.known:
            mark.append(svg.line(x(row.value.low), base, x(row.value.high), base, "interval"))
        if math.isfinite(row.value.value):
            mark.append(svg.tag("circle", cx=x(row.value.value), cy=base, r=6, class_="dot"))
        parts.append(svg.text(0, label, row.title, "name"))
        parts.append(svg.tag("g", *mark, class_="verdict gain" if row.verdict == "yes" else "verdict unsure"))
        parts.append(svg.text(width, label, number(row.value.value), "value", "end"))
    return svg.plot(width, bottom + 40, f"What guests are worth: {axis}", "; ".join(said) + ".", parts)


def crossed(run: VerticalRun) -> list[tuple[str, list[dict[str, Any]]]]:
    """By stage; each with what the message holds, in a sentence to its sender."""
    ledger = run.ledger
    out = []
    for stage, words in STAGES.items():
        rows = ledger[ledger.stage == stage].to_dict("records")
        if rows:
            out.append((words, [{**{str(k): v for k, v in r.items()}, "words": sentence(r["message"])} for r in rows]))
    return out


def sentence(message: str) -> str:
    """What a message holds; the sentences that an officer reads."""
    if message.startswith("list of "):
        return _sentences(matching_protocol.List)
    if message.startswith("places in"):
        return _sentences(matching_protocol.Places)
    if message == "number in common":
        return _sentences(matching_protocol.Count)
    kind = getattr(messages, message, None) or getattr(lookup, message, None)
    return _sentences(kind) if kind is not None else ""


def _sentences(kind: Any) -> str:
    hints = get_type_hints(kind, include_extras=True)
    return "; ".join(hint.__metadata__[0] for hint in hints.values() if hasattr(hint, "__metadata__"))


def tells(run: VerticalRun) -> list[tuple[str, list[str]]]:
    """What each end could find out, and what keeps it from more."""
    study, terms = run.study, run.terms
    if not trains(run):
        return [(guest, [GIVES_AWAY]) for guest in study.guests]
    out = []
    for o in terms.offers:
        rounded = f"rounded to {2**o.bits} levels" if o.bits else "not rounded"
        noisy = f"with noise of {o.noise:g} of their spread, the same for a person at all times"
        noisy = noisy if o.noise else "without noise"
        numbers = several(o.answer, "number")
        out.append(
            (
                o.name,
                [
                    f"Answers {numbers} about a person, {rounded}, {noisy}. An answer tells something of its columns "
                    "all the same, and the more the more a column matters for the outcome.",
                    f"Each training row was asked about {several(terms.asked, 'time')}, with weights that changed in "
                    f"{several(terms.epochs, 'epoch')}." + OFTEN * (terms.asked > SELDOM),
                    f"It learned sums over {several(len(terms.batches), 'batch', 'batches')} of at least "
                    f"{min(len(b) for b in terms.batches)} rows, and no person’s outcome. "
                    + (
                        "With fewer than 1024 rows in a batch, sums tell more of each person than is usual here."
                        if min(len(b) for b in terms.batches) < 1024
                        else ""
                    ),
                ],
            )
        )
    return out


def about(run: VerticalRun) -> list[tuple[str, str]]:
    study, info, terms = run.study, run.info, run.terms
    given = {k: v for k, v in study.method.items() if k != "name"}
    more = f" ({', '.join(f'{k} = {v}' for k, v in given.items())})" if given else ""
    return [
        ("Method", run.method.catalogue.title + more),
        ("People in common", f"{info['common']}: {len(terms.train)} trained on, {len(terms.test)} held out"),
        *((f"List of {party}", several(rows, "id")) for party, rows in info["lists"].items()),
        ("Name of the match", info["mark"]),
        *(
            [("Training", f"{terms.epochs} epochs with guests, {terms.alone} of the host by itself before and after")]
            if trains(run)
            else []
        ),
        ("Seed", str(run.seed)),
        ("Versions", ", ".join(f"{k} {v}" for k, v in info["versions"].items())),
        ("Started", info["started"]),
    ]


def to_text(run: VerticalRun) -> tuple[list[str], list[list[Any]], list[str]]:
    """For a terminal: a table of the first metric, and the findings."""
    rows = scores_of(run, run.study.metrics[0])
    table = [[r.title, r.value.value, _span(r.value), _gain(r)] for r in rows]
    return (
        ["model", run.study.metrics[0], "95 % interval", "gain over the host alone"],
        table,
        [str(line.striptags()) for line in findings(run)],
    )


def _span(interval: Interval) -> str:
    return f"{number(interval.low)} to {number(interval.high)}" if interval.known else ""


def _gain(row: ModelScore) -> str:
    if row.title == ALONE or not math.isfinite(row.gain.value):
        return ""
    return f"{signed(row.gain.value)} ({signed(row.gain.low)} to {signed(row.gain.high)})"
