"""A site's whole way from cleaned rows to answers as one torch module, traced once. Every format is made of the trace,
so that no format knows a network or a method.

    rows     [row, feature] float64: numbers in their unit, places of levels; NaN where missing. Or pictures, uint8
    answers  [row, class] shares, [row, 1] the number in its unit, or [row, 1 + end] of a time;
             NaN where a value is none of the study's
    unsure   [row]: from 0, sure, to 1, knows nothing; where the loss says so
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.losses import UncertaintyLoss
from vitrail.data.encoding import Encoder
from vitrail.data.readers.cells import as_numbers
from vitrail.runs.result import Model

ROWS = "rows"


class Program(NamedTuple):
    """What was traced."""

    traced: Any  # torch.export.ExportedProgram, in few kinds of steps
    kinds: tuple[torch.dtype, ...]  # of answers, and of unsure where the model tells it


class InputScale(NamedTuple):
    """What a row passes through, over features or matrix columns."""

    source: Tensor  # [column]: the feature it shows
    mean: Tensor  # [column]
    sd: Tensor  # [column]
    neutral: Tensor  # [column]: what stands for a missing value
    hot: Tensor  # [column] bool: whether it shows if a feature has a certain level
    level: Tensor  # [column]: which
    codes: Tensor  # [nth, feature]: what the study says is written where nothing was measured; NaN: no such
    levels: Tensor  # [feature] bool: whether it has levels
    last: Tensor  # [feature]: the last place

    def encoded(self, rows: Tensor) -> Tensor:
        """As `Encoder.matrix` does it; and codes for "not measured" are missing values."""
        for codes in self.codes:
            rows = torch.where(rows == codes, torch.nan, rows)
        seen = rows.index_select(1, self.source)
        plain = torch.where(self.hot, torch.eq(seen, self.level).double(), (seen - self.mean) / self.sd)
        return torch.where(seen.isnan(), self.neutral, plain)

    def misfits(self, rows: Tensor) -> Tensor:
        """[row]: whether a value is none that the study knows: no answer is better than a made-up one."""
        beyond = (rows < 0) | (rows > self.last) | torch.ne(rows, rows.floor())
        return ((beyond & self.levels & ~rows.isnan()) | rows.isinf()).any(1)


class AnswerModule(nn.Module):
    """A site's model with its own scale inside."""

    def __init__(self, mine: Model) -> None:
        super().__init__()
        self.mine, (self.task, self.scorer) = mine, mine.scorer()
        self.scale = None if mine.study.images else _scale(mine.encoder)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        z = self.scorer(rows if self.scale is None else self.scale.encoded(rows).float())
        answers, target = self.task.loss.predictions(z), self.mine.study.target
        if target.kind == "number":
            answers = answers.double() * target.scale + target.center
        if target.kind == "time":  # the risk by the last end, then the chance to be free of the event at each
            answers = torch.cat([1 - answers[:, -1:], answers], 1)
        outputs: tuple[Tensor, ...] = (answers,)
        if isinstance(self.task.loss, UncertaintyLoss):
            outputs += (self.task.loss.uncertainty(z),)
        if self.scale is None:
            return outputs
        wrong = self.scale.misfits(rows)
        return tuple(torch.where(wrong[:, None] if t.dim() > 1 else wrong, torch.nan, t) for t in outputs)


def trace_model(mine: Model) -> Program:
    """The model of one site; what torch cannot trace is told."""
    answering = AnswerModule(mine).eval()
    images = mine.study.images
    some = (
        torch.zeros(3, *images.shape, dtype=torch.uint8)
        if images
        else torch.zeros(3, len(mine.study.features)).double()
    )
    rows = torch.export.Dim(ROWS, min=1)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about torch
            outputs = answering(some)  # what a network makes at its first call is no part of the model
            traced = torch.export.export(answering, (some,), dynamic_shapes=({0: rows},), strict=False)
            traced = traced.run_decompositions()
    except Exception as error:  # torch may raise anything about a network that is not ours
        what = f"torch cannot trace this network ({type(error).__name__})."
        hint = "Write a .vitrail file instead, which holds the model's numbers."
        raise VitrailError("cannot export", [Problem("network", what, hint)]) from error
    return Program(traced, tuple(t.dtype for t in outputs))


def _scale(encoder: Encoder) -> InputScale:
    at, features = encoder.layout, list(encoder.table.features.values())
    hot, level = np.zeros(len(at.source), bool), np.full(len(at.source), np.nan)
    hot[at.hot], level[at.hot] = True, at.level
    codes_of = [_codes(f.missing) if f.kind == "numeric" else [] for f in features]
    codes = np.full((max(1, *map(len, codes_of)), len(features)), np.nan)  # torch keeps no tensor without numbers
    for i, few in enumerate(codes_of):
        codes[: len(few), i] = few
    levels = np.array([f.kind != "numeric" for f in features])
    last = np.array([len(f.levels) - 1.0 if f.levels else np.inf for f in features])
    arrays = (at.source, at.mean, at.sd, at.neutral, hot, level, codes, levels, last)
    return InputScale(*(torch.from_numpy(np.array(a)) for a in arrays))


def _codes(missing: tuple[Any, ...]) -> list[float]:
    """Of what stands for "not measured", the numbers."""
    import pandas as pd

    return as_numbers(pd.Series(list(missing), dtype=object))[0].dropna().tolist() if missing else []
