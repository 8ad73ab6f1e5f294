"""The coordinator's half, with sites on machines of their own: the rounds of `engine.rounds`, asked for by message."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitrail.core.exchange import Nothing, Roster
from vitrail.core.facts import Facts
from vitrail.core.tensors import flatten, map_tensors, unflatten
from vitrail.data.encoding import Encoder
from vitrail.deploy.coordinator.acceptance import AcceptanceForecast, reason
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.run_members import RunMembers
from vitrail.deploy.protocol.agreement import FOOTPRINT, LAST, Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.model_digests import SignedDigestLists
from vitrail.deploy.protocol.score_plan import END, SUMMED, mean_scores, planned, score_lines
from vitrail.deploy.screening.coordinator import RemoteScreening
from vitrail.deploy.secure_sum.coordinator import SumCoordinator
from vitrail.deploy.secure_sum.shared import SumName, Where, round_transcript, to_tensors
from vitrail.deploy.share.coordinator import ShareWords
from vitrail.deploy.share.shared import SHARE, WHY
from vitrail.deploy.two_server.coordinator import TwoServerCoordinator
from vitrail.deploy.two_server.shared import READ
from vitrail.engine.aggregation import Collected, merge
from vitrail.engine.contract import WireEntry, check
from vitrail.engine.resource_usage import Footprint, read_footprint
from vitrail.engine.rounds import Rounds, Snapshot
from vitrail.metrics.holdout_summary import HeldOutAnswers
from vitrail.privacy.guards import is_valid_report
from vitrail.privacy.report_vectors import changes, is_change, lengths
from vitrail.privacy.robust import liars
from vitrail.quality.screening import Screening
from vitrail.runs.evaluation import baseline_rows, size_row, sizes_table
from vitrail.runs.plan import Plan
from vitrail.runs.protection.budget import guards_of
from vitrail.runs.protection.shares import round_shares
from vitrail.runs.setup import training_of

MOST_OMITTED = 3  # reports of a site that were left out of a total: then it is no longer asked
MOST_OPEN = 2  # of so few sites nobody can say whose report is wrong


class RemoteRounds(Rounds):
    """One method over sites that are elsewhere; the coordinator holds no state of theirs."""

    def __init__(
        self, call: SiteRequests, agreement: Agreement, book: RunMembers, info: dict[str, Any], path: Path
    ) -> None:
        """`path`: the run's folder."""
        training, guards = training_of(agreement.study), guards_of(agreement.study)
        super().__init__(
            agreement.task, agreement.method, tuple(book.order), training, agreement.seed, guards, agreement.contracts
        )
        self.sums = SumCoordinator(call, path, self.names)
        self.lists = SignedDigestLists(agreement, path)
        self.two = TwoServerCoordinator(call, path) if agreement.study.protect.second else None
        self.call, self.agreed, self.book, self.info = call, agreement, book, info
        self.outlook = AcceptanceForecast(agreement, self, call.way)
        self.omitted: dict[str, int] = {}  # sites whose report was left out of a total, and how often
        self.settled: dict[str, int] = {}  # how many stages' outcome a site has been told
        self.arrived_scores: list[tuple[Any, ...]] = []  # that came with answers, as rows of HISTORY
        self.used: dict[str, Footprint] = {}  # by sites that heard how the last stage ended
        self.share_words = ShareWords(agreement, book.sites)
        self.shares = round_shares(agreement.study, agreement.method, self._rows())

    def _rows(self) -> dict[str, int]:
        """That each site trains on."""
        return {n: int(self.book.sites[n]["rows"][0]) for n in self.book.names()}

    def start(self) -> Snapshot:
        return Snapshot(0, 0, self.method.coord(self.task, len(self.names)), Nothing(), {}, self.everyone)

    def shape_at(self, stage: int) -> Snapshot:
        return self.start()._replace(stage=stage)

    def turn(self, s: int, r: int, coord: Any, state: Any) -> tuple[Any, Facts, Tensor]:
        self.outlook.check()
        self.book.admit()
        if self.shares:
            self.shares.weights |= {n: float(v) if self.shares.by_rows else 1.0 for n, v in self._rows().items()}
        self.info["sites"] = self.book.names()
        self.info["fingerprints"] = {n: self.book.sites[n]["fingerprint"] for n in self.book.names()}
        return super().turn(s, r, coord, state)

    def ask(self, s: int, r: int, place: int, coord: Any, state: Any, roster: Roster) -> tuple[Any, Facts, Tensor]:
        ex, contract = self.stages[s].exchanges[place], self.contracts[s][place]
        down = ex.send(self.task, coord, roster)
        check(down, contract.down, contract.stage, "to site")
        self._catch_up(s, coord)
        self.outlook.sent((s, r, place), coord)
        asked = {n for n, wanted in zip(self.names, roster.present.tolist(), strict=True) if wanted}
        ready = [n for n in self.book.names() if self.settled.get(n, 0) >= s and n in asked]
        if self.agreed.masked(s, place):
            return self._ask_masked((s, r, place), coord, down, ready, roster)
        if self.two is not None and contract.read == READ:
            return self._ask_two((s, r, place), coord, down, ready, roster)
        answers = self._tell("round", s, r, place, down, ready, coord=coord)
        answers = {n: m for n, m in answers.items() if m.kind != "refused"}
        here = torch.tensor([n in answers for n in self.names])
        if not answers:
            return coord, {}, here
        shape, reports = self.agreed.stages[s].turns[place].up, dict[int, Any]()
        for i, name in enumerate(self.names):
            if name in answers:
                crossed = contract.up if contract.crosses is None else contract.crosses
                up = self.guards.read(ex, shape, {k: answers[name].tensors[k][None] for k in crossed})
                reports[i] = self.aggregator.validate_reports(ex, up, map_tensors(lambda t: t[i : i + 1], down), [i])  # noqa: B023
        here = self.aggregator.valid(ex, here)
        after, facts = self._aggregate_open((s, r, place), coord, reports, roster._replace(present=here))
        return after, facts, self._present(here)

    def _aggregate_open(
        self, where: Where, coord: Any, reports: Mapping[int, Any], roster: Roster
    ) -> tuple[Any, Facts]:
        """Reports that can be read one by one, [1, ...] by the site's place. Where their total leads outside the
        sites' bounds, it is made without one of them, the longest first, or without the few longest; whose that was is
        named, and after a few times set aside."""
        s, _, place = where
        ex, shapes, present = self.stages[s].exchanges[place], self.contracts[s][place].up, roster.present
        here = [i for i in reports if bool(present[i])]
        measured = ex.trains and all(changes(ex, reports[i]) for i in here)
        ranked = sorted(here, key=lambda i: -float(lengths(ex, reports[i])[0])) if measured else []
        tries: list[list[int]] = [[]]
        if len(ranked) > MOST_OPEN:
            tries += [[i] for i in ranked] + [ranked[:n] for n in range(2, 1 + liars(len(ranked)))]
        for omitted in tries:
            used = {i: up for i, up in reports.items() if i not in omitted}
            parts = [self.aggregator.buffer_report(ex, slice(i, i + 1), up) for i, up in used.items()]
            now = present.clone().index_fill_(0, torch.tensor(omitted), False) if omitted else present
            after, facts = self.aggregate(ex, coord, parts, roster._replace(present=now), shapes)
            if not (problems := self.outlook.problems(where, after)):
                for i in omitted:
                    self._omit(where, self.names[i])
                self.outlook.use(where)
                return after, facts
        self.outlook.pass_over(where, [self.names[i] for i in here], reason(problems))
        return coord, {}

    def _omit(self, where: Where, name: str) -> None:
        """That site's report was left out of a total."""
        self.omitted[name] = self.omitted.get(name, 0) + 1
        self.call.way.log("report not used", stage=where[0], round=where[1] + 1, site=name)
        if self.omitted[name] == MOST_OMITTED:
            self.aggregator.excluded[name] = why = (
                f"{MOST_OMITTED} of its reports would have moved the model outside the sites' bounds"
            )
            self.call.way.log("set aside", site=name, why=why)

    def _ask_masked(
        self, where: Where, coord: Any, down: Any, ready: Sequence[str], roster: Roster
    ) -> tuple[Any, Facts, Tensor]:
        """The same, of reports that nobody can read one by one."""
        s, r, place = where
        ex, flat = self.stages[s].exchanges[place], {k: v[0] for k, v in flatten(down)}

        def question(names: Sequence[str], words: Mapping[str, Any], quorum: int) -> dict[str, Message]:
            return self._tell("round", s, r, place, down, names, quorum, coord, words)

        given = SumName.of_round(where), ready, round_transcript(self.agreed, where, flat), question
        opened = self.sums.collect(*given, self._following(where))
        if not opened:
            self.outlook.pass_over(where, ready)
            return coord, {}, torch.zeros_like(self.everyone)
        scores = [o.total[SUMMED] for o in opened if SUMMED in o.total]
        self.arrived_scores += mean_scores(self.agreed, s, r, scores)
        shape, up = self.agreed.stages[s].turns[place].up, self.contracts[s][place].up
        totals = [to_tensors(o.total, up) for o in opened]
        sums = unflatten(shape, {k: torch.stack([total[k] for total in totals]) for k in up})
        good, size = is_valid_report(ex, sums, map_tensors(lambda t: t[:1], down))
        together = self.contracts[s][place].read == "groups"
        why = f"the sum of the reports has length {float(size.max()):.3g}, which is not plausible"
        for fine, length, part in zip(good.tolist(), size.tolist(), opened, strict=True):
            if not fine and together:  # nobody can say whose report made it so long
                event = {
                    "event": "sum not used",
                    "why": f"the sum of these reports has length {length:.3g}, which is not plausible",
                }
                self.aggregator.pending_events.append(event | {"sites": part.reporters})
        if not together and ex.trains and bool(good.any()) and (why := self.outlook.jumps(where, float(size[0]))):
            good = torch.zeros_like(good)
        if not bool(good.any()):
            return self._pass_over(where, coord, [n for part in opened for n in part.reporters], why)
        used = [part.reporters for part, fine in zip(opened, good.tolist(), strict=True) if fine]
        members = torch.tensor([[n in names for n in self.names] for names in used])
        collected = self.aggregator.collect_sums(ex, map_tensors(lambda t: t[good], sums), members)
        return self._accept(where, coord, collected, roster, None if together or not ex.trains else float(size[0]))

    def _ask_two(
        self, where: Where, coord: Any, down: Any, ready: Sequence[str], roster: Roster
    ) -> tuple[Any, Facts, Tensor]:
        """The same, of reports of which the second server has the other half."""
        s, r, place = where
        ex, shape = self.stages[s].exchanges[place], self.agreed.stages[s].turns[place].up

        def whole(readable: Mapping[str, Tensor], sites: int) -> Any:
            """[site, ...]; what is not in the open, as zeros."""
            zeros = {k: v.new_zeros((sites, *v.shape[1:])) for k, v in flatten(shape)}
            return unflatten(shape, zeros | dict(readable))

        def fine(name: str, answer: Message) -> bool:
            i, names = self.names.index(name), dict(flatten(shape))
            readable = {k: v[None] for k, v in answer.tensors.items() if k in names and not is_change(ex, k)}
            self.aggregator.validate_reports(ex, whole(readable, 1), map_tensors(lambda t: t[i : i + 1], down), [i])
            return name not in self.aggregator.excluded

        def tell(names: Sequence[str], words: Mapping[str, Any], quorum: int | None) -> dict[str, Message]:
            return self._tell("round", s, r, place, down, names, quorum, coord, words)

        assert self.two is not None
        if (centre := self.two.collect(where, ready, tell, fine)) is None:
            self.outlook.pass_over(where, ready)
            return coord, {}, torch.zeros_like(self.everyone)
        members = torch.tensor([[n == name for n in self.names] for name in centre.names])
        reports = whole(centre.open, len(centre.names))
        collected = self.aggregator.collect_centre(ex, reports, members, centre.middle, centre.far)
        return self._accept(where, coord, collected, roster)

    def _accept(
        self, where: Where, coord: Any, collected: Collected, roster: Roster, length: float | None = None
    ) -> tuple[Any, Facts, Tensor]:
        """What a sum of reports that nobody read one by one comes to, where sites would go on with it; `length`: of
        the sum's change."""
        ex = self.stages[where[0]].exchanges[where[2]]
        after, facts = merge(ex, self.task, coord, collected, roster)
        if problems := self.outlook.problems(where, after):
            names = [n for n, was in zip(self.names, collected.present.tolist(), strict=True) if was]
            return self._pass_over(where, coord, names, reason(problems))
        self.outlook.use(where, length)
        return after, facts, self._present(collected.present)

    def _pass_over(self, where: Where, coord: Any, names: Sequence[str], why: str) -> tuple[Any, Facts, Tensor]:
        """The model stays as it was. Those sites took part all the same: what their reports told was told."""
        self.outlook.pass_over(where, names, why)
        return coord, {}, self._present(torch.tensor([n in names for n in self.names]))

    def _present(self, present: Tensor) -> Tensor:
        """The same; where all are present, in the one tensor that says so without a look at it."""
        return self.everyone if bool(present.all()) else present

    def _following(self, where: Where) -> SumName | None:
        """The next sum under masks of this stage."""
        s, r, _ = where
        stage = self.stages[s]
        turns = [(s, n, i) for n in range(r, min(r + 2, stage.rounds)) for i in stage.turns(n)]
        later = [w for w in turns[turns.index(where) + 1 :] if self.agreed.masked(s, w[2])]
        return SumName.of_round(later[0]) if later else None

    def finalize_stage(self, moment: Snapshot) -> Any:
        self.settle(moment.stage, moment.round, moment.coord, None)
        until = time.monotonic() + self.call.deadline
        while moment.stage + 1 == len(self.stages) and self._behind(moment.stage) and time.monotonic() < until:
            self.call.way.log("last word waits", sites=self._behind(moment.stage))
            self.settle(moment.stage, moment.round, moment.coord, 0)
            time.sleep(0.5)
        return Nothing()

    def _behind(self, s: int) -> list[str]:
        """Sites that have not been told how stage s ended, and could be."""
        return [n for n in self.call.active() if n in self.book.names() and self.settled.get(n, 0) <= s]

    def settle(self, s: int, r: int, coord: Any, quorum: int | None) -> None:
        """Those who do not know yet how stage s ended are told."""
        self._catch_up(s, coord)
        behind = [n for n in self._behind(s) if self.settled.get(n, 0) == s]
        down = self.stages[s].last.send(self.task, coord, self.roster(self.everyone, s, r, 0))
        for name in self._tell("settle", s, r, len(self.stages[s].exchanges) - 1, down, behind, quorum):
            self.settled[name] = s + 1

    def _catch_up(self, s: int, coord: Any) -> None:
        """Sites that were away when an earlier stage ended."""
        if s and self._behind(s - 1):
            self.settle(s - 1, self.stages[s - 1].rounds, coord, 0)

    def _tell(
        self,
        kind: str,
        s: int,
        r: int,
        place: int,
        down: Any,
        names: Sequence[str],
        quorum: int | None = None,
        coord: Any = None,
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Message]:
        """Each of these sites its part of `down`, and `more` words. Where it was agreed their scores are asked for,
        with what of the last word settles a model."""
        splits, flat = planned(self.agreed, kind, s, r, place), dict(flatten(down))
        if splits and (wanted := self.agreed.settling(s, place)):
            last = self.stages[s].last.send(self.task, coord, self.roster(self.everyone, s, r, 0))
            flat |= {name: v for k, v in flatten(last) if (name := f"{LAST}/{k}") in wanted}

        def make(name: str) -> Message | None:
            i = self.names.index(name)
            own = {k: v[i] for k, v in flat.items()}
            words = {"stage": s, "round": r, "place": place, "score": splits, **(more or {}).get(name, {})}
            if self.shares and kind == "round" and name in names:
                listed = words["sum"]["roster"] if "sum" in words else names
                words[SHARE] = self.share_words.of(name, listed)
            return Message(kind, words, own) if name in names else None

        if self.shares and kind == "round" and not more:  # the list of a round is of those who are there
            here, need = self.call.way.present(), self.call.quorum if quorum is None else quorum
            present = [n for n in names if n in here]
            names = present if len(present) >= min(need, len(names)) else names
        answers = self.call.all(make, quorum)
        for name in answers:
            self.share_words.answered(name)
        for name in sorted(n for n, m in answers.items() if m.kind == "refused" and m.words.get(WHY) == SHARE):
            if self.shares and name not in self.shares.refused:
                self.shares.refused.add(name)
                self.call.way.log("share refused", site=name, round=r + 1)
        metrics = self.agreed.scored(splits)
        for name, answer in sorted(answers.items()):
            if (scores := answer.tensors.get("scores")) is not None:
                rows = [(s, r, name, *what, float(v)) for what, v in zip(metrics, scores, strict=True)]
                self.arrived_scores += rows
            self.lists.take(name, answer.words, answer.tensors)
            if (numbers := answer.tensors.get(FOOTPRINT)) is not None:
                if (footprint := read_footprint(numbers.tolist())) is None:
                    self.call.way.log("trouble", site=name, what="the resource use that it reports is not possible")
                else:
                    self.used[name] = footprint
        return answers


