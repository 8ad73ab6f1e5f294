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
from vitrail.report.charts.axes import interval_domain
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, RowMark, interval_rows
from vitrail.report.pages.frame import fill
from vitrail.report.text import (
    ANSWERS,
    VERDICT_CLASS,
    Interval,
    Standing,
    Tone,
    listed,
    metric_name,
    metric_words,
    name,
    spoken,
)
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
    "the differences between them are free of the constant noise."
)
TONES: dict[str, Tone] = {"yes": "gain", "no": "loss"}
STATUSES = {"yes": "gains", "no": "does better alone", "cannot tell": "cannot tell", "": "not tested"}
NEXT = {
    "yes": "Agree on how often the guests may be asked from now on; each question tells something of their columns.",
    "no": "Let the guests go: their columns do not help here, and each question tells something of them.",
    "cannot tell": "Match more people, or leave it: from so few held-out rows a gain cannot be seen.",
    "": "Score on more held-out rows, so that the gain has an interval.",
}


class ModelScore(NamedTuple):
    """One model's row."""

    title: str
    value: Interval
    gain: Interval
    verdict: str
    away: str = ""  # the guest that is away
    is_baseline: bool = False


def render_together(run: VerticalRun) -> str:
    study, metrics = run.study, list(run.study.metrics)
    table = {m: scores_of(run, m) for m in metrics}
    first = metrics[0]
    return fill(
        "together.html",
        study=study,
        run=run,
        guests=listed([name(g) for g in study.guests]),
        findings=findings(run)[1:],
        standings=standings(run),
        next_step=NEXT[table[first][1].verdict],
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
        note=next((text for key, text in ATTRIBUTIONS.items() if study.name.startswith(key)), ""),
    )


def trains(run: VerticalRun) -> bool:
    """Whether guests have a model; else they tell distances."""
    return bool(run.method.joint != "neighbours")


def scores_of(run: VerticalRun, metric: str) -> list[ModelScore]:
    out = []
    for r in run.scores[run.scores.metric == metric].to_dict("records"):
        gain = Interval(r["gain"], r["gain_low"], r["gain_high"])
        title, away = str(r["model"]), [guest for guest in run.study.guests if r["model"] == f"{guest} away"]
        if title == TOGETHER:
            title = f"with {' and '.join(run.study.guests)}"
        is_baseline = title == MAJORITY
        title = "baseline" if is_baseline else title
        score = Interval(r["value"], r["low"], r["high"])
        out.append(ModelScore(title, score, gain, verdict(gain), next(iter(away), ""), is_baseline))
    return out


def verdict(gain: Interval) -> str:
    if not gain.known:
        return ""
    return "yes" if gain.low > 0 else "no" if gain.high < 0 else "cannot tell"


def findings(run: VerticalRun) -> list[Markup]:
    study, metric = run.study, run.study.metrics[0]
    alone, whole, *rest = scores_of(run, metric)
    away, baselines = [r for r in rest if r.away], [r for r in rest if r.is_baseline]
    guests, host, what = listed([name(g) for g in study.guests]), name(study.host), metric_words(metric)
    first = Markup("With {}, {}’s {} on {} is {}; alone it is {}. ").format(
        guests, host, what, several(run.scored, "held-out row"), spoken(whole.value), number(alone.value.value)
    )
    words = {
        "yes": "The guests’ columns help {}: gain {}.",
        "no": "The host {} does better without them: gain {}.",
        "cannot tell": "Whether {} gains is not clear from so few rows: gain {}.",
        "": "Gain of {}: {}.",
    }[whole.verdict]
    out = [first + Markup(words).format(host, spoken(whole.gain, signed))]
    out += [Markup("Baseline (one answer to every row): {}.").format(number(row.value.value)) for row in baselines]
    for row in away:
        words = "While {} is away, {} for everybody: {}, compared with {} with it."
        stands = "its median answer is used" if trains(run) else "the distances of its reference are used"
        gone = name(row.away)
        out.append(Markup(words).format(gone, stands, number(row.value.value), number(whole.value.value)))
    total, many = (int(run.ledger[c].sum()) for c in ("bytes", "messages"))
    stays = "No column of a guest did, and no outcome." if trains(run) else GIVES_AWAY
    text = Markup("In all {} in {} crossed between the parties. {}")
    out.append(text.format(bytes_words(total), several(many, "message"), stays))
    for guest, left in run.left().items():
        more = f", and in training {several(left['training'], 'time')} more about each" if trains(run) else ""
        words = "The guest {} may be asked about {} more{}."
        out.append(Markup(words).format(name(guest), several(left["after"], "row"), more))
    return out


def standings(run: VerticalRun) -> list[Standing]:
    """Whether the host gains, and what is lost while a guest is away."""
    what = metric_name(run.study.metrics[0])
    alone, whole, *rest = scores_of(run, run.study.metrics[0])
    words = (
        f"{what[:1].upper()}{what[1:]} {number(whole.value.value)} with the guests, {number(alone.value.value)} alone; "
        f"gain {spoken(whole.gain, signed)}."
    )
    out = [Standing(run.study.host, STATUSES[whole.verdict], TONES.get(whole.verdict, "unsure"), words)]
    for row in rest:
        if row.away:
            words = f"{number(row.value.value)} while it is away, {number(whole.value.value)} with it."
            out.append(Standing(row.away, "guest", "calm", words))
    return out


def values(scores: Sequence[ModelScore], axis: str, width: int) -> Markup:
    """One row per model: its value and interval."""
    rows = [
        IntervalRow(
            score.title,
            f"{score.title}: {spoken(score.value)}",
            score.value,
            [RowMark(score.value.value)],
            kind="verdict gain" if score.verdict == "yes" else "verdict unsure",
            right=[Label(number(score.value.value), "value")],
        )
        for score in scores
    ]
    low, high = interval_domain([row.interval for row in rows])
    title = f"What guests are worth: {axis}"
    return interval_rows(IntervalRows(title, rows, axis, low, high, step=(38.0, 50.0), letters=40), width)


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
