"""A site's side of folds: its secret cut, a run of its own for each fold, and its verdict, which stays here.

HOME/RUN/folds/FOLD/       what a site keeps of a run (deploy/site/site.py), for each fold
HOME/RUN/folds/FOLD/answers.safetensors   what the models of the fold say of its rows: [row, answer]
HOME/RUN/verdict.json      is joining worth it here
HOME/RUN/final.safetensors, final.json    the model of the training on all rows, which this site uses
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vitrail.core.errors import MessageRefused
from vitrail.core.random import key
from vitrail.core.tensors import flatten
from vitrail.data.encoding import encode_sites
from vitrail.data.persons import count_persons, persons_of
from vitrail.data.splitting import partition_folds, split_sites
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.run_log import ENDED
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.safeguards import ModelInspector
from vitrail.deploy.site.site import Site
from vitrail.deploy.transfer.site import TransferSite
from vitrail.deploy.verdicts.shared import FOLD, KINDS, FoldAgreement, fold_run
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot
from vitrail.methods import TABLE
from vitrail.metrics.scores import FEWEST
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.evaluation import Evaluator
from vitrail.runs.folder import load_tensors, save_tensors
from vitrail.runs.setup import build_task, resolve, training_of, training_rows
from vitrail.runs.store import FINAL, FINAL_ENCODER
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.studies.folds import FoldedRows
from vitrail.studies.site_benefit import explain_verdict, own_verdict

if TYPE_CHECKING:
    from vitrail.data.encoding import SiteData

PLACE, ANSWERS, FOUND = "folds", "answers.safetensors", "verdict.json"


class SiteFolds:
    """All folds of the run at hand, one at a time."""

    def __init__(self, site: Site) -> None:
        self.site, self.folds = site, FoldAgreement(site.agreed)
        self._now: LaterSite | None = None

    def answer(self, question: Message) -> Message:
        """As the run's own questions are answered, from the rows outside the fold."""
        number = question.words[FOLD]
        self._check(question.kind, number, question.words)
        fold = self._at(number)
        plain = {k: v for k, v in question.words.items() if k != FOLD}
        answer = fold.answer(question._replace(words={**plain, "run": fold.home.name}))
        return answer if answer.kind == "refused" else answer._replace(words={**answer.words, FOLD: number})

    def _check(self, kind: str, number: Any, words: dict[str, Any]) -> None:
        site, run, what = self.site, words.get("run"), ""
        if type(number) is not int or not 0 <= number < len(self.folds):
            what = f"there is no fold {str(number)[:20]!r}."
        elif kind not in KINDS:
            what = f"a fold has no {kind[:20]!r}."
        elif words.get("score"):  # on a tenth of the rows, and again on another tenth: much could be told from that
            what = "expected no request for scores: no score is reported for a fold."
        elif type(run) is not str:
            what = "the request names no run."
        else:
            site.enter(run)
            if (site.home / ENDED).exists():
                what = "the run has ended."
            elif site.data is None:
                what = "the run has not been prepared at this site."
            else:
                TransferSite(site).check_stayed()
        if what:
            raise MessageRefused(FOLD, what)

    def _at(self, number: int) -> LaterSite:
        name = fold_run(self.site.home.name, number)
        if self._now is None or self._now.home.name != name or self._now.questions is not self.site.questions:
            agreed = self.folds.agreement(number)
            refit = self.folds.is_refit(number)
            self._now = (
                RefitSite(self.site, agreed, name) if refit else FoldSite(self.site, agreed, *self.partition(number))
            )
        return self._now

    def partition(self, number: int) -> tuple[FoldedRows, int, str]:
        """This site's rows, the fold that is held out, and the fold's name. No fold has fewer rows, or patients where
        the study names them, than FEWEST: a small site cuts fewer, and holds nothing out in the others."""
        site, verdict = self.site, self.site.agreed.study.verdict
        assert verdict is not None
        repeat, fold = divmod(number, verdict.folds)
        secret = draws_of(site.base, fold_run(site.home.name, -1 - repeat))
        study = site.agreed.study
        count = min(verdict.folds, count_persons(site.rows, study) // FEWEST)
        given = site.rows[study.target.column].to_numpy(), study, key(secret, "folds"), count
        lots = partition_folds(*given, persons_of(site.rows, study)) if count > 1 else np.full(len(site.rows), -1)
        named = {site.name: lots}, {site.name: site.rows}
        return FoldedRows(max(count, 1), *named, site.agreed.study), fold, fold_run(site.home.name, number)

    def judge(self) -> dict[str, Any]:
        """Is joining worth it here? Kept in this site's folder; {} where it cannot be said, and the file says why."""
        site, study = self.site, self.site.agreed.study
        assert study.verdict is not None
        self._now = None
        y, lots, by_model, missing = site.rows[study.target.column].to_numpy(), [], dict[str, list[Any]](), []
        cuts = [self.partition(number) for number in range(len(self.folds))]
        for repeat in range(study.verdict.seeds):
            mine = cuts[repeat * study.verdict.folds :][: study.verdict.folds]
            lots.append(mine[0][0].lots[site.name])
            whole = {name: np.full((len(y), study.target.outputs), np.nan) for name in ("joined", "alone")}
            for cut, k, name in mine[: cuts[0][0].folds]:
                place = site.home / PLACE / name / ANSWERS
                if not place.exists():
                    missing.append(repeat * study.verdict.folds + k + 1)
                    continue
                for model, answers in load_tensors(place).items():
                    whole[model][cut.lots[site.name] == k] = answers.numpy()
            for model, predicted in whole.items():
                by_model.setdefault(model, []).append(predicted)
        judgement = dict[str, Any]()
        if cuts[0][0].folds < 2:
            many = count_persons(site.rows, study)
            why = f"{many} {study.unit_word}s are too few: expected enough for two folds of {FEWEST}."
        elif missing:
            why = f"this site was absent when these folds ended: {', '.join(map(str, missing))} of {len(cuts)}."
        else:
            units = count_persons(site.rows, study) if study.person_column else None
            judgement, why = own_verdict(study, y, np.stack(lots), **by_model, units=units), ""
        content = {**judgement, "why": explain_verdict(study, judgement)} if judgement else {"why": why}
        write_atomically(site.home / FOUND, json.dumps(content, indent=1), private=True)
        return judgement

    def forget(self) -> None:
        """States of trainings that are over."""
        for old in (self.site.home / PLACE).glob("*/state-*.safetensors"):
            old.unlink(missing_ok=True)


class LaterSite(Site):
    """This site in a training after the run. It is asked as in a run; what does not belong there was refused before."""

    def __init__(self, site: Site, agreed: Agreement, name: str) -> None:
        self.name, self.rows, self.agreed, self.base = site.name, site.rows, agreed, site.base
        self.publishes, self.shows, self.notices = False, False, site.notices
        self.proof, self.power, self.since = site.proof, site.power, site.since
        self.home, self.within = private_folder(site.home / PLACE / name), f"fold {name} "
        self.questions, self.wary = site.questions, ModelInspector(agreed, self.home)  # one log for a run and its folds
        assert site.data is not None
        # a common scale for every fold would tell the sum of its rows
        self.known = {site.name: site.data.encoder} if agreed.shared_scale else None
        self.secret = draws_of(self.base, name)

    def enter(self, run: str) -> None:
        """It is the one that is meant."""


class RefitSite(LaterSite):
    """This site in the training on all rows."""

    def __init__(self, site: Site, agreed: Agreement, name: str) -> None:
        super().__init__(site, agreed, name)
        self.final = site.home
        rows = {site.name: site.rows}
        data = encode_sites(rows, agreed.study, split_sites(rows, agreed.study, agreed.seed, whole=True), self.known)
        self._take_up(data, self.secret)

    def _ended(self, settled: Any) -> None:
        encoder = self.judge.settled_encoders(settled)[self.name]
        write_atomically(self.final / FINAL_ENCODER, json.dumps(encoder.plain))
        save_tensors(self.final / FINAL, {k: v[0] for k, v in flatten(settled)})


class FoldSite(LaterSite):
    """This site in one fold."""

    def __init__(self, site: Site, agreed: Agreement, cut: FoldedRows, fold: int, name: str) -> None:
        super().__init__(site, agreed, name)
        rows = cut.fold(fold, self.known)
        self._take_up(rows, self.secret)
        self.alone = LocalBaseline(agreed, rows, self.secret)

    def on_round(self, asked: Message) -> Message:
        answer = super().on_round(asked)
        s, r = asked.words["stage"], asked.words["round"]
        self.alone.keep_up(sum(t.stage.rounds for t in self.agreed.stages[:s]) + r + 1)
        return answer

    def _ended(self, settled: Any) -> None:
        """Of the fold's own models nothing is kept but what they say of its rows."""
        answers = {"joined": _answers(self.judge, settled), "alone": self.alone.answers()}
        save_tensors(self.home / ANSWERS, answers)


class LocalBaseline:
    """The same rows, trained on alone, in step with the rounds: a site that was started again begins with its first
    round, and comes to the same."""

    def __init__(self, agreed: Agreement, encoded: list[SiteData], secret: str) -> None:
        study, method = resolve(agreed.study, next(n for n, kind in TABLE.items() if kind.catalogue.alone), None)
        task = build_task(study, method, agreed.seed)
        data = as_rows(encoded, task.net)
        rows = training_rows(data, study, method, "cpu")
        given = task, method, rows, training_of(study), agreed.seed
        self.engine = Engine(*given, secrets={rows.names[0]: secret})
        self.judge = Evaluator(self.engine, study, data)
        self.rounds, self.done = sum(stage.rounds for stage in self.engine.stages), 0
        self._moment: Snapshot | None = None

    def keep_up(self, rounds: int) -> None:
        while self.done < min(rounds, self.rounds):
            self._moment = next(self.engine.run(self._moment))
            self.done += 1

    def answers(self) -> torch.Tensor:
        """[row, answer], after all rounds."""
        self.keep_up(self.rounds)
        assert self._moment is not None
        return _answers(self.judge, self.engine.settled(self._moment))


def _answers(judge: Evaluator, settled: Any) -> torch.Tensor:
    """What a settled site's model says of its held-out rows."""
    return torch.from_numpy(judge.answers(settled, "test", others=False)["test"][0].copy())
