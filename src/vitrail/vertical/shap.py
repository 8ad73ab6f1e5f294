"""Federated SHAP (Wang 2019): Shapley values of the host's features and one united feature of each guest.

A guest's answer does not depend on which of the host's features are on. So it answers twice for a row, on and off,
where the paper's algorithm asks it once for each of the 2^p coalitions; the host works out the rest.

    v(S) = f(host's columns where S, else reference;  guest i's answer on where i in S, else off)

Coalitions count by the paper's formula, |S|! (p - |S| - 1)! / p!, as in its program. Its algorithm 1 prints a plain
mean over coalitions: those values do not sum to f(row) - f(reference) (benchmarks/vertical/results/plain_mean.md).

Off is the median, or a missing value where the model declares that it takes them. Where all parties' columns are at
hand, in a simulation, `explain_whole` has the values of each column of each party, with which the paper compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.analysis.explanations.rows import (
    ASKED,
    MEDIAN,
    NOTHING,
    Explanation,
    FeatureLabel,
    WholeSpace,
    answers_of,
    columns_of,
    explain_rows,
    takes_missing,
)
from vitrail.core.losses import Loss
from vitrail.core.tensors import medians
from vitrail.data.encoding import rows_as_text
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.party_side import GuestSide, groups_of, matrix, reference_of
from vitrail.vertical.training.split_network import features

BACKGROUND = "training rows, one after the other"


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
    host's "off", else the median of its training rows, or missing values if its model takes them; its guests have
    theirs. `background`: places of training rows
    that stand for "off" instead, at all parties; each costs a guest's ration one row. `means`: what the reference is,
    in words.

    Of classes, explained is that of `output`: its log odds, or its share."""
    host = d.host
    columns = host.columns
    on = {name: answer_scores(a).to(columns) for name, a in d.ask(rows).items()}
    if background is None:
        off = {name: answer_scores(a).to(columns) for name, a in d.off().items()}
        ref = (medians(columns[d.terms.train]) if reference is None else reference.to(columns))[None]
        if reference is None and takes_missing(host.joint):
            ref, means = torch.full_like(ref, torch.nan), NOTHING if means == MEDIAN else means
    else:
        off = {name: answer_scores(a).to(columns) for name, a in d.ask(background).items()}
        ref, means = columns[background], BACKGROUND if means == MEDIAN else means
    parts = host.parts()
    first, scores = (parts[0], parts[1]) if parts else (None, host.scores)
    return explain_with_answers(
        scores, host.loss, columns[rows], ref, on, off, names, groups, first=first,
        output=output, of=of, means=means, asked=asked, sizes=sizes, seed=d.terms.seed,
    )  # fmt: skip


def explain_with_answers(
    scores: Callable[[Tensor], Tensor],
    loss: Loss,
    x: Tensor,
    ref: Tensor,
    on: Mapping[str, Tensor],
    off: Mapping[str, Tensor],
    names: Sequence[str],
    groups: Sequence[Sequence[int]] | None = None,
    *,
    first: Tensor | None = None,
    data: NDArray[Any] | None = None,
    output: int = -1,
    of: Literal["odds", "share"] = "odds",
    means: str = MEDIAN,
    asked: int = ASKED,
    sizes: Literal["kernel", "leverage"] = "leverage",
    seed: int = 1,
) -> Explanation:
    """At the host, when guests have answered: `on` [row, answer] and `off` [1 or background row, answer] of each guest.
    x, ref: the host's columns likewise. `scores` of columns and answers side by side, or behind the layer `first`.
    data [row, feature]: the host's values as a person writes them."""
    groups = [[i] for i in range(x.shape[1])] if groups is None else groups
    at, united = x.shape[1], []
    for answers in on.values():
        united.append(list(range(at, at + answers.shape[1])))
        at += answers.shape[1]
    whole, away = torch.cat([x, *on.values()], 1), torch.cat([ref, *off.values()], 1)
    if data is None:
        shown = [x[:, g[0]] if len(g) == 1 else x.new_full((len(x),), torch.nan) for g in groups]
        data = torch.stack(shown, 1).numpy()
    data = np.concatenate([data, np.full((len(x), len(on)), np.nan, data.dtype)], 1)
    explained = explain_rows(
        answers_of(scores, loss, output, of), whole.numpy(), away.numpy(), [*names, *on], [*groups, *united],
        first=None if first is None else first.numpy(), data=data, means=means, united=list(on),
        asked=asked, sizes=sizes, seed=seed,
    )  # fmt: skip
    number = scores(whole[:1] if first is None else whole[:1] @ first).shape[1] == 1
    return replace(explained, scale="number" if number else of)


