"""A whole study between machines, as the coordinator conducts it: from the first hello to the last word."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.core.tensors import unflatten
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.rounds import RemoteRounds, RemoteSites
from vitrail.deploy.coordinator.run_members import ENTERED, RunMembers
from vitrail.deploy.protocol.agreement import VERDICT
from vitrail.deploy.protocol.message import MOST_WORDS, Message
from vitrail.deploy.transfer.coordinator import conduct_transfer
from vitrail.deploy.transfer.shared import TRANSFER
from vitrail.deploy.verdicts.coordinator import conduct_folds
from vitrail.deploy.verdicts.shared import FoldAgreement
from vitrail.runs.folder import Folder, is_finished
from vitrail.runs.identity import describe_run
from vitrail.runs.result import FOLDED, REFITTED, SHOWN, Run
from vitrail.runs.site.inspection import behind
from vitrail.runs.training import train
from vitrail.runs.verdict_wire import fold_count
from vitrail.storage.atomic_files import write_atomically

MOST_POOLED = MOST_WORDS // 2  # of a last word, as text in a header
TOLD = "told.json"  # in a run folder: the sites that have heard their last word


def conduct(
    call: SiteRequests,
    folder: Folder,
    resume: bool,
    progress: Callable[[int, int], None] | None = None,
    *,
    start: int | None = None,
    gone: Sequence[str] = (),
    written: Callable[[Run], None] | None = None,
) -> Run:
    """The whole study from the first hello to the run folder. Every round is kept, so that at most one is repeated.

    `start`: so many sites must be there before the first round, or all; who comes later takes part from then on.
    `gone`: sites that were invited and do not take part. They keep their place, since messages may grow with places.
    `written` is told as soon as the run folder is whole: sites that are away at the end are then still waited for.
    """
    agreed, book = call.agreed, RunMembers(call, folder.path / ENTERED)
    if not book.order:
        book.open(len(call.names) if start is None else start, gone)
    decided = conduct_transfer(call, book, folder.path) if agreed.study.transfer else {}
    prints = {n: book.sites[n]["fingerprint"] for n in book.first if n in book.names()}
    info = describe_run(agreed.study, agreed.seed, "deployed", "cpu", prints)
    info |= {TRANSFER: decided} if decided else {}
    rounds = RemoteRounds(call, agreed, book, info, folder.path)
    # in simulation these are planned
    info |= {"dropout_rate": 0.0, "away": {}, "refuse": [], "pseudonyms": [*agreed.roster.pseudonyms]}
    if is_finished(folder.path):
        run = Run.load(folder.path)
    else:
        resume = resume and (folder.path / "run.json").exists()
        sites = RemoteSites(rounds, folder.path)
        run = train(rounds, agreed.plan, sites, info, {}, folder, resume, progress, 0.0)
        sites.asking.forget()
        rounds.sums.forget()
    if written is not None:
        written(run)
    later = len(FoldAgreement(agreed)) > 0
    if later:
        after = conduct_folds(call, book, run, folder.path)
        if agreed.study.verdict:
            folds = {"done": fold_count(agreed.study), "crossed": after["crossed"]}
            _say_of(run, FOLDED, folds, folder.path)
        if after[REFITTED]:
            _say_of(run, REFITTED, {"crossed": after[REFITTED]}, folder.path)
    _farewell(call, rounds, run, folder.path)
    if rounds.two is not None:
        rounds.two.end()
    if written is not None and later:
        written(run)  # once more, with what crossed in folds and what sites showed with their last answer
    return run


def _farewell(call: SiteRequests, rounds: RemoteRounds, run: Run, path: Path) -> None:
    """Each site its last word and what was found about it. Who is away is waited for no longer than for an answer;
    started again, this goes on with those who are left. `path`: the run's folder."""
    record = path / TOLD
    informed = set[str](json.loads(record.read_text()) if record.exists() else [])
    last, coord = len(rounds.stages) - 1, unflatten(rounds.start().coord, run.shared)
    rounds.settled |= dict.fromkeys(informed, last + 1)
    until = time.monotonic() + call.deadline
    while left := [n for n in call.active() if n in rounds.book.names() and n not in informed]:
        rounds.settle(last, rounds.stages[last].rounds, coord, 0)
        here = [n for n in left if rounds.settled.get(n, 0) > last]
        answers = call.all(lambda n: _closing_message(rounds, run, n) if n in here else None, 0)  # noqa: B023
        shown = {n: answer.words[VERDICT] for n, answer in answers.items() if answer.words.get(VERDICT)}
        if shown:
            _say_of(run, SHOWN, {**run.info.get(SHOWN, {}), **shown}, path)
        informed |= answers.keys()
        write_atomically(record, json.dumps(sorted(informed)))
        if left := [n for n in left if n not in informed]:
            if time.monotonic() > until:
                call.way.log("not told", sites=left)
                return
            call.way.log("last word waits", sites=left)
            time.sleep(0.5)


def _say_of(run: Run, what: str, content: dict[str, Any], path: Path) -> None:
    """What came after the run, with what it says of itself."""
    if run.info.get(what) != content:
        run.info[what] = content
        write_atomically(path / "run.json", json.dumps(run.info, indent=1))


def _closing_message(rounds: RemoteRounds, run: Run, site: str) -> Message:
    """What was found about this site, what the sites publish together, the others' mean layers, and which models each
    site signed to have scored."""
    briefing = behind(run, site)
    findings = [list(finding[1:]) for finding in briefing.findings]
    layers = {f"others/{k}": v for k, v in briefing.layers.items()}
    pooled = run.screening.pooled if run.screening else {}
    message = Message("finish", {"findings": findings, "pooled": pooled, "others": briefing.others}, layers)
    if len(json.dumps(message.words)) > MOST_POOLED:  # a site reads no longer header
        message.words["pooled"] = {}
    words, digests = rounds.lists.closing_lists()
    return message._replace(words=message.words | words, tensors=message.tensors | digests)
