"""What the programs of host and guests stand on: a mailbox, to post letters and to wait for them.

A program that waits for several parties is a generator: it yields what it waits for, a `Wait` or a `Triple`, and is
sent it. It is written once and runs over the mailbox of parties on one machine, which is here, and over the one between
machines (deploy/vertical/mailbox.py), where letters are sealed. On one machine letters are objects, and there are no
threads: a program goes on as soon as what it waits for is there, so that all happens in the same order every time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from vitrail.core.errors import MessageRefused, StudyStopped

T = TypeVar("T")
DEALER = "dealer"


class Wait(NamedTuple):
    """For the next letter of this party, which must be of one of these kinds."""

    sender: str
    kinds: tuple[type[Any], ...]


class Triple(NamedTuple):
    """For a party's part of what the dealer deals to the host and this guest for a step."""

    guest: str
    step: int


Program = Generator[Wait | Triple, Any, T]


class Mailbox(ABC):
    """One party's."""

    name: str
    away: Collection[str]  # who does not answer any more
    crosses: Callable[[str, str, Any], Any]  # is shown what crosses, with sender and receiver, and hands it on

    @abstractmethod
    def post(self, receiver: str, letter: Any) -> None: ...

    @abstractmethod
    def get_unless_away(self, sender: str, *kinds: type[Any], waits: bool = False) -> Any:
        """The next letter of this sender; None where the sender is away."""

    @abstractmethod
    def ask_dealer(self, wanted: Iterable[Triple], terms: Sequence[int] = ()) -> None:
        """`terms`: what the dealer has to know, once, where it is on another machine."""

    @abstractmethod
    def dealt(self, triple: Triple) -> Any:
        """This party's part."""

    def get(self, sender: str, *kinds: type[Any]) -> Any:
        """The next letter of this sender, who must not be away."""
        return self.get_unless_away(sender, *kinds, waits=True)

    def run(self, program: Program[T]) -> T:
        """The program to its end, waiting here for what it waits for."""
        answer = None
        while True:
            try:
                wish = program.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self.dealt(wish) if isinstance(wish, Triple) else self.get(wish.sender, *wish.kinds)


def expect(letter: Any, sender: str, kinds: tuple[type[Any], ...]) -> Any:
    """The letter, if it is of one of these kinds."""
    if not isinstance(letter, kinds):
        named = " or ".join(kind.__name__ for kind in kinds)
        raise MessageRefused(f"letter from {sender}", f"expected {named}, got {type(letter).__name__}.")
    return letter


class LocalMail:
    """Between all parties of one machine, and their programs. A program that raises has ended, and its party is away:
    the error is the caller's."""

    carry: Callable[[Any], Any] = staticmethod(lambda letter: letter)  # what letters go through; tests pack them here

    def __init__(
        self,
        deal: Callable[[str, int], tuple[Any, Any]] | None = None,
        crosses: Callable[[str, str, Any], Any] = lambda sender, receiver, letter: letter,
    ) -> None:
        """`deal`: of a guest and a step, the host's part and the guest's."""
        self.deal, self.crosses = deal, crosses
        self.letters: dict[tuple[str, str], deque[Any]] = defaultdict(deque)  # receiver, sender
        self.triples: dict[tuple[str, Triple], Any] = {}  # of a party
        self.programs: dict[str, Program[Any]] = {}
        self.wishes: dict[str, Wait | Triple | None] = {}  # None: the program has ended
        self.results: dict[str, Any] = {}
        self.away: set[str] = set()
        self._busy = False

    def start(self, name: str, program: Program[Any]) -> None:
        """Until it waits; it goes on when something is posted, or waited for."""
        self.programs[name] = program
        self._go_on(name, None)

    def run(self, programs: Mapping[str, Program[T]]) -> dict[str, T]:
        """What each comes to. They go on in this order."""
        for name, program in programs.items():
            self.start(name, program)
        self.pump()
        if waiting := [name for name in programs if name not in self.results]:
            raise StudyStopped(", ".join(waiting), "each of these parties waits for a letter from another one.")
        return {name: self.results[name] for name in programs}

    def pump(self, until: Callable[[], bool] = lambda: False, among: Collection[str] | None = None) -> None:
        """The first program that can go on does, again and again, `until` something is so or none can."""
        while not self._busy and not until():
            able = (n for n, w in self.wishes.items() if w is not None and (among is None or n in among))
            name = next((n for n in able if self.has(n, self.wishes[n])), None)
            if name is None:
                return
            self._go_on(name, self.take(name, self.wishes[name]))

    def has(self, name: str, wish: Wait | Triple | None) -> bool:
        return (name, wish) in self.triples if isinstance(wish, Triple) else bool(wish and self.letters[name, wish[0]])

    def take(self, name: str, wish: Any) -> Any:
        if isinstance(wish, Triple):
            return self.crosses(DEALER, name, self.triples.pop((name, wish)))
        return expect(self.letters[name, wish.sender].popleft(), *wish)

    def _go_on(self, name: str, answer: Any) -> None:
        self.wishes[name], self._busy = None, True
        self.away.add(name)  # unless it waits again
        try:
            self.wishes[name] = self.programs[name].send(answer)
            self.away.remove(name)
        except StopIteration as end:
            self.results[name] = end.value
        finally:
            self._busy = False


class LocalMailbox(Mailbox):
    """One party's among those of one machine."""

    def __init__(self, name: str, mail: LocalMail) -> None:
        self.name, self.mail, self.crosses, self.away = name, mail, mail.crosses, mail.away

    def post(self, receiver: str, letter: Any) -> None:
        """The receiver goes on at once, unless a program is going on that posts this: then it does after that."""
        mail = self.mail
        mail.letters[receiver, self.name].append(self.crosses(self.name, receiver, mail.carry(letter)))
        mail.pump(among=[receiver])

    def get_unless_away(self, sender: str, *kinds: type[Any], waits: bool = False) -> Any:
        mail, wish = self.mail, Wait(sender, kinds)
        mail.pump(until=lambda: mail.has(self.name, wish))
        if mail.has(self.name, wish):
            return mail.take(self.name, wish)
        if sender in mail.away and not waits:
            return None
        named = " or ".join(kind.__name__ for kind in kinds)
        what = f"{self.name} waits for {named} from this party, but the party has ended."
        raise StudyStopped(sender, what, "Read its last output.")

    def ask_dealer(self, wanted: Iterable[Triple], terms: Sequence[int] = ()) -> None:
        deal = self.mail.deal
        assert deal is not None
        for triple in wanted:
            self.mail.triples[self.name, triple], self.mail.triples[triple.guest, triple] = deal(*triple)

    def dealt(self, triple: Triple) -> Any:
        return self.mail.take(self.name, triple)
