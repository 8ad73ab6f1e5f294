"""What a host has when training is over: its model, and what guests told it of each row in common.

Answers do not change any more, so that one that was given is not asked for again: of the rows in common the host
predicts and explains with nobody. Of others it asks by place, or looks up blindly, within the guest's ration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.explanations.rows import NOTHING, Explanation, FeatureLabel, columns_of, takes_missing
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.tensors import Params
from vitrail.data.encoding import Encoder, rows_as_text
from vitrail.data.readers.tables import clean, name_rows
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.storage.untrusted_files import read_text
from vitrail.study.model import Study
from vitrail.vertical.matching.ids import look
from vitrail.vertical.shap import GuestColumns, explain_whole, explain_with_answers
from vitrail.vertical.training.checkpoints import read_tensors, write_tensors
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.host import LayeredModel, answer_scores
from vitrail.vertical.training.party_side import (
    GuestSide,
    HostSide,
    OwnRows,
    groups_of,
    joint_of,
    loss_of,
    matrix,
    reference_of,
)
from vitrail.vertical.training.terms import Terms

TYPICAL = "at the host, the median of each number and the most frequent level of each other feature over its training "
TYPICAL += "rows; at each guest, its own"
AWAY = "the median of its answers in training is used for everybody"


class GuestAccess:
    """A guest that can be asked after training, on this machine or on another. `words`: what all ends put before an
    id."""

    def __init__(self, talk: Dialogue, name: str, words: str) -> None:
        self.talk, self.name, self.words = talk, name, words

    def left(self) -> int:
        """Rows that its ration still has."""
        return 0 if self.name in self.talk.mailbox.away else self.talk.rations()[self.name]["after"]

    def ask(self, places: Tensor) -> Tensor:
        """[row, answer] of rows in common; NaN where it is away."""
        width = next(o.answer for o in self.talk.terms.offers if o.name == self.name)
        answer = self.talk.ask(places, without={*self.talk.names} - {self.name}).get(self.name)
        return torch.full((len(places), width), torch.nan) if answer is None else answer_scores(answer, len(places))

    def look_up(self, people: Sequence[str]) -> tuple[list[Tensor | None], str]:
        """Of anybody, blindly: each one's answer, None who is not there; and in words what it cost. The guest makes a
        table of locked answers of all its people, and answers a question for each."""
        answers, table = self.talk.look_up(self.name, people, self.words)
        if table is None:
            return [None] * len(people), "it is absent"
        cost = (
            f"a table of {table.people} encrypted answers, {len(table.rows) / 1000:.1f} kB, and 64 bytes per question; "
        )
        cost += f"{self.name} counts the questions ({self.left()} are left), but does not learn whom they are about"
        return [None if a is None else torch.frombuffer(bytearray(a), dtype=torch.float32) for a in answers], cost


class PredictedRows(NamedTuple):
    table: pd.DataFrame  # by row: each class or the number; for each guest whether it answered
    words: list[str]  # how it came about


@dataclass
class HostModel:
    study: Study
    terms: Terms
    encoder: Encoder
    params: Params
    reference: pd.DataFrame  # one row: the host's columns "off"
    people: list[str]  # ids in common, in the order of the match
    guest_answers: dict[str, Tensor]  # [row in common, answer] of each guest; NaN: not asked yet
    usual: dict[str, Tensor]  # [answer]: the median of the training rows
    off: dict[str, Tensor]  # [answer]: with the guest's columns at its reference

    @classmethod
    def of(cls, study: Study, side: HostSide, off: Mapping[str, Tensor]) -> HostModel:
        host, train = side.host, side.host.terms.train
        answers = {name: torch.full_like(last, torch.nan) for name, last in host.said.items()}
        if host.terms.alone:  # the last answers were made with the last weights
            for name, last in host.said.items():
                answers[name][train] = last[train]
        params = {k: v[0].clone() for k, v in host.params.items()}
        usual = {name: host.usual(name) for name in answers}
        ref, at_off = reference_of(side.rows, host.terms), {**usual, **off}
        return cls(study, host.terms, side.encoder, params, ref, side.rows.known, answers, usual, at_off)

    def save(self, folder: Path) -> None:
        private_folder(folder)
        parts: dict[str, Params] = {
            "params": self.params,
            "told": self.guest_answers,
            "usual": self.usual,
            "off": self.off,
        }
        write_tensors(folder / "model.safetensors", {f"{p}/{k}": v for p, t in parts.items() for k, v in t.items()})
        reference = {k: None if v != v else v for k, v in self.reference.iloc[0].items()}
        rest = {"mean": self.encoder.mean, "sd": self.encoder.sd, "reference": reference, "people": self.people}
        write_atomically(folder / "host.json", json.dumps(rest), private=True)

    @classmethod
    def load(cls, study: Study, terms: Terms, folder: Path) -> HostModel:
        held, parts = read_tensors(folder / "model.safetensors"), dict[str, Params]()
        for k, v in held.items():
            part, _, name = k.partition("/")
            parts.setdefault(part, {})[name] = v
        try:
            rest = json.loads(read_text(folder / "host.json"))
            encoder, ref = Encoder(study, rest["mean"], rest["sd"]), pd.DataFrame([rest["reference"]]).astype(float)
            more = (parts.get(part, {}) for part in ("told", "usual", "off"))
            return cls(study, terms, encoder, parts["params"], ref, rest["people"], *more)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            problem = Problem(str(folder), "expected the host's part of a finished run.", "Run the study again.")
            raise VitrailError("the host's model cannot be read", [problem]) from None

    def scores(self, x: Tensor, answers: Mapping[str, Tensor]) -> Tensor:
        """[row, output]"""
        joint, _ = joint_of(self.study, x.shape[1], self.terms)
        theirs = [answers[o.name].to(x) for o in self.terms.offers]
        with torch.no_grad():
            z: Tensor = joint.scores(self.params, x, torch.cat(theirs, 1) if theirs else x.new_zeros(len(x), 0))
        return z

    def answers(self, z: Tensor) -> np.ndarray:
        """[row, class] shares, or [row, 1] in the target's own unit."""
        target, values = self.study.target, loss_of(self.study).predictions(z.double()).numpy()
        return np.asarray(values * target.scale + target.center if target.kind == "number" else values)

    def at(self, people: Sequence[str]) -> Tensor:
        """Their places in the match; -1: not in common."""
        where = {one: i for i, one in enumerate(self.people)}
        return torch.tensor([where.get(one, -1) for one in people], dtype=torch.int64)

    def predict(
        self,
        frame: pd.DataFrame,
        without: Iterable[str] = (),
        reach: Mapping[str, GuestAccess] | None = None,
        blind: bool = False,
    ) -> PredictedRows:
        """Raw rows of the host. A guest that is not away has answered before, or is within reach; else it is an error,
        told before anybody is asked. `blind`: who is not in common is looked up, and no guest learns whom."""
        guests, away, target = [o.name for o in self.terms.offers], set(without), self.study.target
        problems = [
            Problem("--without", f"this study has no guest {n!r}.", nearest(n, guests)) for n in away - {*guests}
        ]
        rows = clean(frame.drop(columns=target.column, errors="ignore"), self.study, need_target=False)
        people = self._ids(frame, problems) if {*guests} - away else []
        place, within = self.at(people), reach or {}
        for name in guests:
            if name not in away and people:
                problems += self._cannot(name, place, within.get(name), blind)
        if problems:
            raise VitrailError("cannot predict", problems)
        answers, words, marks = {}, [], {}
        for name in guests:
            z, answered = self.usual[name].repeat(len(rows), 1), torch.zeros(len(rows), dtype=torch.bool)
            line = f"Without {name}: {AWAY}."
            if name not in away:
                z, answered, line = self._gather(name, people, place, within.get(name))
            answers[name], marks[name] = z, ["answer" if one else "reference" for one in answered.tolist()]
            words.append(line)
        names = [target.column] if target.kind == "number" else list(target.levels)
        table = pd.DataFrame(self.answers(self.scores(matrix(self.encoder, rows), answers)), rows.index, names)
        for name, used in marks.items():
            table[name if name not in names else f"{name}_"] = used
        return PredictedRows(table, words)

    def _ids(self, frame: pd.DataFrame, problems: list[Problem]) -> list[str]:
        seen, _ = look(frame, self.study, self.study.host)
        column = self.study.parties[self.study.host].id
        hint = "The guests are asked by this id. Correct it, or predict without them: --without NAME."
        if seen is None:
            problems.append(Problem(f"column {column}", "expected one such column of ids.", hint))
            return []
        if empty := seen.rows(lambda i: not seen.spelled[i]):
            problems.append(Problem(f"column {column}, {name_rows(empty)}", "the id is missing.", hint))
        return list(seen.spelled)

    def unanswered_rows(self, guest: str, place: Tensor) -> Tensor:
        """Places in common of which this guest has told nothing yet."""
        common: Tensor = torch.unique(place[place >= 0])
        return common[self.guest_answers[guest][common].isnan().any(1)]

    def learn(self, guest: str, place: Tensor, reach: GuestAccess) -> int:
        """Ask of those of whom this guest has told nothing yet; how many these are."""
        if len(new := self.unanswered_rows(guest, place)):
            self.guest_answers[guest][new] = reach.ask(new).to(self.guest_answers[guest])
        return len(new)

    def _cannot(self, guest: str, place: Tensor, reach: GuestAccess | None, blind: bool) -> list[Problem]:
        """Why it cannot be asked about these; before anything crosses."""
        beyond, new = int((place < 0).sum()), len(self.unanswered_rows(guest, place))
        where, need = f"guest {guest}", new + beyond
        if beyond and not blind:
            what = f"{beyond} of {len(place)} rows belong to people who are not in the match."
            hint = f"Look them up blindly (--blind), use the guest's median answer (--without {guest}), or match again."
            return [Problem(where, what, hint)]
        if need and reach is None:
            what = f"it has not answered about {need} of {len(place)} rows yet, and its table is not available here."
            return [Problem(where, what, f"Give its table with --data FOLDER, or use --without {guest}.")]
        if reach is not None and need > reach.left():
            what = f"it would be asked about {need} rows, but only {reach.left()} are left of its ration."
            return [
                Problem(
                    where, what, f"Predict fewer rows, ask the guest for a larger ration, or use --without {guest}."
                )
            ]
        return []

    def _gather(
        self, guest: str, people: Sequence[str], place: Tensor, reach: GuestAccess | None
    ) -> tuple[Tensor, Tensor, str]:
        """[row, answer], who was answered for, and in words how."""
        asked = self.learn(guest, place, reach) if reach is not None else 0
        z = torch.where((place < 0)[:, None], self.usual[guest], self.guest_answers[guest][place.clamp(min=0)])
        answered, many = (place >= 0) & ~z.isnan().any(1), int((place >= 0).sum())
        parts = [
            f"{many} rows in common, {(f'about {asked} of which it was asked now' if asked else 'known from before')}"
        ]
        if lost := many - int(answered.sum()):
            z = torch.where(z.isnan(), self.usual[guest], z)
            parts[0] += f", and no answer came for {lost} of them: the median of its answers is used"
        if len(beyond := (place < 0).nonzero()[:, 0]):
            assert reach is not None
            answers, cost = reach.look_up([people[i] for i in beyond.tolist()])
            for i, answer in zip(beyond.tolist(), answers, strict=True):
                if answer is not None:
                    z[i], answered[i] = answer.to(z), True
            parts = [*parts[: bool(many)], f"{len(beyond)} looked up blindly ({cost})"]
            if lost := sum(answer is None for answer in answers):
                parts.append(f"it does not have {lost} of them, and the median of its answers is used")
        return z, answered, f"{guest}: {'; '.join(parts)}."

    def explain(
        self,
        rows: OwnRows,
        places: Tensor,
        outcome: str | None = None,
        guests: Mapping[str, GuestSide] | None = None,
    ) -> Explanation:
        """Rows in common of which all guests have told, by the host's features and one united feature a guest; with
        the `guests` of a simulation also by their columns."""
        study, target = self.study, self.study.target
        level = level_of(study, outcome)
        output, groups = target.levels.index(level) if level is not None else 0, groups_of(self.encoder)
        cleaned, ref, means = rows.common.iloc[places.numpy()], self.reference, TYPICAL
        x, off = matrix(self.encoder, cleaned), matrix(self.encoder, ref)
        joint, _ = joint_of(study, len(self.encoder.columns), self.terms)
        scale, center = (target.scale, target.center) if target.kind == "number" else (1.0, 0.0)
        if takes_missing(joint):
            ref, off, means = ref * torch.nan, torch.full_like(off, torch.nan), NOTHING
        first, rest = joint.parts(self.params) if isinstance(joint, LayeredModel) else (None, self._with_answers)

        def scores(x: Tensor) -> Tensor:
            with torch.no_grad():
                return rest(x) * scale + center

        explained = explain_with_answers(
            scores, loss_of(study), x, off, {name: self.guest_answers[name][places] for name in self.guest_answers},
            {n: v[None] for n, v in self.off.items()}, list(study.features), groups, first=first,
            data=rows_as_text(cleaned, study), output=output, means=means, seed=self.terms.seed,
        )  # fmt: skip
        names = tuple(rows.labels[rows.places[i]] for i in places.tolist())
        columns = (*columns_of(ref, study), *(FeatureLabel() for _ in self.guest_answers))
        explained = replace(explained, answer=answer_words(study, level), rows=names, columns=columns)
        if not guests:
            return explained
        return explain_whole(
            explained, lambda rows: self._with_answers(rows) * scale + center, loss_of(study), x, off[0], groups,
            [GuestColumns.of(guests[o.name], places) for o in self.terms.offers], output=output, seed=self.terms.seed,
        )  # fmt: skip

    def _with_answers(self, x: Tensor) -> Tensor:
        """Scores of columns with the answers of all guests beside them."""
        own = len(self.encoder.columns)
        parts = torch.split(x[:, own:], [o.answer for o in self.terms.offers], 1)
        return self.scores(x[:, :own], {o.name: p for o, p in zip(self.terms.offers, parts, strict=True)})


def level_of(study: Study, outcome: str | None) -> str | None:
    """The class that is explained: the one named, else the positive or last one; None: a number."""
    levels = study.target.levels
    if outcome is not None and outcome not in levels:
        hint = nearest(outcome, levels) if levels else "The target is a number: omit --outcome."
        what = f"{study.target.column} has no class {outcome!r}."
        raise VitrailError("cannot explain", [Problem("--outcome", what, hint)])
    return outcome if outcome is not None else levels[-1] if levels else None


def answer_words(study: Study, level: str | None) -> str:
    target = study.target
    unit = f" in {target.unit}" if target.unit else ""
    return f"{target.column}{unit}" if level is None else f"{target.column} = {level}"
