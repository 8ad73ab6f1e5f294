"""A site's half of a study: it is asked, checks the question, and answers from its own rows.

What a site keeps between rounds lies in its own folder, a file for each of the last rounds (state-STAGE-ROUND-TURN),
so that a round that is asked for again, or that the coordinator forgot, is computed from where it was before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitrail.core.errors import AgreementMismatch, JournalDamaged, MessageRefused, RoundForgotten
from vitrail.core.tensors import flatten, map_tensors, unflatten
from vitrail.data.encoding import Encoder, SiteData, moments, numeric
from vitrail.data.readers.tables import clean
from vitrail.data.splitting import Splits, split_sites
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import FOOTPRINT, FORMAT, LAST, VERDICT, Agreement
from vitrail.deploy.protocol.message import WHERE, Message, check_form, stacked
from vitrail.deploy.protocol.model_digests import DIGESTS
from vitrail.deploy.protocol.run_log import RunLog
from vitrail.deploy.protocol.score_plan import SUMMED, is_summed
from vitrail.deploy.scale.shared import has_masked_scale
from vitrail.deploy.scale.site import scale_values
from vitrail.deploy.screening.site import ScreeningAnswers
from vitrail.deploy.secure_sum.shared import ROUND, SCALE, SCREENING
from vitrail.deploy.secure_sum.site import SumSite
from vitrail.deploy.share.shared import SHARE, WHY
from vitrail.deploy.share.site import SiteShares
from vitrail.deploy.site.model_digests import SiteDigests
from vitrail.deploy.site.privacy_ledger import PrivacyLedger
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.question_count import count_question
from vitrail.deploy.site.safeguards import ModelInspector
from vitrail.deploy.site.scores import SiteScores
from vitrail.deploy.site.unscaled_columns import looks_at_reports
from vitrail.deploy.transfer.site import TransferSite
from vitrail.deploy.two_server.shared import READ
from vitrail.deploy.two_server.site import TwoServerSite
from vitrail.deploy.verdicts.shared import FOLD
from vitrail.engine.local import Engine
from vitrail.engine.resource_usage import UNSTATED, StatedPower, cpu_seconds, footprint
from vitrail.privacy.guards import Guards
from vitrail.privacy.round_share import NO_LIMITS, ShareLimits
from vitrail.quality.checks.missing_outcomes import describe_lost
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.evaluation import Evaluator, counts_of, site_baseline, target_share
from vitrail.runs.folder import GUARD_STATE, guard_state_in, save_tensors, versions
from vitrail.runs.protection.budget import guards_of, private
from vitrail.runs.protection.dp_statistics import encoded
from vitrail.runs.setup import held_rows, training_of, training_rows
from vitrail.runs.store import HELD_OUT, held_out_text
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.journal import QuestionLog

if TYPE_CHECKING:
    from vitrail.deploy.verdicts.site import SiteFolds

BEHIND = "behind.safetensors"  # what a site was told about itself at the end
POOLED = "pooled.json"  # and about all sites together: for vitrail check --pooled
ROWS = "rows.txt"  # the fingerprint of the rows that a run saw
ASKED = "asked.jsonl"  # the questions about rows that were ever answered in a run
KEPT = 4  # rounds whose outcome a site keeps
PREPARED = ("transfer", "round", "deal", "settle", "finish")  # questions that come after its rows were prepared


class Site:
    """One site, its rows at hand. `base` is its own folder; each run has its own in it, which may outlive this
    process: what it keeps between rounds, its scale, and its model at the end."""

    def __init__(
        self,
        name: str,
        frame: pd.DataFrame,
        agreement: Agreement,
        base: Path,
        publishes: bool = True,
        proof: SiteIdentity | None = None,
        another: bool = False,
        power: StatedPower = UNSTATED,
        shows: bool = False,
        ledger: PrivacyLedger | None = None,
        limits: ShareLimits = NO_LIMITS,
    ) -> None:
        """`publishes`: whether it shows what it may refuse to show; `proof`: of who it is, to the other sites;
        `another`: somebody here says that one more run may begin, though the last has not ended; `power`: of this
        machine, where it is stated; `shows`: whether the others are told if joining is worth it here; `ledger`: what
        these rows have spent of their privacy; `limits`: of its share in a round, beside those of the study."""
        self.name, self.frame, self.agreed, self.base, self.publishes = name, frame, agreement, base, publishes
        self.proof, self.power, self.shows, self.ledger, self.limits = proof, power, shows, ledger, limits
        self.since = cpu_seconds()
        self.decides: Callable[[Sequence[str]], bool] = lambda group: True  # whether it trains with these, itself one
        self.rows, self.runs = clean(frame, agreement.study), RunLog(base, another)
        self.home, self.within = base, ""  # of the run at hand; of a fold, which
        self.notices: list[str] = []  # for people here, of what was refused or looks odd; whoever shows them, clears it
        if lost := len(frame) - len(self.rows):
            self.notices.append(f"{describe_lost(lost, len(frame), agreement.study)}. This stays at this site.")
        self.data: SiteData | None = None

    def answer(self, question: Message) -> Message:
        """Check the question, answer it, check the answer."""
        kind, words = question.kind, question.words
        if FOLD in words and len(self.folds.folds):
            return self.folds.answer(question)
        if kind not in KINDS:
            raise MessageRefused("message", f"kind {kind!r} is unknown.", "Dropped.")
        check_form(question, self.agreed.question(kind, words), "to site")
        self.enter(words["run"])
        if self.data is None and (kind in PREPARED or words.get("purpose") == ROUND):
            raise MessageRefused("message", "the run has not been prepared at this site.")
        TransferSite(self).check_stayed(kind)
        count_question(self.questions, self.agreed, question, self.within)
        answer: Message = getattr(self, f"on_{kind}")(question)
        if answer.kind != "refused":
            check_form(answer, self.agreed.answer(kind, words), "from site")
        return answer

    def on_hello(self, asked: Message) -> Message:
        if asked.words["format"] != FORMAT:
            what = f"the coordinator's messages have format {asked.words['format']}, this site's {FORMAT}."
            raise AgreementMismatch("format", what, "Use the same version of Vitrail on both machines.")
        if asked.words["agreement"] != self.agreed.hash:
            what = f"this site accepted {self.agreed.hash}, but the coordinator's is {asked.words['agreement']}."
            hint = "Ask whether the study or the participants changed, and join again with the new approval."
            raise AgreementMismatch("agreement", what, hint)
        return Message("hello", {})

    def on_standardise(self, asked: Message) -> Message:
        own, study = self.rows.iloc[self.splits[self.name][0]], self.agreed.study
        if has_masked_scale(self.agreed):
            return self._sums.add_once(asked, SCALE, "", lambda: scale_values(own, study))
        mean = asked.tensors["mean"].numpy() if asked.words["step"] == 2 else None
        sums = moments(own, numeric(study), mean)
        return Message("standardise", {}, {"rows": torch.from_numpy(sums.rows), "total": torch.from_numpy(sums.total)})

    def on_prepare(self, asked: Message) -> Message:
        names = numeric(self.agreed.study)
        scale = {k: dict(zip(names, v.tolist(), strict=True)) for k, v in asked.tensors.items()}
        self._prepare(Encoder(self.agreed.study, scale["mean"], scale["sd"]) if scale else None)
        assert self.data is not None
        write_atomically(self.home / "encoder.json", json.dumps(self.data.encoder.plain))
        write_atomically(self.home / ROWS, self.data.fingerprint + "\n")
        write_atomically(self.home / HELD_OUT, held_out_text(self.data.held_out), private=True)
        study, data = self.agreed.study, self.data
        share, rows = torch.from_numpy(target_share(study, data)), torch.tensor(counts_of(study, data))
        baseline = torch.tensor(site_baseline(study, data), dtype=torch.float64)
        stated = self._shares.statement() if study.share else {}
        words = {"fingerprint": self.data.fingerprint, "versions": versions(), **stated}
        return Message("prepare", words, {"rows": rows, "target": share, "chance": baseline})

    def on_screen(self, asked: Message) -> Message:
        """What is published of the rows, so that it can be said whose data does not fit."""
        if not self.publishes:
            return Message("refused", {})
        answers = ScreeningAnswers(self.rows, self.agreed, self.home, self._sums)
        if asked.words["leg"] != "total":
            return answers.answer(asked)
        return self._sums.add_once(asked, SCREENING, answers.transcript(), answers.summed)

    def on_transfer(self, asked: Message) -> Message:
        return TransferSite(self).answer(asked)

    def on_round(self, asked: Message) -> Message:
        s, r, place = (asked.words[k] for k in WHERE)
        stage = self.agreed.stages[s].stage
        ex, turns = stage.exchanges[place], stage.turns(r)
        if ex.consent and not self.publishes:
            return Message("refused", {})
        if SHARE in asked.words and not ex.consent and self._shares.refusal(asked, self.notices):
            return Message("refused", {WHY: SHARE})
        turn = turns.index(place)
        shape = self.agreed.stages[s].turns[place].down
        state, down = self._state(s, r, turn), unflatten(shape, stacked(asked.tensors))
        self.wary.check_received(s, r, place, asked.tensors)
        scores, part = self._scores(asked, state), dict[str, Tensor]()
        if is_summed(self.agreed, s, r, place):
            part, scores = scores, {}

        def up() -> dict[str, Tensor]:
            self.engine.sampler.set(s, r, place)
            contract = self.agreed.contracts[s][place]
            task, rule = self.engine.task_at(s, r), self.engine.rule(s, r)
            (reported,) = self.engine.answers(ex, contract, state, down, [0], task, rule)
            if looks_at_reports(self.agreed, s, place):
                self.wary.check_report({k: v[0] for k, v in flatten(reported.held)}, self.engine.sites.x)
            self.wary.accept_received(s, r, asked.tensors)
            after = (r, turn + 1) if turn + 1 < len(turns) else (r + 1, 0)
            self._keep(s, after[0], after[1], state)
            report = {k: v[0] for k, v in (reported.crossed or dict(flatten(reported.held))).items()}
            return self.scores.coarse(ex, report, s, r, place) | part

        words = dict[str, Any]()
        try:
            if self.agreed.contracts[s][place].read == READ:
                report, words = self._two.report(asked, up())
            else:
                report, words = self._sums.report(asked, up) if self.agreed.masked(s, place) else (up(), words)
        except JournalDamaged:  # this round without this site
            return Message("refused", {})
        return Message("round", _where(asked) | words, report | scores)

    def on_mask(self, asked: Message) -> Message:
        """Keys and shares for sums under masks."""
        return self._sums.answer(asked)

    def on_deal(self, asked: Message) -> Message:
        """What two servers need to find the distances between reports; it is made of chance alone."""
        return self._two.deal(asked)

    @property
    def _shares(self) -> SiteShares:
        assert self.data is not None
        return SiteShares(self.name, self.agreed, self.home, self.proof, self.limits, len(self.data.train_y))

    @property
    def _two(self) -> TwoServerSite:
        return TwoServerSite(self.name, self.agreed, self.home, self.proof)

    @property
    def _sums(self) -> SumSite:
        return SumSite(self.name, self.agreed, self.home, self.proof, self.notices)

    def on_settle(self, asked: Message) -> Message:
        s, r = asked.words["stage"], asked.words["round"]
        stored = self._versions()
        if stored and stored[0] > (s, r, 0):  # long ago, and asked again by a coordinator that was started anew
            none = {"scores": self.scores.none(asked.words["score"])} if asked.words["score"] else {}
            return self._with_list(asked, none)
        state, down = self._state(s, r, 0), unflatten(self.agreed.stages[s].last, stacked(asked.tensors))
        self.wary.check_received(s, r, asked.words["place"], asked.tensors)
        self._digests.note_stage_end(s, r, asked.tensors)
        scores = self._scores(asked, state)
        settled = self.agreed.stages[s].stage.last.settle(self.agreed.task, state, down)
        if not any(v > (s + 1, 0, 0) for v in stored):
            self._keep(s + 1, 0, 0, settled)
        if s + 1 == len(self.agreed.stages):
            self._ended(settled)
        return self._with_list(asked, scores)

    @property
    def _digests(self) -> SiteDigests:
        return SiteDigests(self.name, self.agreed, self.home, self.proof, self.notices)

    def _with_list(self, asked: Message, scores: dict[str, Tensor]) -> Message:
        """The answer to how a stage ended; after the last one with the signed list of models that were scored."""
        s = asked.words["stage"]
        words, digests = self._digests.signed(s)
        return Message("settle", _where(asked) | words, scores | self._used(s) | digests)

    def _ended(self, settled: Any) -> None:
        """After the last stage; told so again, the same again."""
        save_tensors(self.home / "model.safetensors", {k: v[0] for k, v in flatten(settled)})
        self.scores.keep_own(settled)

    def _used(self, s: int) -> dict[str, Tensor]:
        """At the end: what this process used since it joined."""
        usage = footprint(self.since, *self.power)
        return {FOOTPRINT: torch.tensor(usage, dtype=torch.float64)} if s + 1 == len(self.agreed.stages) else {}

    def on_finish(self, asked: Message) -> Message:
        """What was found about this site is kept beside its model; of its states the last, so that none begins anew."""
        assert self.data is not None
        if self.agreed.parts:
            write_atomically(self.home / POOLED, json.dumps(asked.words["pooled"]))
        if self.agreed.others or self.agreed.parts:
            briefing = {k: asked.words[k] for k in ("findings", "others")} | {"fingerprint": self.data.fingerprint}
            layers = {k: v for k, v in asked.tensors.items() if k != DIGESTS}
            save_tensors(self.home / BEHIND, layers, {"told": json.dumps(briefing)})
        self._digests.compare(asked)
        for old in self._versions()[:-1]:
            self._place(*old).unlink(missing_ok=True)
        judges = self.agreed.study.verdict is not None
        verdict = self.folds.judge() if judges else {}
        words = {VERDICT: verdict if self.shows else {}} if judges else {}
        self.folds.forget()
        RunLog.end(self.home)
        return Message("finish", words)

    @cached_property
    def folds(self) -> SiteFolds:
        """For whether joining is worth it here."""
        from vitrail.deploy.verdicts.site import SiteFolds

        return SiteFolds(self)

    def enter(self, run: str) -> None:
        """Each run has its own folder; one that was begun before is gone on with."""
        if self.home == self.base / run:
            return
        if self.ledger:
            self.ledger.check(run)
        home = self.runs.enter(run)
        if self.ledger:  # before anything of it leaves
            self.ledger.begin(run)
        self.home, self.data = home, None
        self.questions = QuestionLog(self.home / ASKED)
        self.wary = ModelInspector(self.agreed, self.home)
        write_atomically(self.home / "study.toml", self.agreed.study.to_toml())
        if (scale := self.home / "encoder.json").exists():
            self._prepare(Encoder(self.agreed.study, **json.loads(scale.read_text())))

    def rehearsal(self) -> Engine:
        """As it would train in a run that stays here."""
        self._prepare(None)
        return self.engine

    @cached_property
    def splits(self) -> Splits:
        """Which of its rows it trains on and which it holds out."""
        return split_sites({self.name: self.rows}, self.agreed.study, self.agreed.seed)

    def _prepare(self, encoder: Encoder | None) -> None:
        secret = draws_of(self.base, self.home.name)  # after a restart the noise is the same
        rows, secrets = {self.name: self.rows}, {self.name: secret}
        self._take_up(encoded(rows, self.agreed.study, self.agreed.seed, self.splits, secrets, encoder), secret)

    def _take_up(self, sites: list[SiteData], secret: str) -> None:
        """Rows to train on and to judge by; `secret`: what is drawn from."""
        study, method = self.agreed.study, self.agreed.method
        (self.data,) = as_rows(sites, self.agreed.task.net)
        rows = training_rows([self.data], study, method, "cpu")
        held = held_rows([self.data], study, method, "cpu")
        task = private(self.agreed.task, study, method)
        given = task, method, rows, training_of(study), self.agreed.seed
        # masks come later, a centre is the coordinator's; the site clips, adds noise and writes fewer bytes
        guards = guards_of(study)
        own = Guards(guards.clip, guards.noise, compress=guards.compress)
        how = {"secrets": {self.name: secret}, "guards": own}
        self.engine = Engine(*given, keep_reports=True, held=held, **how)  # type: ignore[arg-type]
        self.judge = Evaluator(self.engine, study, [self.data])
        self.scores = SiteScores(self.agreed, self.home, self.judge, secret)

    def _scores(self, asked: Message, state: Any) -> dict[str, Tensor]:
        """Of the model as it was before this round: what the coordinator says now is what it then came to."""
        splits, s, r, place = asked.words["score"], *(asked.words[k] for k in WHERE)
        summed = asked.kind == "round" and is_summed(self.agreed, s, r, place)
        if not splits:
            return {SUMMED: self.scores.nothing()} if summed else {}
        continues = self.wary.continues(s, r, place, asked.tensors)
        if why := self.scores.refusal(asked.kind, s, r, asked.tensors, continues):
            self.notices.append(why)
            return {SUMMED: self.scores.nothing()} if summed else {"scores": self.scores.none(splits)}
        last = self.agreed.stages[s].last
        word = dict(flatten(map_tensors(lambda t: t[:1], last)))  # of what `settle` does not look at, nothing need come
        word |= stacked(asked.tensors)
        word |= {k.removeprefix(f"{LAST}/"): v for k, v in word.items() if k.startswith(f"{LAST}/")}
        settled = self.agreed.stages[s].stage.last.settle(self.agreed.task, state, unflatten(last, word))
        tell = self.scores.part if summed else self.scores.alone
        return {SUMMED if summed else "scores": tell(settled, s, r, splits)}

    def _versions(self) -> list[tuple[int, int, int]]:
        """Stage, round and turn before which the site's states are kept."""
        matches = (re.fullmatch(r"state-(\d+)-(\d+)-(\d+)\.safetensors", f.name) for f in self.home.iterdir())
        return sorted((int(m[1]), int(m[2]), int(m[3])) for m in matches if m)

    def _place(self, s: int, r: int, turn: int) -> Path:
        return self.home / f"state-{s}-{r:06d}-{turn}.safetensors"

    def _state(self, s: int, r: int, turn: int) -> Any:
        """What the site had before that exchange; after the last stage, what it ended with."""
        stages, stored = self.agreed.stages, self._versions()
        before = [v for v in stored if v <= (s, r, turn)]
        if before:
            stage = before[-1][0]
            if stage < s:
                what = f"the coordinator asks for stage {s}, but has not sent the result of stage {stage}."
                raise MessageRefused("stage", what)
            shape = stages[stage].state if stage < len(stages) else stages[-1].settled
            tensors = {k: v[None] for k, v in load_file(self._place(*before[-1])).items()}
            self.engine.guard_state = guard_state_in(tensors)
            return unflatten(shape, tensors)
        if stored:
            what = f"the coordinator asks for round {r} of stage {s}, but this site is more than {KEPT} rounds ahead."
            raise RoundForgotten("round", what)
        start, self.engine.guard_state = map_tensors(lambda t: t[:1].clone(), stages[0].state), {}
        self._keep(0, 0, 0, start)
        return start

    def _keep(self, s: int, r: int, turn: int, state: Any) -> None:
        beside = {f"{GUARD_STATE}/{k}": v[0] for k, v in self.engine.guard_state.items()}
        save_tensors(self._place(s, r, turn), {k: v[0] for k, v in flatten(state)} | beside)
        stored, here = self._versions(), (s, r, turn)
        for old in [v for v in stored if v > here] + [v for v in stored if v <= here][:-KEPT]:
            self._place(*old).unlink(missing_ok=True)


def _where(asked: Message) -> dict[str, Any]:
    return {k: asked.words[k] for k in WHERE}


KINDS = {name.removeprefix("on_") for name in vars(Site) if name.startswith("on_")}
