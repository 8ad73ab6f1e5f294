"""Federated SHAP (Wang 2019): Shapley values of the host's features and one united feature of each guest.

A guest's answer does not depend on which of the host's features are on. So it answers twice for a row, on and off,
where the paper's algorithm asks it once for each of the 2^p coalitions; the host works out the rest.

    v(S) = f(host's columns where S, else reference;  guest i's answer on where i in S, else off)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.explain.rows import ASKED, MEDIAN, Explanation, answers_of, explain_rows
from vitrail.vertical.dialogue import Dialogue
from vitrail.vertical.guest import Guest
from vitrail.vertical.host import heard

BACKGROUND = "rows of training, one after the other"


def explain(
    d: Dialogue,
    rows: Tensor,
    names: Sequence[str],
    groups: Sequence[Sequence[int]] | None = None,
    reference: Tensor | None = None,
    *,
    output: int = -1,
    of: Literal["odds", "share"] = "odds",
    background: Tensor | None = None,
    means: str = MEDIAN,
    asked: int = ASKED,
    sizes: Literal["kernel", "leverage"] = "leverage",
) -> Explanation:
    """rows: places in the match. groups: the host's columns of each feature in `names`. `reference` [column]: the
    host's "off", else the median of its training rows; its guests have theirs. `background`: places of training rows
    that stand for "off" instead, at all parties; each costs a guest's ration one row. `means`: what the reference is,
    in words.

    Of classes, explained is that of `output`: its log odds, or its share."""
    host = d.host
    columns, own = host.columns, host.columns.shape[1]
    groups = [[i] for i in range(own)] if groups is None else groups
    on = [heard(a).to(columns) for a in d.ask(rows).values()]
    if background is None:
        off = [heard(a).to(columns) for a in d.off().values()]
        ref = (columns[d.terms.train].median(0).values if reference is None else reference.to(columns))[None]
    else:
        off = [heard(a).to(columns) for a in d.ask(background).values()]
        ref, means = columns[background], BACKGROUND if means == MEDIAN else means
    at, united = own, []
    for g in d.guests:
        united.append(list(range(at, at + g.offer.answer)))
        at += g.offer.answer
    whole, away = torch.cat([columns[rows], *on], 1).numpy(), torch.cat([ref, *off], 1).numpy()
    shown = [columns[rows][:, g[0]] if len(g) == 1 else columns.new_full((len(rows),), torch.nan) for g in groups]
    hidden = [columns.new_full((len(rows),), torch.nan) for _ in united]
    parts, guests = host.parts(), [g.name for g in d.guests]
    first, scores = (parts[0].numpy(), parts[1]) if parts else (None, host.scores)
    told = explain_rows(
        answers_of(scores, host.loss, output, of), whole, away, [*names, *guests], [*groups, *united],
        first=first, data=torch.stack(shown + hidden, 1).numpy(), means=means, united=guests,
        asked=asked, sizes=sizes, seed=d.terms.seed,
    )  # fmt: skip
    return replace(told, odds=of == "odds" and host.y.shape[1] > 1)


def split_answer(
    guest: Guest,
    columns: Tensor,
    reference: Tensor,
    names: Sequence[str],
    groups: Sequence[Sequence[int]] | None = None,
    *,
    features: Callable[[Tensor], Tensor] = lambda x: x,
    answer: int = 0,
    asked: int = ASKED,
) -> Explanation:
    """At the guest, for itself: what each of its columns adds to its answer, before rounding. Nothing crosses.

    columns [row, column] and reference [column] as the guest has them; `features` makes of them what its model weighs.
    """

    def f(x: NDArray[Any]) -> NDArray[Any]:
        return guest.scores(features(torch.from_numpy(x)))[:, answer].numpy()

    told = explain_rows(f, columns.numpy(), reference.numpy(), names, groups, asked=asked)
    return replace(told, answer="own answer to the host, before rounding")
