"""The way from `vitrail serve` to the sites. FLARE's processes are started, watched and started again here.

A job of FLARE's carries the messages of its member sites. A site whose part of a job ended gets a job of its own beside
the others' one, which goes on undisturbed (deploy/transport/flare/job_failures.py says when). A job that broke down as
a whole, and nobody can tell at which site, is split in two: sooner or later the site at which it breaks is alone in its
job.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Set
from typing import Any

from vitrail.core.errors import VitrailError
from vitrail.deploy.coordinator.requests import REMOVED, AnswerTooLong, ConnectionEnded, Responses, SiteSilent
from vitrail.deploy.identity.enrolment_records import Coordinator
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.flare import workspace as kits
from vitrail.deploy.transport.flare.job import UNANSWERED, OpenJob, spelled
from vitrail.deploy.transport.flare.job_failures import FORGOTTEN, PartLosses
from vitrail.deploy.transport.ipc import Pipe
from vitrail.deploy.transport.refusals import Refusals
from vitrail.deploy.transport.supervisor import stop

START = 40.0  # seconds that a job may take to reach everyone
MOST_FRUITLESS = 2  # jobs in which nobody answers, before the transport is started anew
MOST_BROKEN = 2  # jobs that broke down as a whole, before one is split
MOST_JOBS = 4  # at once, each a process here, before those whose sites are at work become one again
ENDING = 2.0  # seconds for a job to end before the next one begins


class FlareTransport:
    """Sites by name, and the jobs that reach them."""

    def __init__(
        self, who: Coordinator, log: Callable[..., None], most: int | None = None, sandbox: bool = True
    ) -> None:
        """`most`: bytes that no answer is longer than; a longer one is not read. `sandbox`: FLARE is shut in."""
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # of FLARE's part in this process: its lines are no user's
        self.who, self.say, self.most, self.sandbox = who, log, most, sandbox
        self.refusals = Refusals(lambda text: self.log(ipc.NOT_OURS, text=text))
        self.names = {site["identity"]: name for name, site in who.sites.items()}
        self.ids = {name: who_ for who_, name in self.names.items()}
        self.inbox: queue.Queue[tuple[Pipe | None, dict[str, Any], bytes]] = queue.Queue()
        self.alive: dict[str, float] = {}  # site -> when it was last heard of
        self.open: list[OpenJob] = []
        self.groups: dict[str, int] = {}  # sites that are kept apart from group 0 -> their group
        self.losses = PartLosses()
        self.broken, self.broke = 0, 0.0  # jobs that broke down as a whole, and when the last one did
        self.number = 0
        self.awake: set[str] = set()  # sites that gave a sign since the last question
        self.silent: set[str] = set()  # sites that are there and did not answer: their part of the job may be dead
        self.flare: subprocess.Popen[bytes] | None = None
        self.jobs: Any = None
        self.pause = 0.5  # before the transport is started again
        self.fruitless = 0  # jobs begun since anybody answered
        self.read = 0.0  # when the list of sites was last changed
        self.removed = {name for name, site in who.sites.items() if site["removed"]}
        self.listener = ipc.Listener()
        threading.Thread(target=self._accept, daemon=True).start()

    def log(self, event: str, **details: Any) -> None:
        self.say(event, **details)

    def _accept(self) -> None:
        while True:
            try:
                end = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(end,), daemon=True).start()

    def _listen(self, end: Pipe) -> None:
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                self.inbox.put((end, *end.get()))
        self.inbox.put((end, {"event": "closed"}, b""))

    def present(self) -> set[str]:
        from vitrail.deploy.transport.flare.components import QUIET

        return {name for name, last_seen in self.alive.items() if time.time() - last_seen < QUIET}

    def watch(self, seconds: float) -> tuple[dict[str, Any], bytes] | None:
        """The next answer within so many seconds; meanwhile who came, who went, and whether FLARE lives."""
        until = time.time() + seconds
        while True:
            self._keep_running()
            self._shut_out()
            try:
                end, head, body = self.inbox.get(timeout=max(0.0, min(0.5, until - time.time())))
            except queue.Empty:
                if time.time() >= until:
                    return None
                continue
            if "number" in head:
                return head, body
            self._note(end, head)
            if time.time() >= until:
                return None

    def _note(self, end: Pipe | None, head: dict[str, Any]) -> None:
        event, site = head.get("event"), self.names.get(head.get("site", ""))
        if event == "relay":
            for job in self.open:
                if job.number == head.get("job"):
                    job.pipe, self.pause = end, 0.5
        elif event == "closed" and end is not None:
            for job in [job for job in self.open if job.pipe is end and self._transport_runs()]:
                self._break_down(job)
        elif event == "part ended" and site:
            for job in [job for job in self.open if job.number == head.get("job")]:
                self._lose(job, site)
        elif event in ("alive", "entered") and site and site not in self.removed:
            if event == "entered":
                self._enter(site, bool(head.get("new", True)))
            self.alive[site] = time.time()
        elif event == ipc.NOT_OURS:
            self.refusals.add(head)
        elif event == "refused":
            self.log("refused", site=site or str(head.get("site"))[:60], why=str(head.get("why"))[:200])

    def _enter(self, site: str, new: bool) -> None:
        """A site registered. `new`: as a process that was not here before, and not only over a new connection."""
        if site not in self.alive:
            self.log("joined", site=site)
        elif new or site not in self.present():
            self.log("back", site=site)
        if (job := self._job_of(site)) is not None:  # whatever job it was in, it is no longer
            self._lose(job, site)
        self.awake.add(site)

    # sites and their jobs

    def _job_of(self, site: str) -> OpenJob | None:
        return next((job for job in self.open if site in job.members), None)

    def _lose(self, job: OpenJob, site: str) -> None:
        """A site's part of a job ended. The others' parts go on; the site gets a job of its own."""
        if site not in job.members:
            return
        self._take_out(job, site)
        if site in self.removed:
            return
        rest = self.losses.add(site)
        self.log("part lost", site=site, times=self.losses.count[site], seconds=rest)

    def _break_down(self, job: OpenJob) -> None:
        """A job ended as a whole. Of a site that was alone in it this is the site's loss; of several, nobody's yet."""
        members = sorted(job.members)
        if job.pipe is not None:
            self.fruitless = 0  # FLARE began it, and does not hold on to it
        if len(members) == 1:
            self._lose(job, members[0])
            return
        self.open.remove(job)
        if time.time() - self.broke > FORGOTTEN:
            self.broken = 0
        self.broken, self.broke = self.broken + 1, time.time()
        if self.broken < MOST_BROKEN:
            self.log("job lost", sites=members)
            return
        halves = members[::2], members[1::2]
        self._set_apart(set(halves[1]))
        self.log("job split", sites=members, times=self.broken, groups=halves)

    def _take_out(self, job: OpenJob, site: str) -> None:
        """The site's next job is its own."""
        job.members.discard(site)
        if not job.members:
            self._end(job)
        self._set_apart({site})

    def _set_apart(self, sites: Set[str]) -> None:
        self.groups |= dict.fromkeys(sites, 1 + max(self.groups.values(), default=0))

    def _end(self, job: OpenJob) -> None:
        """By its own process, which needs no answer of any site; by FLARE where that has not come up."""
        self.open.remove(job)
        if job.pipe is not None:
            with contextlib.suppress(OSError):
                job.pipe.put({"do": "end"})
        elif self.jobs is not None:
            self.jobs.end(job.number)

    # FLARE's processes

    def _keep_running(self) -> None:
        if self.flare is not None and self.flare.poll() is None:
            return
        from vitrail.deploy.transport.flare import components

        if self.flare is not None:
            self.log("transport lost", see=str(self.who.folder / "flare" / "coordinator" / "console.txt"))
            time.sleep(self.pause)
            self.pause = min(30.0, 2 * self.pause)
        self._forget()
        workspace = self.who.folder / "flare" / "coordinator"
        self.flare = components.start_coordinator(workspace, self.listener.place, self.most, boxed=self.sandbox)
        self.log("transport started", address=self.who.address, sandbox=self.sandbox)

    def _transport_runs(self) -> bool:
        """Its end takes all jobs with it, and is seen a moment later."""
        until = time.time() + 0.5
        while self.flare is not None and self.flare.poll() is None and time.time() < until:
            time.sleep(0.05)
        return self.flare is not None and self.flare.poll() is None

    def _shut_out(self) -> None:
        """Who was removed while this process runs."""
        book = self.who.folder / "coordinator.json"
        if (changed := book.stat().st_mtime) == self.read:
            return
        self.read = changed
        sites = json.loads(book.read_text())["sites"]
        kits.write_members(self.who.folder, sites)
        for name, site in sites.items():
            if site["removed"] and name not in self.removed:
                self.removed.add(name)
                self.alive.pop(name, None)
                self.log("removed", site=name)
        if self.jobs is not None:
            for name in self.removed:
                with contextlib.suppress(Exception):  # it may not be here
                    self.jobs.shut_out(self.ids[name])

    def _forget(self) -> None:
        self.open.clear()
        self._log_out()

    def _log_out(self) -> None:
        if self.jobs is not None:
            self.jobs.close()
        self.jobs = None

    def _carry(self, wanted: set[str]) -> None:
        """Jobs that reach the sites that are there. The sites of one group that are in no job get one together."""
        for job in [job for job in self.open if job.pipe is None and time.time() > job.begun + START]:
            if self.jobs is not None:  # its process never came up
                self.jobs.end(job.number)
            self._break_down(job)
        here = {name for name in self.present() if not self.losses.rests(name)}
        for name in sorted(self.silent & here):
            self._try_anew(name)
        if not wanted & here - self._carried():
            return
        self._regroup()
        missing: dict[int, set[str]] = {}
        for name in here - self._carried():
            missing.setdefault(self.groups.get(name, 0), set()).add(name)
        for members in missing.values():
            if not self._begin(members):
                return

    def _carried(self) -> set[str]:
        return {name for job in self.open for name in job.members}

    def _regroup(self) -> None:
        """Where there are many jobs, the sites of those in which nothing has happened for a while get one together."""
        calm = [job for job in self.open if job.members <= job.heard and all(map(self.losses.is_calm, job.members))]
        if len(self.open) < MOST_JOBS or len(calm) < 2 or time.time() - self.broke < FORGOTTEN:
            return
        for job in calm:
            for name in job.members:
                self.groups.pop(name, None)
            self._end(job)

    def _try_anew(self, silent: str) -> None:
        """A site that is there and did not answer: its part of the job may hang."""
        self.silent.discard(silent)
        if (job := self._job_of(silent)) is not None:
            self._take_out(job, silent)

    def _begin(self, members: set[str]) -> bool:
        from vitrail.deploy.transport.flare import components

        if self.fruitless >= MOST_FRUITLESS:  # FLARE may hold on to a job that is dead
            self.log("transport restarted", why=f"no site answered in {self.fruitless} jobs")
            stop(self.flare, 2.0)
            self.fruitless, self.silent = 0, set()
            self.alive.clear()
            return False
        self.fruitless += not members & self.losses.count.keys()
        try:
            if self.jobs is None:
                self.jobs = components.Jobs(self.who.folder / "flare" / "lead", self.who.folder / "flare")
            number = self.jobs.submit([self.ids[name] for name in sorted(members)])
        except Exception as error:
            self.log("job not begun", why=f"{type(error).__name__}: {error}")
            self._log_out()
            return False
        self.open.append(OpenJob(number, members))
        self.log("job", sites=sorted(members))
        return True

    # questions

    def ask(self, questions: dict[str, Message], deadline: float, not_awaited: Set[str] = frozenset()) -> Responses:
        until = time.time() + deadline
        asked = dict[str, tuple[OpenJob, int]]()  # site -> through which job, and the number of the question
        answers, trouble = dict[str, Message](), dict[str, str]()
        packed = {name: q.pack() for name, q in questions.items()}
        trouble |= dict.fromkeys(questions.keys() & self.removed, REMOVED)
        while waiting := set(questions) - answers.keys() - trouble.keys():
            resting = {name for name in waiting if self.losses.rests(name)}
            trouble |= {name: self._ended(name) for name in resting}
            waiting -= resting
            spared = self._spared(questions, not_awaited)
            if waiting <= spared or time.time() > self._until(waiting - spared, until):
                break
            self._carry(waiting)
            self._put(waiting, packed, asked)
            received = self.watch(0.5)
            if received is not None:
                self._take(received, asked, answers, trouble)
            elif not waiting & self.present() and (answers or trouble or time.time() > until):
                break  # those who have not answered are not there
        spared = self._spared(questions, not_awaited)
        for name in set(questions) - answers.keys() - trouble.keys():
            there = name in self.present()
            if there and name not in spared:
                self.silent.add(name)
            trouble[name] = SiteSilent(f"no answer within {deadline:.0f} seconds") if there else "it is not connected"
            trouble |= {name: self._ended(name)} if there and name in self.losses.trial - not_awaited else {}
        awake, self.awake = frozenset(self.awake), set()
        return Responses(answers, trouble, awake)

    def _ended(self, name: str) -> ConnectionEnded:
        return ConnectionEnded(f"its connection ended {self.losses.count[name]} times")

    def _spared(self, questions: dict[str, Message], not_awaited: Set[str]) -> set[str]:
        """Sites that nobody waits for: those on trial too, unless nobody else is asked."""
        trial = self.losses.trial & questions.keys()
        return {*not_awaited, *(trial if questions.keys() - trial - self.removed else ())}

    def _until(self, waiting: set[str], until: float) -> float:
        """How long to wait for these: a job that has just begun is given time to reach everyone."""
        young = [job.begun for job in self.open if waiting & job.members - job.heard]
        return max([until, *(begun + START for begun in young)])

    def _put(self, waiting: set[str], packed: dict[str, bytes], asked: dict[str, tuple[OpenJob, int]]) -> None:
        """Each site its question, once through each job."""
        for name in sorted(waiting):
            job = self._job_of(name)
            if job is None or job.pipe is None or (name in asked and asked[name][0] is job):
                continue
            self.number += 1
            asked[name] = job, self.number
            with contextlib.suppress(OSError):
                job.pipe.put({"do": "ask", "site": self.ids[name], "number": self.number}, packed[name])

    def _take(
        self,
        received: tuple[dict[str, Any], bytes],
        asked: dict[str, tuple[OpenJob, int]],
        answers: dict[str, Message],
        trouble: dict[str, str],
    ) -> None:
        head, body = received
        name = self.names.get(str(head.get("site")))
        if name is None:
            return  # of whoever speaks through the transport's socket nothing is believed
        self.awake.add(name)
        self.losses.note_answer(name)
        if name not in asked or asked[name][1] != head.get("number"):
            return  # an answer to an old question
        self.alive[name] = time.time()
        asked[name][0].heard.add(name)
        self.fruitless = 0
        size = count if isinstance(count := head.get("bytes"), int) else len(body)
        if self.most is not None and size > self.most:
            what = f"its answer is too long: it has {size} bytes, but the limit is {self.most}"
            trouble[name] = AnswerTooLong(what)
        elif (code := str(head.get("code"))) != "OK" or not body:
            trouble[name] = UNANSWERED.get(code, f"its machine could not answer ({spelled(code)})")
        else:
            try:
                answers[name] = unpack(body)
            except VitrailError:
                trouble[name] = UNANSWERED["REFUSED"]

    def close(self) -> None:
        if self.jobs is not None and self.open:
            numbers = [job.number for job in self.open]
            for job in [job for job in self.open if job.pipe is not None]:
                self._end(job)
            time.sleep(ENDING)
            for number in numbers:
                self.jobs.end(number)
        self._forget()
        self.listener.close()
        stop(self.flare)
