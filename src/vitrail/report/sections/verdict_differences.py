"""Why a verdict differs from the table of scores beside it: another yardstick, one method for all sites, and luck."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitrail.core.text import number, signed
from vitrail.methods import TABLE
from vitrail.report.text import metric_words
from vitrail.studies.compare.result import Comparison
from vitrail.study.model import LOWER_IS_BETTER

LEAST = 0.005  # of the metric: a difference that a reader of three decimals sees


def why_apart(result: Comparison) -> list[str]:
    """How the two are made, then each site at which they seem to disagree; nothing where they do nowhere."""
    alone = next((m for m in result.methods if TABLE[m].catalogue.alone), None)
    verdicts = result.verdicts()
    if alone is None or verdicts.empty:
        return []
    metric, mean = result.study.metrics[0], result.means(result.study.metrics[0])
    sign = -1 if metric in LOWER_IS_BETTER else 1
    lines = []
    for row in verdicts.to_dict("records"):
        pair = mean.get((row["method"], row["site"]), math.nan), mean.get((alone, row["site"]), math.nan)
        said = _line(row, sign * (pair[0] - pair[1]), TABLE[alone].catalogue.title, result.yardstick)
        lines += [f"{row['site']}: {said}"] if said else []
    if not lines:
        return []
    about = metric_words(result.yardstick)
    other = f"{about}, which also counts how sure a model was" if result.yardstick != metric else about
    head = (
        f"Why a verdict is not what the table shows: the table has {metric_words(metric)}, each method by itself. A "
        f"verdict is about {other}; it is of the one method that does best at the other sites, and it says yes or no "
        "only where the change is larger than luck gives. Here they differ:"
    )
    return [head, *lines]


def _line(row: Mapping[Any, Any], better: float, alone: str, yardstick: str) -> str:
    """One site; nothing where table and verdict say the same. `better`: by how much the method is, in the table."""
    gain, low, high = row["gain"], row["low"], row["high"]
    if not all(map(math.isfinite, (better, gain, low, high))) or abs(better) < LEAST:
        return ""
    says = {"yes": 1, "no": -1}.get(row["verdict"], 0)
    if says == (1 if better > 0 else -1):
        return ""
    title = TABLE[row["method"]].catalogue.title
    table = f"{title} is {number(abs(better))} {'better' if better > 0 else 'worse'} than {alone} in the table"
    words = yardstick.replace("_", " ")
    if says:
        return f"{table}; in {words} it {'saves' if gain > 0 else 'costs'} {number(abs(gain))}, and more than luck."
    if better * gain < 0:
        return f"{table}; in {words} it is the other way round ({signed(gain)}), and no more than luck may give."
    return f"{table}; but its change in {words}, {signed(gain)}, may lie from {signed(low)} to {signed(high)}."
