"""What a site tells of how good its model is: when it was agreed, once, of models that continue the one it trained on.

Whoever may have any model scored again and again can find out whether a person is among the rows, and read whole rows.
So a site scores nothing but the agreed start and a model that continues the one it last trained on, in the order of
rounds, each once; what is asked otherwise gets no number, is counted, and is shown here. Numbers leave as counts of
patients rounded by chance to multiples of ten or more (privacy/score_rounding.py), drawn from the site's own secret.

HOME/RUN/scored.json    rounds whose scores were told, and of which model; questions that got none
HOME/RUN/scores.json    the exact scores of this site's own model in the end, which stay here
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange
from vitrail.core.random import key
from vitrail.core.text import several
from vitrail.data.persons import how_many
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.model_digests import model_digest
from vitrail.deploy.protocol.score_plan import POINTS, clock, summed_scores
from vitrail.metrics.calibration import BEDSIDE, EDGES, KINDS
from vitrail.metrics.scores import decide, metric_name
from vitrail.privacy.noise import Generator
from vitrail.privacy.noisy_scores import noisy_scores
from vitrail.privacy.score_rounding import (
    OF_HITS,
    TEN,
    ScoredRows,
    can_leave,
    count_of,
    has_enough_patients,
    of_hits,
    patients,
    rounded,
    score_of,
)
from vitrail.runs.evaluation import Evaluator, baseline_metrics, rare_of, site_baseline
from vitrail.runs.protection.budget import score_noise
from vitrail.runs.setup import AT_BEDSIDE, scored_in
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.journal import DecisionRecord
from vitrail.study.model import Study

SCORED, OWN = "scored.json", "scores.json"
NOTHING_SCORED: dict[str, Any] = {"models": {}, "refused": 0}
CLOSED = "closed"  # in scored.json: the list of what was scored has left
COARSE_AS = {"f1": "accuracy", "f1_event": "auc"}  # made of rounded hits: of all patients, or of the rarer class
Score = tuple[str, str, float]  # split, metric, value
COARSER = 2  # so many times the usual step: on training rows, of which there are more, and for sums over sites


def scored_record(home: Path) -> DecisionRecord:
    """What a site scored in a run, by point; whether it signed the list of that, and how often it refused."""
    return DecisionRecord(home / SCORED)


class SiteScores:
    """One site's, in one run; `secret`: what it draws from."""

    def __init__(self, agreed: Agreement, home: Path, judge: Evaluator, secret: str) -> None:
        self.agreed, self.home, self.judge, self.secret = agreed, home, judge, secret
        self.exact = agreed.study.protect.scores == "exact"

    def refusal(self, kind: str, s: int, r: int, word: Mapping[str, Tensor], continues: bool) -> str:
        """Why no number is told of this model, in words; "" where it is scored, which is then remembered.
        `continues`: whether it continues the one that this site last trained on."""
        record = scored_record(self.home)
        memory = NOTHING_SCORED | record.read()
        where, models = f"{kind} {s} {r}", dict(memory["models"])
        now = [clock(self.agreed, s, r), kind == "settle"]
        mark, why = model_digest(word), ""
        if where in models:
            why = "" if models[where]["mark"] == mark else "another model was scored at this point"
        elif memory.get(CLOSED):
            why = "this site has already signed the list of all models that it scored"
        elif any(model["at"] > now for model in models.values()):
            why = "a later model was scored already"
        elif not continues:
            why = "the model does not continue the one that this site last trained on"
        refused = memory["refused"] + bool(why)
        if why:
            why = (
                f"Round {r + 1}: this site refused the coordinator's request for scores: {why}. This was "
                f"refusal number {refused}."
            )
        else:
            models[where] = {"at": now, "mark": mark}
        record.update({"models": models, "refused": refused})
        return why

    def alone(self, settled: Any, s: int, r: int, splits: list[str]) -> Tensor:
        """This site's own scores, in the order of `Agreement.scored`."""
        scores = self._scores(settled, s, r, splits)
        if self.agreed.study.protect.rows:
            noisy = self._noisy(settled, scores, s, r)
            return torch.tensor([noisy.get(row[:2], math.nan) for row in scores], dtype=torch.float64)
        if self.exact:
            return torch.tensor([value for _, _, value in scores], dtype=torch.float64)
        published = self._of_hits(settled, s, r, splits) | self._by_risk(scores, s, r)
        out = [published.get((split, metric), self._publish(split, metric, v, s, r)) for split, metric, v in scores]
        return torch.tensor(out, dtype=torch.float64)

    def part(self, settled: Any, s: int, r: int, splits: list[str]) -> Tensor:
        """[2, number]: this site's part of a sum over sites: counts of patients, and of how many patients."""
        out = []
        wanted = summed_scores(self.agreed)
        for split, metric, value in [x for x in self._scores(settled, s, r, splits) if x[:2] in wanted]:
            many = self._patients(split, metric)
            if math.isnan(value) or math.isnan(many):
                out.append((0.0, 0.0))
                continue
            count = count_of(metric, value, many, self._scale)
            drawn = rounded(count, many, self._chance(split, metric, s, r), COARSER)
            out.append((count if self.exact else drawn, many))
        return torch.tensor(out, dtype=torch.float64).T.contiguous()

    def coarse(self, ex: AnyExchange, report: dict[str, Tensor], *where: int) -> dict[str, Tensor]:
        """A report in which a method counts how many rows each of several models tells right, or how surely, with these
        counts rounded as scores are; of too few rows, none. The same rows stand behind all of them: with more than
        training has scores, each step is longer, so that together they tell no more. Where rows are too few for the
        longer step and enough for the first count alone, that one leaves."""
        names = [] if self.exact else [k for k in report if k in ex.wire.hit_fields]
        if not names:
            return report
        first, every = report[names[0]], sum(len(report[k]) for k in names)
        alone, all_ = (math.ceil(n / POINTS) for n in (len(first), every))
        enough = [has_enough_patients(many, all_) for _, many in first.reshape(-1, 2).tolist()]
        return report | {
            k: self._coarse(report[k], [all_ if e else alone if k == names[0] else 0 for e in enough], *where, k)
            for k in names
        }

    def _coarse(self, counts: Tensor, of: list[int], *about: object) -> Tensor:
        """[model, ..., 2]: told right, and of how many; `of`: see `step_of`, 0: not told."""
        out = counts.reshape(-1, 2).tolist()
        for i, (right, many) in enumerate(out):
            enough = of[i] > 0 and has_enough_patients(many, of[i])
            drawn = rounded(right, many, self._chance("hits of models", i, *about), max(1, of[i]))
            out[i] = [min(drawn, many), many] if enough else [0.0, 0.0]
        return torch.tensor(out, dtype=counts.dtype).reshape(counts.shape)

    def keep_own(self, settled: Any) -> None:
        """The exact scores in the end, for people here; and the site's own constants, beside its scale."""
        (encoder,) = self.judge.settled_encoders(settled).values()
        write_atomically(self.home / "encoder.json", json.dumps(encoder.plain))
        rows = self.judge.scores(settled, 0, 0, ("test", "train"))
        baseline = site_baseline(self.agreed.study, self.judge.data[0])
        same = dict(zip(baseline_metrics(self.agreed.study), baseline, strict=True))
        scores = [[row[3], row[4], row[5]] for row in rows]
        content: dict[str, Any] = {"scores": scores, "baseline": same, "rows": len(self.judge.data[0].test_y)}
        if (persons := self.judge.data[0].test_persons) is not None:
            content["persons"] = how_many(persons)
        write_atomically(self.home / OWN, json.dumps(content, indent=1), private=True)

    def none(self, splits: list[str]) -> Tensor:
        """In place of scores that are not told."""
        return torch.full((len(self.agreed.scored(splits)),), torch.nan, dtype=torch.float64)

    def nothing(self) -> Tensor:
        """In place of a part of a sum that is not told."""
        return torch.zeros((2, len(summed_scores(self.agreed))), dtype=torch.float64)

    @property
    def _scale(self) -> float:
        return float(self.agreed.study.target.scale)

    def _scores(self, settled: Any, s: int, r: int, splits: list[str]) -> list[Score]:
        rows = self.judge.scores(settled, s, r, tuple(splits), bound=not self.exact)
        scores = [(str(row[3]), str(row[4]), float(row[5])) for row in rows]
        assert [row[:2] for row in scores] == self.agreed.scored(splits)
        return scores

    def _publish(self, split: str, metric: str, value: float, s: int, r: int) -> float:
        many, of = self._patients(split, metric), self._numbers(split)
        if math.isnan(value) or not has_enough_patients(many, of):
            return math.nan
        count = rounded(count_of(metric, value, many, self._scale), many, self._chance(split, metric, s, r), of)
        return score_of(metric, count, many, self._scale)

    def _numbers(self, split: str) -> int:
        """How many numbers the same patients stand behind, beside those that follow from hits."""
        names = scored_in(self.agreed.study, split)
        classes = self.agreed.study.target.kind == "classes" and split in ("test", "train")
        many = len([n for n in names if can_leave(n) and not (classes and n in OF_HITS)])
        return max(1, many) * (COARSER if split == "train" else 1)

    def _most(self, split: str) -> int:
        """The largest number of rows of one patient: so many hits of a score may be one patient's."""
        return self.judge.most["train" if split == "train" else "test"][0]

    def _rows(self, split: str) -> tuple[Any, ScoredRows]:
        """Outcomes of a split, and what is known of their numbers."""
        of = "train" if split == "train" else "test"
        (y, real), w, study = self.judge.truth[of], self.judge.weights[of], self.agreed.study
        mine, each = y[0][real[0]], 1.0
        if w is not None and len(mine):  # a row that stands for more moves a score further
            each = float(w[0][real[0]].mean() / w[0][real[0]].max())
        each /= self._most(split)  # so does a patient with several rows
        spread = float(np.var(mine / self._scale)) if study.target.kind == "number" else math.nan
        rare = each * next(iter(rare_of(study, mine)), 0)
        return mine, ScoredRows(each * len(mine), rare, len(study.target.levels), spread)

    def _patients(self, split: str, metric: str) -> float:
        """How many patients a score counts; where scores are exact, as many as there are."""
        mine, rows = self._rows(split)
        many = patients(metric, rows)
        return float(len(mine)) if self.exact and math.isnan(many) else many

    def _of_hits(self, settled: Any, s: int, r: int, splits: list[str]) -> dict[tuple[str, str], float]:
        """What follows from how many patients of each class are told right, by split and metric."""
        out = dict[tuple[str, str], float]()
        for split in splits:
            of = COARSER if split == "train" else 1
            for name, (right, true) in self._hits(settled, split).items():
                rows, most = int(true.sum()), self._most(split)
                lots = [self._chance(name, "hits", k, s, r) for k in range(len(right))]
                drawn = [rounded(n, rows / most, c, of) for n, c in zip(right / most, lots, strict=True)]
                scores = of_hits(most * np.array(drawn), true)
                for metric in OF_HITS:
                    behind = self._patients(split, COARSE_AS.get(metric, metric))
                    enough = metric in scores and has_enough_patients(behind, of)
                    out[name, metric] = scores[metric] if enough else math.nan
        return out

    def _noisy(self, settled: Any, scores: Sequence[Score], s: int, r: int) -> dict[tuple[str, str], float]:
        """Where rows have a privacy budget: scores on held-out rows alone, once, as counts of patients under noise that
        spends what such a row has of it (`score_noise`)."""
        study, hits = self.agreed.study, self._hits(settled, "test")
        others = [x for x in scores if x[0] == "test" and not (hits and x[1] in OF_HITS) and not math.isnan(x[2])]
        many = {metric: self._patients("test", metric) for _, metric, _ in others}
        others = [x for x in others if many[x[1]] > 0]
        right, true = hits.get("test", (np.empty(0), np.empty(0)))
        most = self._most("test")
        counts = [*(right / most), *(count_of(m, v, many[m], self._scale) for _, m, v in others)]
        if not counts:
            return {}
        z, together = score_noise(study), math.sqrt(bool(len(right)) + len(others))
        drawn, free = Generator(self.secret), math.inf
        given = counts, 1.0, z, 1, drawn, "final", s, r
        noisy = noisy_scores(*given, together=together, least=-free, most=free).values
        out = {("test", m): v for m, v in of_hits(most * noisy[: len(right)], true).items()} if len(right) else {}
        pairs = zip(others, noisy[len(right) :].tolist(), strict=True)
        return out | {("test", m): score_of(m, count, many[m], self._scale) for (_, m, _), count in pairs}

    def _hits(self, settled: Any, split: str) -> dict[str, tuple[Any, Any]]:
        """By model, how many patients of each class are told right, and how many there are; nothing where the target is
        no class, rows stand for several, or a model answers no numbers."""
        study, out = self.agreed.study, dict[str, tuple[Any, Any]]()
        counted = study.target.kind == "classes" and split in ("test", "train")
        if not counted or self.judge.weights[split] is not None:
            return out
        y, _ = self._rows(split)
        true = np.bincount(y, minlength=len(study.target.levels)).astype(np.float64)
        for name, p in self.judge.answers(settled, split).items():
            own = p[0][: len(y)]
            if np.isfinite(own).all():
                right = y[decide(own, self.judge.thresholds) == y]
                out[name] = np.bincount(right, minlength=len(true)).astype(np.float64), true
        return out

    def _by_risk(self, scores: Sequence[Score], s: int, r: int) -> dict[tuple[str, str], float]:
        """Counts of groups by risk, each to tens, and none that no rows could be."""
        values = {metric: value for split, metric, value in scores if split == AT_BEDSIDE}
        edges, out = (0.0, *EDGES), dict[tuple[str, str], float]()
        names = [BEDSIDE[i : i + len(KINDS)] for i in range(0, len(BEDSIDE), len(KINDS))]
        used = [i for i, group in enumerate(names) if not math.isnan(values.get(group[0], math.nan))]
        for i, after in zip(used, [*used[1:], len(edges)], strict=False):
            low, high = edges[i], [*edges, 1.0][after]
            most = self._most("test")
            lots = [self._chance(AT_BEDSIDE, n, s, r) for n in names[i]]
            drawn = [most * rounded(values[n] / most, 0, c) for n, c in zip(names[i], lots, strict=True)]
            rows, events, expected = max(drawn[0], most * TEN), *drawn[1:]
            numbers = rows, min(events, rows), min(max(expected, low * rows), high * rows)
            out |= {(AT_BEDSIDE, name): number for name, number in zip(names[i], numbers, strict=True)}
        return out

    def _chance(self, *about: object) -> float:
        """Evenly from 0 to 1, the same for the same number of the same question; nobody else can work it out."""
        return key(self.secret, "scores", *about) / 2.0**63


def own_words(study: Study, home: Path) -> str:
    """What the model is worth on this site's own held-out rows, in a sentence; "" where no run has ended."""
    place = home / OWN
    if not place.exists():
        return ""
    content, metric = json.loads(place.read_text()), study.metrics[0]
    value = next(v for split, name, v in content["scores"] if (split, name) == ("test", metric))
    rows = several(content["rows"], f"held-out {study.row_word}")
    if "persons" in content:
        rows = f"{several(content['persons'], 'held-out patient')} ({several(content['rows'], study.row_word)})"
    return (
        f"On your own {rows} the model's {metric_name(metric)} is {value:.3f} (baseline, the same answer for "
        f"all: {content['baseline'][metric]:.3f}). The exact scores stay here: {place.resolve()}"
    )
