"""Nearest neighbours among parties, in a simulation: distances of each guest for every row that is asked about.

Nothing of them is kept, so that every question is asked anew; and what a guest tells gives its columns away (knn.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.analysis.explanations.rows import Explanation, FeatureLabel, columns_of
from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import rows_as_text
from vitrail.data.readers.tables import clean
from vitrail.study.model import Study
from vitrail.vertical.shap import GuestColumns, beside_united, whole_groups, whole_names
from vitrail.vertical.training.host_model import TYPICAL, GuestAccess, HostModel, PredictedRows, answer_words, level_of
from vitrail.vertical.training.knn import Knn
from vitrail.vertical.training.party_side import (
    GuestSide,
    HostSide,
    OwnRows,
    groups_of,
    make_neighbour,
    matrix,
    method_of,
)
from vitrail.vertical.training.terms import Terms
from vitrail.vertical.wire import Wire

BLOCK = 256  # rows asked about at a time


def build_knn(study: Study, host: HostSide, guests: Mapping[str, GuestSide], wire: Wire) -> Knn:
    """Among sides of one machine: a simulation, whatever trust the study says."""
    terms = host.host.terms
    asked = [make_neighbour(study, s.rows, terms, "simulation", s.guest.ration) for s in guests.values()]
    return knn_of(study, host.rows, matrix(host.encoder, host.rows.common), terms, asked, wire)


def knn_of(study: Study, rows: OwnRows, x: Tensor, terms: Terms, guests: Iterable[object], wire: Wire) -> Knn:
    assert rows.outcome is not None
    y = rows.outcome[rows.places]
    if lost := int(np.isnan(y[terms.train.numpy()]).sum()):
        what = f"{lost} of the common training rows have no outcome."
        hint = "Leave these rows out of the host's table: neighbours vote by their outcomes."
        raise VitrailError("neighbours need outcomes", [Problem(f"{rows.party}, {study.target.column}", what, hint)])
    votes = torch.from_numpy(np.nan_to_num(y))
    return Knn(rows.party, x, votes, terms.train, list(guests), method_of(study).k, wire)  # type: ignore[arg-type]


@dataclass
class NeighbourModel(HostModel):
    """A host whose model is its training rows; guests must be at hand."""

    knn: Knn | None = None

    def shares(self, p: Tensor) -> NDArray[np.float64]:
        """[row, class], or [row, 1] of a number."""
        return (p[:, None] if self.study.target.kind == "number" else torch.stack([1 - p, p], 1)).numpy()

    def vote(self, x: Tensor, places: Tensor, without: Iterable[str] = ()) -> NDArray[np.float64]:
        assert self.knn is not None
        blocks = zip(torch.split(x, BLOCK), torch.split(places, BLOCK), strict=True)
        return self.shares(torch.cat([self.knn.vote(a, b, without) for a, b in blocks]))

    def predict(
        self,
        frame: pd.DataFrame,
        without: Iterable[str] = (),
        reach: Mapping[str, GuestAccess] | None = None,
        blind: bool = False,
    ) -> PredictedRows:
        guests, away, target, problems = self.study.guests, set(without), self.study.target, list[Problem]()
        problems += [Problem("--without", f"this study has no guest {n!r}.") for n in away - {*guests}]
        rows = clean(frame.drop(columns=target.column, errors="ignore"), self.study, need_target=False)
        asked = [g for g in guests if g not in away]
        place = self.at(self._ids(frame, problems)) if asked else torch.zeros(len(rows), dtype=torch.int64)
        if blind:
            problems.append(Problem("--blind", "distances to all training rows cannot be looked up blindly."))
        elif beyond := int((place < 0).sum()):
            what = f"{beyond} of {len(place)} rows belong to people who are not in the match."
            problems.append(Problem("NEW", what, "Predict without the guests (--without NAME), or match again."))
        if self.knn is None:
            what = "neighbours are searched in the parties' tables, which are not available here."
            problems.append(Problem("--data", what, "Give the folder of the parties."))
        if problems:
            raise VitrailError("cannot predict", problems)
        names = [target.column] if target.kind == "number" else list(target.levels)
        table = pd.DataFrame(self.vote(matrix(self.encoder, rows), place, away), rows.index, names)
        words = [f"Without {g}: the distances of its reference are used for everybody." for g in sorted(away)]
        words += [f"{g}: asked about {len(rows)} rows." for g in asked]
        for g in guests:
            table[g if g not in names else f"{g}_"] = "reference" if g in away else "answer"
        return PredictedRows(table, words)

    def unanswered_rows(self, guest: str, place: Tensor) -> Tensor:
        return place[:0]

    def explain(
        self,
        rows: OwnRows,
        places: Tensor,
        outcome: str | None = None,
        guests: Mapping[str, GuestSide] | None = None,
    ) -> Explanation:
        """The share of the positive class, or the number: neighbours have no odds."""
        assert self.knn is not None
        study, ref = self.study, self.reference
        level = level_of(study, outcome)
        off = matrix(self.encoder, ref)[0]
        groups, turned = groups_of(self.encoder), level is not None and level != study.target.levels[-1]
        explained = self.knn.explain(places, list(study.features), groups, off)
        shown = rows_as_text(rows.common.iloc[places.numpy()], study)
        hidden = np.full((len(shown), len(study.guests)), np.nan, object)
        explained = replace(
            _turned(explained) if turned else explained,
            data=np.concatenate([shown, hidden], 1),
            reference=TYPICAL,
            answer=answer_words(study, level),
            scale="number" if level is None else "share",
            rows=tuple(rows.labels[rows.places[i]] for i in places.tolist()),
            columns=(*columns_of(ref, study), *(FeatureLabel() for _ in study.guests)),
        )
        if not guests:
            return explained
        sides, knn = [GuestColumns.of(guests[g.name], places) for g in self.knn.guests], self.knn
        everybody = torch.cat([knn.columns, *(g.columns for g in knn.guests)], 1)
        whole = Knn(knn.name, everybody, knn.y, knn.train, [], knn.k).explain(
            places,
            whole_names(explained, sides),
            whole_groups(knn.columns.shape[1], groups, sides),
            torch.cat([off.double(), *(g.reference for g in knn.guests)]),
        )
        return beside_united(explained, _turned(whole) if turned else whole, sides)


def _turned(e: Explanation) -> Explanation:
    """Of a share: of the other class's."""
    return replace(e, values=-e.values, base_values=1 - e.base_values)
