"""One party's end of one session. Its program posts letters and waits for letters; what it posts goes with the answer
to the coordinator's next question, and that question brings what it waits for.

    question   letters for this party, its shares of dealt triples, who is away         -> fed
    answer     what the program posted until it waits again, ended, or is busy so long  -> taken

The program runs in a thread of its own. A question that is asked again has the same answer (deploy/vertical/party.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from vitrail.deploy.identity.sealing import SealedSession
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.vertical.messages import read, written
from vitrail.vertical.mailbox import DEALER, Mailbox, Triple, expect


class Envelope(NamedTuple):
    """On its way; `whom`: the receiver of what leaves, the sender of what comes."""

    whom: str
    number: int
    data: bytes


class Collection(NamedTuple):
    letters: list[Envelope]
    deal: list[Triple]  # triples that the host asks for
    terms: list[int]  # for the dealer, once: rows in common, numbers that each guest weighs
    state: str  # waits; asks: waits unless somebody is away; busy; ended


class SessionEnded(Exception):  # noqa: N818  not an error: another session began
    """Nobody listens to this program any more."""


class RemoteMailbox(Mailbox):
    def __init__(self, name: str, seals: SealedSession, record: Callable[[Message, str], None]) -> None:
        """`record` is told of every letter before it is sealed, with its receiver; raises where it must not leave."""
        self.name, self.seals, self.record = name, seals, record
        self.away: set[str] = set()
        self.crosses = lambda sender, receiver, letter: letter
        self._come = {other: deque[Any]() for other in seals.opened}
        self._dealt: dict[Triple, Any] = {}
        self._out = Collection([], [], [], "")
        self._known = threading.Condition()
        self._wants: Callable[[], bool] | None = None  # what the program waits for
        self._over = self._ended = self._asks = False
        self.error: Exception | None = None
        self.thread: threading.Thread | None = None

    # for the program

    def post(self, receiver: str, letter: Any) -> None:
        message = written(self.crosses(self.name, receiver, letter))
        with self._known:
            self._look()
            self.record(message, receiver)
            self._out.letters.append(Envelope(receiver, *self.seals.seal(receiver, message.pack())))

    def get_unless_away(self, sender: str, *kinds: type[Any], waits: bool = False) -> Any:
        box = self._come.setdefault(sender, deque())
        with self._known:
            self._asks = not waits
            self._wait(lambda: bool(box) or (sender in self.away and not waits))
            if not box:
                return None
            letter = box.popleft()
        return self.crosses(sender, self.name, expect(letter, sender, kinds))

    def ask_dealer(self, wanted: Iterable[Triple], terms: Sequence[int] = ()) -> None:
        with self._known:
            self._look()
            self._out.deal.extend(wanted)
            self._out.terms.extend(terms)

    def dealt(self, triple: Triple) -> Any:
        with self._known:
            self._asks = False
            self._wait(lambda: triple in self._dealt)
            part = self._dealt.pop(triple)
        return self.crosses(DEALER, self.name, part)

    def _look(self) -> None:
        if self._over:
            raise SessionEnded

    def _wait(self, wants: Callable[[], bool]) -> None:
        self._wants = wants
        while not wants():
            self._look()
            self._known.notify_all()
            self._known.wait()
        self._wants = None
        self._look()

    # for the door

    def begin(self, program: Callable[[RemoteMailbox], None]) -> None:
        def run() -> None:
            try:
                program(self)
            except SessionEnded:
                pass
            except Exception as error:
                self.error = error
            with self._known:
                self._ended = True
                self._known.notify_all()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def feed(self, letters: Sequence[Envelope], dealt: dict[Triple, Any], away: Iterable[str]) -> None:
        """Opens what came: all of it or, where one is refused, what came before it."""
        with self._known:
            for letter in letters:
                where = f"letter {letter.number} from {letter.whom}"
                self._come[letter.whom].append(read(self.seals.open(*letter), where))
            self._dealt |= dealt
            self.away = set(away)
            self._known.notify_all()

    def take(self, patience: float) -> Collection:
        """What the program posted, as soon as it can do no more."""

        def still() -> bool:
            return self._ended or (self._wants is not None and not self._wants())

        with self._known:
            self._known.wait_for(still, patience)
            if self.error is not None:
                raise self.error
            state = "ended" if self._ended else "busy" if not still() else "asks" if self._asks else "waits"
            out, self._out = self._out, Collection([], [], [], "")
        return out._replace(state=state)

    def end(self) -> None:
        """Another session begins: the program is told when it next posts or waits."""
        with self._known:
            self._over = True
            self._known.notify_all()

    def join(self, seconds: float) -> None:
        if self.thread is not None:
            self.thread.join(seconds)

    @property
    def runs(self) -> bool:
        return self.thread is not None and self.thread.is_alive()
