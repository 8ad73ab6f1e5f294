"""The way from `vitrail serve` to the sites. FLARE's processes are started, watched and started again here."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Set
from typing import Any

from vitrail.core.problems import VitrailError
from vitrail.deploy import kits, pipe
from vitrail.deploy.call import REMOVED, SILENT, Heard
from vitrail.deploy.enrol import Coordinator, load_coordinator
from vitrail.deploy.keeper import stop
from vitrail.deploy.message import Message, unpack
from vitrail.deploy.pipe import Pipe
from vitrail.deploy.refusals import Refusals

START = 40.0  # seconds that a job may take to reach everyone
MOST_FRUITLESS = 2  # jobs in which nobody answers, before the transport is started anew
ENDING = 2.0  # seconds for a job to end before the next one begins
UNANSWERED = {  # FLARE's codes in words
    "EXECUTION_EXCEPTION": "its machine is there, but `vitrail join` is not, or could not write down what would leave",
    "TASK_ABORTED": "the question was called off before it had answered",
    "BAD_TASK_DATA": "it could not make anything of the question",
    "OK": "its answer was empty",
}


def spelled(code: str) -> str:
    """
    >>> spelled("RUN_MISMATCH")
    'run mismatch'
    """
    return str(code)[:40].replace("_", " ").lower()


class FlareWay:
    """Sites by name; a job of FLARE's carries the messages, and a new one is begun whenever a site that is there is
    not part of it."""

    def __init__(
        self, who: Coordinator, log: Callable[..., None], most: int | None = None, sandbox: bool = True
    ) -> None:
        """`most`: bytes that no answer is longer than; a longer one is not read. `sandbox`: FLARE is shut in."""
        self.who, self.say, self.most, self.sandbox = who, log, most, sandbox
        self.refusals = Refusals(lambda text: self.log(pipe.NOT_OURS, text=text))
        self.names = {site["identity"]: name for name, site in who.sites.items()}
        self.ids = {name: who_ for who_, name in self.names.items()}
        self.inbox: queue.Queue[tuple[Pipe | None, dict[str, Any], bytes]] = queue.Queue()
        self.alive: dict[str, float] = {}  # site -> when it was last heard of
        self.relay: Pipe | None = None
        self.job, self.members, self.number = "", set[str](), 0
        self.begun, self.heard = 0.0, set[str]()  # when the job was submitted, and who has answered in it
        self.awake: set[str] = set()  # sites that gave a sign since the last question
        self.silent: set[str] = set()  # sites that are there and did not answer: their part of the job may be dead
        self.flare: subprocess.Popen[bytes] | None = None
        self.jobs: Any = None
        self.pause = 0.5  # before the transport is started again
        self.fruitless = 0  # jobs begun since anybody answered
        self.read = 0.0  # when the list of sites was last changed
        self.removed = {name for name, site in who.sites.items() if site["removed"]}
        self.listener = pipe.Listener()
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
        from vitrail.deploy.adapter import QUIET

        return {name for name, heard in self.alive.items() if time.time() - heard < QUIET}

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
            if head["job"] == self.job:
                self.relay, self.pause = end, 0.5
        elif event == "closed" and end is self.relay and end is not None:
            self.relay = None
            self.log("job lost")
        elif event in ("alive", "entered") and site and site not in self.removed:
            if event == "entered":
                self.log("back" if site in self.alive else "joined", site=site)
                self.members.discard(site)  # whatever job it was in, it is no longer
                self.awake.add(site)
            self.alive[site] = time.time()
        elif event == pipe.NOT_OURS:
            self.refusals.add(head)
        elif event == "refused":
            self.log("refused", site=site or head["site"], why=head["why"])

    def _keep_running(self) -> None:
        if self.flare is not None and self.flare.poll() is None:
            return
        from vitrail.deploy import adapter

        if self.flare is not None:
            self.log("transport lost", see=str(self.who.folder / "flare" / "coordinator" / "console.txt"))
            time.sleep(self.pause)
            self.pause = min(30.0, 2 * self.pause)
        self._forget()
        workspace = self.who.folder / "flare" / "coordinator"
        self.flare = adapter.start_coordinator(workspace, self.listener.place, self.sandbox)
        self.log("transport started", address=self.who.address, sandbox=self.sandbox)

    def _shut_out(self) -> None:
        """Who was removed while this process runs."""
        book = self.who.folder / "coordinator.json"
        if (changed := book.stat().st_mtime) == self.read:
            return
        self.read = changed
        kits.write_members(load_coordinator(self.who.folder))
        for name, site in json.loads(book.read_text())["sites"].items():
            if site["removed"] and name not in self.removed:
                self.removed.add(name)
                self.alive.pop(name, None)
                self.log("removed", site=name)
        if self.jobs is not None:
            for name in self.removed:
                with contextlib.suppress(Exception):  # it may not be here
                    self.jobs.shut_out(self.ids[name])

    def _forget(self) -> None:
        self.relay, self.job, self.members = None, "", set()
        if self.jobs is not None:
            self.jobs.close()
        self.jobs = None

    def _carry(self, wanted: set[str]) -> None:
        """A job that reaches all sites that are there; begun anew if one of those wanted is not in it."""
        here = self.present()
        if self.relay is not None and not (wanted & here - self.members) and not (self.silent & here):
            return
        if not here:
            return
        from vitrail.deploy import adapter

        if self.fruitless >= MOST_FRUITLESS:  # FLARE may hold on to a job that is dead
            self.log("transport restarted", why=f"nobody answered in {self.fruitless} jobs")
            stop(self.flare, 2.0)
            self.fruitless, self.silent = 0, set()
            self.alive.clear()
            return
        self.fruitless += 1
        try:
            if self.jobs is None:
                self.jobs = adapter.Jobs(self.who.folder / "flare" / "lead", self.who.folder / "flare")
            if self.job:
                self.jobs.end(self.job)
                self.relay = None
            self.silent.clear()
            self.job = self.jobs.submit([self.ids[name] for name in sorted(here)])
        except Exception as error:
            self.log("job not begun", why=f"{type(error).__name__}: {error}")
            self._forget()
            self.watch(1.0)
            return
        self.members, self.begun, self.heard = set(here), time.time(), set()
        self.log("job", sites=sorted(here))
        until = time.time() + START
        while self.relay is None and time.time() < until:
            self.watch(0.2)

    def ask(self, questions: dict[str, Message], deadline: float, beside: Set[str] = frozenset()) -> Heard:
        until, numbers = time.time() + deadline, dict[str, int]()
        answers, trouble = dict[str, Message](), dict[str, str]()
        packed = {name: q.pack() for name, q in questions.items()}
        trouble |= dict.fromkeys(questions.keys() & self.removed, REMOVED)
        while (waiting := set(questions) - answers.keys() - trouble.keys()) and not waiting <= beside:
            # a job that has just begun is given time to reach everyone
            if time.time() > (until if waiting <= self.heard else max(until, self.begun + START)):
                break
            job = self.job
            self._carry(waiting)
            if self.job != job:
                numbers.clear()  # what was asked through the job before is lost
            if self.relay is None:
                self.watch(0.5)
                numbers.clear()
                continue
            for name in sorted(waiting & self.members - numbers.keys()):
                self.number += 1
                numbers[name] = self.number
                head = {"do": "ask", "site": self.ids[name], "number": self.number}
                with contextlib.suppress(OSError):
                    self.relay.put(head, packed[name])
            heard = self.watch(0.5)
            if self.relay is None:
                numbers.clear()
            elif heard is not None:
                self._take(heard, numbers, answers, trouble)
            elif not waiting & self.present() and (answers or trouble or time.time() > until):
                break  # those who have not answered are not there
        for name in set(questions) - answers.keys() - trouble.keys():
            there = name in self.present()
            if there and name not in beside:
                self.silent.add(name)
            trouble[name] = f"{SILENT} {deadline:.0f} seconds" if there else "it is not there"
        awake, self.awake = frozenset(self.awake), set()
        return Heard(answers, trouble, awake)

    def _take(
        self,
        heard: tuple[dict[str, Any], bytes],
        numbers: dict[str, int],
        answers: dict[str, Message],
        trouble: dict[str, str],
    ) -> None:
        head, body = heard
        name = self.names[head["site"]]
        self.awake.add(name)
        if numbers.get(name) != head["number"]:
            return  # an answer to an old question
        self.alive[name] = time.time()
        self.heard.add(name)
        self.fruitless = 0
        try:
            if head["code"] != "OK" or not body:
                trouble[name] = UNANSWERED.get(head["code"], f"its machine could not answer ({spelled(head['code'])})")
                return
            if self.most is not None and len(body) > self.most:
                trouble[name] = f"its answer has {len(body)} bytes, and none is longer than {self.most}"
                return
            answers[name] = unpack(body)
        except VitrailError:
            trouble[name] = "its answer cannot be read"

    def close(self) -> None:
        if self.jobs is not None and self.job:
            if self.relay is not None:
                with contextlib.suppress(OSError):
                    self.relay.put({"do": "end"})
            time.sleep(ENDING)
            self.jobs.end(self.job)
        self._forget()
        self.listener.close()
        stop(self.flare)
