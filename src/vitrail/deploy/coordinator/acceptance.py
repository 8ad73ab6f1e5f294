"""What sites would say to the next word, worked out by the coordinator before it sends it.

A careful site that receives weights outside its bounds (deploy/protocol/weight_bounds.py) stops for the rest of the
run. Without this module one enrolled site could make all others do that: it multiplies its change, and the sum leads
outside. So the coordinator checks the words that would follow from a sum against the words it sent before, within
MARGIN of the bounds. Every word is checked against those of the round before; steps add up, so a site that missed
rounds, and allows one step for each, accepts the word too. Under masks the sum is also compared with the sums before it
(JUMP), since nobody can see whose report made it long.

A sum that would lead outside is not used: the model stays as it was, and the study goes on. After MOST_UNUSED such
rounds in a row the coordinator stops and says what to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.core.errors import Problem, StudyStopped
from vitrail.core.tensors import flatten
from vitrail.core.text import several
from vitrail.deploy.coordinator.requests import Transport
from vitrail.deploy.protocol.agreement import LAST, Agreement
from vitrail.deploy.protocol.score_plan import planned
from vitrail.deploy.protocol.weight_bounds import WeightBounds, entry
from vitrail.engine.rounds import Rounds

MARGIN = 0.9  # of the sites' bounds
MOST_UNUSED = 5  # rounds in a row: then the coordinator stops
JUMP, RECENT, FEWEST = 2.0, 5, 3  # a sum so many times as long as the longest of the last RECENT, if FEWEST are known
Where = tuple[int, int, int]  # stage, round, place of the exchange in its stage


class SentTensor(NamedTuple):
    """One tensor of a word, [site, ...], or [1, ...] where all sites were sent the same."""

    clock: int
    value: Tensor


class AcceptanceForecast:
    """`rounds`: the coordinator's, whose words these are."""

    def __init__(self, agreed: Agreement, rounds: Rounds, way: Transport) -> None:
        self.agreed, self.rounds, self.way, self.bounds = agreed, rounds, way, WeightBounds(agreed)
        self.memory: dict[str, list[SentTensor]] = {}  # by name of the tensor: of the round at hand and the one before
        self.lengths: dict[tuple[int, int], deque[float]] = {}  # of the last sums of an exchange
        self.unused: dict[tuple[int, int], list[int]] = {}  # of an exchange: the rounds in a row that were not used
        self.sites: set[str] = set()  # that took part in those

    def sent(self, where: Where, coord: Any) -> None:
        """The word of that exchange is sent: what comes next is checked against it."""
        now = self.bounds.clock(*where[:2])
        for name, value in self._word(where, coord).items():
            recent = [old for old in self.memory.get(name, []) if old.clock >= now - 1]
            self.memory[name] = [*recent, SentTensor(now, value.clone())]

    def problems(self, where: Where, coord: Any) -> list[Problem]:
        """What sites would find wrong with the words that follow from this."""
        checked: dict[tuple[str, int], Tensor] = {}  # held, so that no other tensor takes its address meanwhile
        for s, r, place in self._following(where):
            for name, value in self._word((s, r, place), coord).items():
                if checked.setdefault((name, value.data_ptr()), value) is not value:
                    continue
                now, past = self.bounds.clock(s, r), self.memory.get(name, [])
                recent: list[SentTensor | None] = [v for v in past if v.clock >= now - 1] or [*past[-1:]] or [None]
                for old in recent:
                    for i in range(max(len(value), len(old.value) if old else 1)):
                        memory = entry(name, _at(old.value, i), old.clock) if old else {}
                        if problems := self.bounds.problems(memory, s, r, place, {name: _at(value, i)}, MARGIN):
                            return problems
        return []

    def jumps(self, where: Where, length: float) -> str:
        """In words, where a sum is far longer than those before it; "" where it is not, or not enough is known."""
        lengths = self.lengths.get((where[0], where[2]), ())
        if len(lengths) < FEWEST or length <= JUMP * max(lengths):
            return ""
        return f"the sum of the reports is {length / max(lengths):.3g} times as long as in the rounds before"

    def use(self, where: Where, length: float | None = None) -> None:
        """The sum of that exchange is used; `length`: of its change."""
        self.unused.pop((where[0], where[2]), None)
        if length is not None:
            self.lengths.setdefault((where[0], where[2]), deque(maxlen=RECENT)).append(length)

    def pass_over(self, where: Where, sites: Sequence[str], why: str = "") -> None:
        """The sum of that exchange changes nothing. Without `why`, the event is written already."""
        s, r, place = where
        self.unused.setdefault((s, place), []).append(r + 1)
        self.sites |= set(sites)
        self.rounds.unused.append([s, r + 1])
        if why:
            self.way.log("round not used", stage=s, round=r + 1, why=why, sites=sorted(sites))

    def check(self) -> None:
        """Before a round; raises where too many before it were not used."""
        for rounds in [v for v in self.unused.values() if len(v) >= MOST_UNUSED]:
            what = (
                f"{several(len(rounds), 'round')} in a row, {rounds[0]} to {rounds[-1]}, were not used, and "
                f"the model is still that of round {rounds[0] - 1}. Expected "
                "a sum of reports that can be opened and that "
                "keeps the model within the sites' bounds; "
                "events.jsonl has the reason for each round. One "
                f"of the sites that took part ({', '.join(sorted(self.sites))}) may send "
                "wrong reports every time, or the learning rate "
                "is too large for this study."
            )
            raise StudyStopped("rounds", what, self._advice())

    def _advice(self) -> str:
        protect = self.agreed.study.protect
        least = protect.least if protect.sum != "plain" else 1
        find = (
            "To find the site, ask the sites one after the other to stop vitrail "
            "join, and start vitrail serve again each time; it continues with the "
            "next round, and nothing is lost. Once rounds are used again, the absent "
            "site is the cause: remove it with vitrail remove SITE --study STUDY. At "
            f"least {several(least, 'other site')} must be present. If scores fell before that, wrong reports "
            "were used: start a new run with vitrail serve STUDY --new, and every "
            "site joins with --another-run. "
        )
        outvote = (
            'To outvote it, change [protect] in the study: robust = "median" with sum = "plain" (4 sites or more; the '
            f'coordinator then reads each report), sum = "groups" ({3 * protect.least} sites or more) or '
            'sum = "two servers". '
        )
        other = (
            "If the learning rate is the cause, make training.lr smaller. Each of these changes makes a "
            "different study: run vitrail invite again; every site accepts it again and joins with "
            "--another-run."
        )
        outvotes = protect.sum not in ("plain", "masked") or protect.robust != "no"
        return find + ("" if outvotes else outvote) + other

    def _following(self, where: Where) -> Iterator[Where]:
        """All that is said next from what that exchange comes to: in this round and the next ones, when the stage ends,
        and when the next stage begins."""
        s, r, place = where
        stages, stage = self.rounds.stages, self.rounds.stages[s]
        turns = [(n, i) for n in range(r, min(r + 1 + max(1, len(stage.cycle)), stage.rounds)) for i in stage.turns(n)]
        for n, i in turns[turns.index((r, place)) + 1 :]:
            yield s, n, i
        yield s, stage.rounds, len(stage.exchanges) - 1
        if s + 1 < len(stages) and stages[s + 1].rounds:
            yield s + 1, 0, stages[s + 1].turns(0)[0]

    def _word(self, where: Where, coord: Any) -> dict[str, Tensor]:
        """Of what would be said then, the tensors that sites check."""
        s, r, place = where
        stage, ends = self.rounds.stages[s], r == self.rounds.stages[s].rounds
        ex = stage.last if ends else stage.exchanges[place]
        word = dict(flatten(ex.send(self.rounds.task, coord, self.rounds.roster(self.rounds.everyone, s, r, place))))
        if not ends and planned(self.agreed, "round", s, r, place) and (wanted := self.agreed.settling(s, place)):
            last = stage.last.send(self.rounds.task, coord, self.rounds.roster(self.rounds.everyone, s, r, 0))
            word |= {name: v for k, v in flatten(last) if (name := f"{LAST}/{k}") in wanted}
        return {p.name: _distinct(word[p.name]) for p in self.bounds.parts({k: v[0] for k, v in word.items()})}


def reason(problems: Sequence[Problem]) -> str:
    """Why a sum is not used, from what sites would find wrong."""
    first = f"{problems[0].where}: {problems[0].what.rstrip('.')}"
    return f"the sum of the reports would have moved the model further than the sites accept ({first})"


def _distinct(value: Tensor) -> Tensor:
    """[1, ...] where all sites are sent the same."""
    return value[:1] if value.stride(0) == 0 else value


def _at(value: Tensor, site: int) -> Tensor:
    return value[site if len(value) > 1 else 0]
