"""What a site tells of how good its model is: when it was agreed, once, of models that continue the one it trained on.

Whoever may have any model scored again and again can find out whether a person is among the rows, and read whole rows.
So a site scores nothing but the agreed start and a model that continues the one it last trained on, in the order of
rounds, each once; what is asked otherwise gets no number, is counted, and is shown here. Numbers leave as counts of
patients rounded to tens by chance (core/rounding.py), drawn from the site's own secret.

HOME/RUN/scored.json    rounds whose scores were told, and of which model; questions that got none
HOME/RUN/scores.json    the exact scores of this site's own model in the end, which stay here
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.core.bedside import BEDSIDE, EDGES, KINDS
from vitrail.core.disk import write_atomically
from vitrail.core.random import key
from vitrail.core.rounding import TEN, Rows, count_of, is_told, patients, score_of, to_ten
from vitrail.deploy.agreement import Agreement
from vitrail.deploy.score_plan import clock
from vitrail.report.words import several
from vitrail.runs.judge import Judge, chance_metrics, chance_of, rare_of
from vitrail.runs.setup import AT_BEDSIDE
from vitrail.study import Study

SCORED, OWN = "scored.json", "scores.json"


class SiteScores:
    """One site's, in one run; `secret`: what it draws from."""

    def __init__(self, agreed: Agreement, home: Path, judge: Judge, secret: str) -> None:
        self.agreed, self.place, self.judge, self.secret = agreed, home / SCORED, judge, secret
        self.exact = agreed.study.protect.scores == "exact"

    def refusal(self, kind: str, s: int, r: int, word: Mapping[str, Tensor], continues: bool) -> str:
        """Why no number is told of this model, in words; "" where it is scored, which is then remembered.
        `continues`: whether it continues the one that this site last trained on."""
        memory: dict[str, Any] = {"models": {}, "refused": 0}
        if self.place.exists():
            memory = json.loads(self.place.read_text())
        where, models = f"{kind} {s} {r}", memory["models"]
        now = [clock(self.agreed, s, r), kind == "settle"]
        mark, why = _mark(word), ""
        if where in models:
            why = "" if models[where]["mark"] == mark else "another model was scored at this point"
        elif any(told["at"] > now for told in models.values()):
            why = "a later model was scored already"
        elif not continues:
            why = "it does not continue the model that this site last trained on"
        if why:
            memory["refused"] += 1
            asked = memory["refused"]
            why = f"Round {r + 1}: the coordinator asked for scores, and got none: {why}. This was refusal {asked}."
        else:
            models[where] = {"at": now, "mark": mark}
        write_atomically(self.place, json.dumps(memory))
        return why

    def alone(self, settled: Any, s: int, r: int, splits: list[str]) -> Tensor:
        """This site's own scores, in the order of `Agreement.scored`."""
        told = self._scores(settled, s, r, splits)
        out = [self._publish(split, metric, value, s, r) for split, metric, value in told]
        groups = [i for i, (split, _, _) in enumerate(told) if split == AT_BEDSIDE]
        if groups and not self.exact:
            by_risk = self._by_risk([told[i][2] for i in groups], s, r)
            for i, number in zip(groups, by_risk, strict=True):
                out[i] = number
        return torch.tensor(out, dtype=torch.float64)

    def part(self, settled: Any, s: int, r: int, splits: list[str]) -> Tensor:
        """[2, number]: this site's part of a sum over sites: counts of patients, and of how many patients."""
        out = []
        for split, metric, value in self._scores(settled, s, r, splits):
            many = self._patients(split, metric)
            if math.isnan(value) or math.isnan(many):
                out.append((0.0, 0.0))
                continue
            count = count_of(metric, value, many, self._scale)
            out.append((count if self.exact else to_ten(count, self._chance(split, metric, s, r)), many))
        return torch.tensor(out, dtype=torch.float64).T.contiguous()

    def keep_own(self, settled: Any) -> None:
        """The exact scores in the end, for people here."""
        rows = self.judge.scores(settled, 0, 0, ("test", "train"))
        baseline = chance_of(self.agreed.study, self.judge.data[0])
        same = dict(zip(chance_metrics(self.agreed.study), baseline, strict=True))
        kept = {"scores": [[row[3], row[4], row[5]] for row in rows], "baseline": same}
        kept["rows"] = len(self.judge.data[0].test_y)
        write_atomically(self.place.with_name(OWN), json.dumps(kept, indent=1), private=True)

    def none(self, splits: list[str]) -> Tensor:
        """In place of scores that are not told."""
        return torch.full((len(self.agreed.scored(splits)),), torch.nan, dtype=torch.float64)

    def nothing(self, splits: list[str]) -> Tensor:
        """In place of a part of a sum that is not told."""
        return torch.zeros((2, len(self.agreed.scored(splits))), dtype=torch.float64)

    @property
    def _scale(self) -> float:
        return float(self.agreed.study.target.scale)

    def _scores(self, settled: Any, s: int, r: int, splits: list[str]) -> list[tuple[str, str, float]]:
        rows = self.judge.scores(settled, s, r, tuple(splits), bound=not self.exact)
        told = [(str(row[3]), str(row[4]), float(row[5])) for row in rows]
        assert [row[:2] for row in told] == self.agreed.scored(splits)
        return told

    def _publish(self, split: str, metric: str, value: float, s: int, r: int) -> float:
        if self.exact:
            return value
        many = self._patients(split, metric)
        if math.isnan(value) or math.isnan(many) or not is_told(many):
            return math.nan
        count = to_ten(count_of(metric, value, many, self._scale), self._chance(split, metric, s, r))
        return score_of(metric, count, many, self._scale)

    def _patients(self, split: str, metric: str) -> float:
        """How many patients a score counts; where scores are exact, as many as there are."""
        y, real = self.judge.truth["train" if split == "train" else "test"]
        mine, study = y[0][real[0]], self.agreed.study
        spread = float(np.var(mine / self._scale)) if study.target.kind == "number" else math.nan
        of = Rows(len(mine), next(iter(rare_of(study, mine)), 0), len(study.target.levels), spread)
        many = patients(metric, of)
        return float(len(mine)) if self.exact and math.isnan(many) else many

    def _by_risk(self, values: list[float], s: int, r: int) -> list[float]:
        """Counts of groups by risk, each to tens, and none that no rows could be."""
        out = np.full(len(values), math.nan)
        for i in range(0, len(values), len(KINDS)):
            if not math.isnan(values[i]):
                draw = (self._chance(AT_BEDSIDE, BEDSIDE[i + k], s, r) for k in range(len(KINDS)))
                rows, events, expected = (to_ten(v, u) for v, u in zip(values[i : i + len(KINDS)], draw, strict=True))
                out[i : i + len(KINDS)] = max(rows, TEN), events, expected
        used = [i for i in range(0, len(values), len(KINDS)) if not math.isnan(out[i])]
        edges = (0.0, *EDGES)
        for i, after in zip(used, [*used[1:], None], strict=True):
            low, high = edges[i // len(KINDS)], 1.0 if after is None else edges[after // len(KINDS)]
            out[i + 1] = min(out[i + 1], out[i])
            out[i + 2] = min(max(out[i + 2], low * out[i]), high * out[i])
        return [float(v) for v in out]

    def _chance(self, *about: object) -> float:
        """Evenly from 0 to 1, the same for the same number of the same question; nobody else can work it out."""
        return key(self.secret, "scores", *about) / 2.0**63


def own_words(study: Study, home: Path) -> str:
    """What the model is worth on this site's own held-out rows, in a sentence; "" where no run has ended."""
    place = home / OWN
    if not place.exists():
        return ""
    kept, metric = json.loads(place.read_text()), study.metrics[0]
    value = next(v for split, name, v in kept["scores"] if (split, name) == ("test", metric))
    rows = several(kept["rows"], f"held-out {study.row_word}")
    return (
        f"On your own {rows} its {metric.replace('_', ' ')} is {value:.3f} (baseline, one answer for all: "
        f"{kept['baseline'][metric]:.3f}). The exact scores stay here: {place.resolve()}"
    )


def _mark(word: Mapping[str, Tensor]) -> str:
    """Of a model, as it came."""
    mark = hashlib.sha256()
    for name in sorted(word):
        mark.update(name.encode() + b"\0" + word[name].detach().cpu().contiguous().numpy().tobytes())
    return mark.hexdigest()[:32]
