"""The hold-out rows of sites on this machine, each with what the site's own model answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitrail.metrics.holdout_summary import HeldOutAnswers

if TYPE_CHECKING:
    from vitrail.runs.evaluation import Evaluator

MOST_ROWS = 500  # as the network takes them, of a site: more are not kept in memory


def collect_answers(judge: Evaluator, settled: Any) -> dict[str, HeldOutAnswers]:
    """By site; of settled sites."""
    p, (y, real) = judge.answers(settled, "test", others=False)["test"], judge.truth["test"]
    rows = {i: stack.x[k] for stack in judge.stacks["test"] for k, i in enumerate(stack.sites)}
    out = {}
    for i, site in enumerate(judge.data):
        many = int(real[i].sum())
        some = slice(0, 0) if judge.study.images else slice(0, many, -(-many // MOST_ROWS) or 1)
        cut = None if judge.thresholds is None else judge.thresholds[i]
        x = rows[i][some].cpu().numpy().copy()
        out[site.name] = HeldOutAnswers(y[i, :many], p[i, :many], site.test_persons, site.test_w, cut, x)
    return out
