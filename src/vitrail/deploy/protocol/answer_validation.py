"""What an answer may say, beyond its form: counts that can be counts, shares that are shares, scores that a metric can
give. What cannot be is that site's error, before any of it is used. What screening publishes is judged at its desk."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vitrail.deploy.protocol.agreement import VERDICT, Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.share.shared import STATEMENT
from vitrail.metrics.calibration import read_counts
from vitrail.metrics.scores import FEWEST
from vitrail.runs.evaluation import baseline_metrics
from vitrail.runs.setup import AT_BEDSIDE
from vitrail.studies.site_benefit import cannot_be

MOST_ROWS = 10**9
FAR = 1e100  # no mean, sum or error of real data
LONGEST_WORD = 200  # characters of what a site says of itself
LONGEST_STATEMENT = 8000  # of its certificate, and of what it signs with it
BOUNDS = {  # what a metric can be; one that is not here is only no larger than FAR
    **dict.fromkeys(("accuracy", "balanced_accuracy", "f1", "f1_event", "auc", "c_index", "uno_c", "free"), (0.0, 1.0)),
    "left": (FEWEST, MOST_ROWS),
    **dict.fromkeys(("log_loss", "time_log_loss"), (0.0, 35.0)),  # probabilities are held above 1e-15
    "integrated_brier": (0.0, FAR),  # weighted: a single row may count for many
    **dict.fromkeys(("rmse", "mae"), (0.0, FAR)),
    "r2": (-FAR, 1.0),
}


def implausible_answer(agreed: Agreement, asked: Message, answer: Message) -> str | None:
    """Why an answer of the right form cannot be true, in words; None if it can."""
    tensors, out = answer.tensors, list[str]()
    if "scores" in tensors and asked.kind in ("round", "settle"):
        asked_for = agreed.scored(asked.words["score"])
        out += _scores([metric for _, metric in asked_for], tensors["scores"])
        numbers = zip(asked_for, tensors["scores"].tolist(), strict=True)
        out += _by_risk({metric: number for (split, metric), number in numbers if split == AT_BEDSIDE})
    if asked.kind == "prepare":
        out += _scores(list(baseline_metrics(agreed.study)), tensors["chance"])
        out += _between("rows", tensors["rows"], 0, MOST_ROWS)
        out += ["rows: expected at least one row to train on, got none"] if int(tensors["rows"][0]) < 1 else []
        if agreed.study.target.levels:
            out += _between("target", tensors["target"], 0.0, 1.0)
            out += (
                ["target: expected shares that add up to 1"] if abs(float(tensors["target"].sum()) - 1) > 1e-6 else []
            )
        else:
            timed = agreed.study.target.kind == "time"  # a share; else a mean
            out += _between("target", tensors["target"], *((0.0, 1.0) if timed else (-FAR, FAR)))
        words = {k: v for k, v in answer.words.items() if k not in STATEMENT}
        out += [f"{name}: expected a short text" for name, word in words.items() if not _short(word)]
        long = [name for name in STATEMENT if len(answer.words.get(name, "")) > LONGEST_STATEMENT]
        out += [f"{name}: expected at most {LONGEST_STATEMENT} characters" for name in long]
    elif asked.kind == "standardise" and "sum" not in asked.words:
        out += _between("rows", tensors["rows"], 0, MOST_ROWS)
        out += _between("total", tensors["total"], 0 if asked.words["step"] == 2 else -FAR, FAR)
    elif asked.kind == "transfer":
        out += [what for name, v in tensors.items() if v.dtype == torch.float64 for what in _between(name, v, 0.0, FAR)]
    elif asked.kind == "finish" and answer.words.get(VERDICT):
        out += [what] if (what := cannot_be(agreed.study, answer.words[VERDICT])) else []
    return "; ".join(out) or None


def _scores(metrics: list[str], numbers: Tensor) -> list[str]:
    out = []
    for metric, number in zip(metrics, numbers.tolist(), strict=True):
        low, high = BOUNDS.get(metric.split("@")[0], (-FAR, FAR))
        if not math.isnan(number) and not low - 1e-9 <= number <= high + 1e-9:
            out.append(f"{metric}: expected a number from {low:g} to {high:g}, got {number:.3g}")
    return out


def _by_risk(scores: dict[str, float]) -> list[str]:
    """Held-out rows by risk: groups that rows can make, and none of few."""
    if all(math.isnan(number) for number in scores.values()):
        return []
    counts = read_counts(scores)
    if counts is None or (counts.rows < FEWEST).any():
        return [
            f"held-out rows by risk: expected groups of at least {FEWEST} rows, with at most as many events as rows"
        ]
    return []


def _between(name: str, tensor: Tensor, low: float, high: float) -> list[str]:
    numbers = tensor[~tensor.isnan()] if tensor.is_floating_point() else tensor
    if not numbers.numel() or (bool((numbers >= low).all()) and bool((numbers <= high).all())):
        return []
    bad = numbers[(numbers < low) | (numbers > high)].flatten()[0]
    return [f"{name}: expected numbers from {low:g} to {high:g}, got {float(bad):.3g}"]


def _short(word: Any) -> bool:
    """Printable text that is not long, or a few of them under names."""
    if isinstance(word, dict):
        return len(word) <= 20 and all(isinstance(k, str) and _short(k) and _short(v) for k, v in word.items())
    return isinstance(word, str) and len(word) <= LONGEST_WORD and word.isprintable()