class RemoteSites:
    """The sites of a run as `runs.result.train` meets them. Their models stay with them."""

    def __init__(self, rounds: RemoteRounds, folder: Path) -> None:
        self.rounds, self.book = rounds, rounds.book
        self.asking = RemoteScreening(rounds.call, rounds.book.names(), folder, rounds.sums)

    @property
    def sizes(self) -> pd.DataFrame:
        study, sites = self.rounds.agreed.study, self.book.sites
        rows = [size_row(study, n, sites[n]["rows"], sites[n]["target"]) for n in self.book.names()]
        return sizes_table(study, rows)

    @property
    def class_shares(self) -> dict[str, list[float]]:
        return {n: self.book.sites[n]["shares"] for n in self.book.names() if "shares" in self.book.sites[n]}

    def held_out(self) -> dict[str, list[int | str]]:
        return {}  # each site keeps its own list

    def held_answers(self, moment: Snapshot) -> dict[str, HeldOutAnswers]:
        return {}  # these rows stay there

    @property
    def at(self) -> list[int]:
        return [self.rounds.names.index(n) for n in self.book.names()]

    def rows(self, moment: Snapshot, splits: tuple[str, ...]) -> list[tuple[Any, ...]]:
        scores, self.rounds.arrived_scores = self.rounds.arrived_scores, []
        return scores

    def screen(self) -> Screening | None:
        return self.asking.run() if self.rounds.agreed.parts else None

    def baseline(self) -> list[tuple[Any, ...]]:
        study, sites = self.rounds.agreed.study, self.book.sites
        return [row for n in self.book.names() for row in baseline_rows(study, n, sites[n]["chance"])]

    def models(self, moment: Snapshot) -> dict[str, dict[str, Tensor]]:
        return {}

    def encoders(self, moment: Snapshot) -> dict[str, Encoder]:
        return {}

    def lines(self, plan: Plan) -> list[WireEntry]:
        """Scores that sites add up under masks are part of their reports."""
        agreed = self.rounds.agreed
        others = [x for x in plan.wire() if x.stage != END]
        return others + [x for x in score_lines(agreed) if x.seen != "masked"]

    def footprints(self) -> dict[str, Footprint]:
        return {n: self.rounds.used[n] for n in self.book.names() if n in self.rounds.used}