class GuestColumns(NamedTuple):
    """What a simulation knows of a guest: the rows that are explained, and its model."""

    name: str
    x: Tensor  # [row, column]
    ref: Tensor  # [column]: "off"
    answers: Callable[[Tensor], Tensor]  # of such columns, [row, answer], before rounding and noise
    names: Sequence[str]
    groups: Sequence[Sequence[int]]
    data: NDArray[Any]  # [row, feature]: as a person writes them
    columns: tuple[FeatureLabel, ...] = ()

    @classmethod
    def of(cls, side: GuestSide, places: Tensor) -> GuestColumns:
        rows, table = side.rows, side.rows.table
        cleaned, off = rows.common.iloc[places.numpy()], reference_of(rows, side.guest.terms)

        def answers(x: Tensor) -> Tensor:
            return side.guest.scores(features(x, side.bends, side.seed))

        return cls(
            side.guest.name, matrix(side.encoder, cleaned), matrix(side.encoder, off)[0], answers, list(table.features),
            groups_of(side.encoder), rows_as_text(cleaned, table), columns_of(off, table),
        )  # fmt: skip


def explain_whole(
    united: Explanation,
    scores: Callable[[Tensor], Tensor],
    loss: Loss,
    x: Tensor,
    ref: Tensor,
    groups: Sequence[Sequence[int]],
    guests: Sequence[GuestColumns],
    *,
    output: int = -1,
    of: Literal["odds", "share"] = "odds",
    seed: int = 1,
) -> Explanation:
    """`united` with the values of every column of every party beside it; its other arguments are those with which it
    was explained. The guests' answers are taken before rounding and noise, of which united values have a part."""
    widths = [x.shape[1], *(guest.x.shape[1] for guest in guests)]

    def joined(rows: Tensor) -> Tensor:
        mine, *theirs = torch.split(rows, widths, 1)
        answers = [guest.answers(part) for guest, part in zip(guests, theirs, strict=True)]
        return scores(torch.cat([mine, *(a.to(mine) for a in answers)], 1))

    explained = explain_rows(
        answers_of(joined, loss, output, of), torch.cat([x, *(guest.x.to(x) for guest in guests)], 1).numpy(),
        torch.cat([ref, *(guest.ref.to(ref) for guest in guests)]).numpy(), whole_names(united, guests),
        whole_groups(x.shape[1], groups, guests), means=united.reference, seed=seed,
    )  # fmt: skip
    return beside_united(united, explained, guests)


def whole_names(united: Explanation, guests: Sequence[GuestColumns]) -> list[str]:
    own = united.feature_names[: len(united.feature_names) - len(united.united)]
    return [*own, *(f"{guest.name}: {name}" for guest in guests for name in guest.names)]


def whole_groups(at: int, groups: Sequence[Sequence[int]], guests: Sequence[GuestColumns]) -> list[list[int]]:
    """The columns of each feature where the guests' stand behind the host's, of which there are `at`."""
    out = [list(group) for group in groups]
    for guest in guests:
        out += [[at + column for column in group] for group in guest.groups]
        at += guest.x.shape[1]
    return out


def beside_united(united: Explanation, explained: Explanation, guests: Sequence[GuestColumns]) -> Explanation:
    """`united` with this explanation of all columns, as `united` says its own."""
    own = len(united.feature_names) - len(united.united)
    labels = tuple(label for guest in guests for label in guest.columns)
    explained = replace(
        explained, data=np.concatenate([united.data[:, :own], *(guest.data for guest in guests)], 1),
        reference=united.reference, answer=united.answer, scale=united.scale, chance=united.chance, rows=united.rows,
        columns=(*united.columns[:own], *labels) if united.columns else (),
    )  # fmt: skip
    owners = ("",) * own + tuple(guest.name for guest in guests for _ in guest.names)
    return replace(united, whole=WholeSpace(explained, owners))


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

    explained = explain_rows(f, columns.numpy(), reference.numpy(), names, groups, asked=asked)
    return replace(explained, answer="own answer to the host, before rounding")


def explain_guest(side: GuestSide, places: Tensor) -> Explanation:
    """At the guest, for itself: its answer before rounding and noise, over its own columns."""
    rows, table = side.rows, side.rows.table
    cleaned, off = rows.common.iloc[places.numpy()], reference_of(rows, side.guest.terms)
    explained = split_answer(
        side.guest,
        matrix(side.encoder, cleaned),
        matrix(side.encoder, off)[0],
        list(table.features),
        groups_of(side.encoder),
        features=lambda x: features(x, side.bends, side.seed),
    )
    names = tuple(rows.labels[rows.places[i]] for i in places.tolist())
    means = "the median of each number and the most frequent level of each other feature, over the training rows"
    values = rows_as_text(cleaned, table)
    return replace(explained, data=values, rows=names, columns=columns_of(off, table), reference=means)
