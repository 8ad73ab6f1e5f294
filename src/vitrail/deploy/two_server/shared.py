"""Two servers by message: what the coordinator, the second server and the sites know of it alike.

The coordinator is the first of the two. The second is enrolled like a site, holds no rows, and joins like one
(deploy/two_server/server.py); what sites and dealer have for it goes through the coordinator, sealed. The legs of one
exchange:

key      once a run: the second's key for sealed letters, signed by the key that it enrolled with
(round)  each site: one half of its change to the coordinator; sealed and signed, what the other is drawn from
halves   the second: whose halves are there; it draws the lot by which the dealer is found
deal     a site drawn by lot deals to both, and is told nothing but how many there are
blind    both open x - a, and the second says its halves of inner products and of sums with signs drawn by both
total    both choose the same reports; the second says its half of their total
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.protocol.message import MessageSchema, no_such
from vitrail.engine.contract import Spec
from vitrail.privacy.key_agreement import SIZE, SealedBox, agree
from vitrail.privacy.report_vectors import is_change
from vitrail.privacy.two_server.protocol import TESTS
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

Where = tuple[int, int, int]  # stage, round, place of the exchange in its stage
READ = "two servers"  # of a contract
SECOND, DEAL = "second", "deal"  # kinds of messages
DEALERS = 3  # that may be tried one after the other: whoever passes them over at will finds no accomplice so easily
LETTER_KEY = "vitrail letter 1"  # what the key of a letter is for
LETTER = {"sealed": str, "signature": str, "certificate": str}
SAID: dict[str, Any] = LETTER  # with a report, beside where it belongs
AT = {"stage": int, "round": int, "place": int, "names": list}
WORDS: dict[str, dict[str, Any]] = {  # of a question to the second, beside run and leg
    "key": {},
    "halves": {**AT, "letters": dict},
    "blind": {**AT, "dealer": str, "deck": dict, "lot": str},
    "total": AT,
}
TOLD: dict[str, dict[str, Any]] = {  # of its answer
    "key": {"key": str, "signature": str, "certificate": str},
    "halves": {"good": list, "lot": str},
    "blind": {"lot": str},
    "total": {"chosen": list},
}


def check_second(study: Study) -> None:
    """Whether the study names a second server where it needs one, and nowhere else."""
    protect = study.protect
    what = hint = ""
    if protect.second and protect.sum != READ:
        what, hint = f'this key is only for sum = "{READ}".', "Leave it out."
    elif protect.sum == READ and not protect.second:
        what = "between machines, somebody other than the coordinator must run the second server."
        hint = 'Write second = "NAME"; the second server is invited like a site.'
    elif protect.second and study.verdict:
        what, hint = (
            "so far, the folds of a verdict do not work with a second server.",
            "Remove [verdict], or use masks.",
        )
    elif protect.second and study.training.refit:
        what = "so far, the final training on all rows does not work with a second server."
        hint = "Write refit = false in [training], or use masks."
    if what:
        raise VitrailError("the study promises what cannot be kept", [Problem("protect.second", what, hint)])


def numbers_of(agreed: Agreement, s: int, place: int) -> int:
    """How many numbers a change has there."""
    ex, up = agreed.stages[s].turns[place].exchange, agreed.contracts[s][place].up
    return sum(math.prod(shape) for name, (shape, _) in up.items() if is_change(ex, name))


def question(agreed: Agreement, kind: str, words: dict[str, Any]) -> MessageSchema:
    """What a dealer, or the second, may be asked."""
    if not study_has(agreed):
        raise no_such("message", kind)
    if kind == DEAL:
        agreed.check_sum(words, (READ,))
        _count(agreed, words)
        return MessageSchema({"run": str, **AT, "second": dict}, {})
    if (leg := words.get("leg")) not in WORDS:
        raise no_such("leg", leg)
    down: Spec = {}
    if leg != "key":
        agreed.check_sum(words, (READ,))
        n, d = _count(agreed, words), numbers_of(agreed, words["stage"], words["place"])
        down = {"blinded": ((n, d), torch.int64)} if leg == "blind" else _opened(n) if leg == "total" else {}
    return MessageSchema({"run": str, "leg": str, **WORDS[str(leg)]}, down)


def answer(agreed: Agreement, kind: str, words: dict[str, Any]) -> MessageSchema:
    if kind == DEAL:
        return MessageSchema({"seed": str, **LETTER}, {})
    leg, up = words["leg"], dict[str, Any]()
    if leg in ("blind", "total"):
        n, d = len(words["names"]), numbers_of(agreed, words["stage"], words["place"])
        blind = _opened(n) | {"blinded": ((n, d), torch.int64)}
        up = blind if leg == "blind" else {"total": ((d,), torch.int64)}
    return MessageSchema(TOLD[leg], up)


def study_has(agreed: Agreement) -> bool:
    return any(c.read == READ for stage in agreed.contracts for c in stage)


def longest(agreed: Agreement) -> list[Spec]:
    """What is longest of all that goes to the second or comes from it."""
    turns = [(s, i) for s, stage in enumerate(agreed.contracts) for i, c in enumerate(stage) if c.read == READ]
    n = agreed.sites
    return [_opened(n) | {"blinded": ((n, numbers_of(agreed, s, i)), torch.int64)} for s, i in turns]


def _opened(n: int) -> Spec:
    return {"products": ((n, n), torch.int64), "tested": ((n, TESTS), torch.int64)}


def _count(agreed: Agreement, words: dict[str, Any]) -> int:
    """How many sites a question is about: different ones, not fewer than agreed, and not more than there are."""
    names = words.get("names")
    fine = isinstance(names, list) and all(isinstance(n, str) for n in names) and len(set(names)) == len(names)
    if not fine or not agreed.fewest <= len(names or ()) <= agreed.sites:
        raise no_such("names", names)
    return len(names or ())


def about(agreed: Agreement, run: str, where: Where) -> str:
    return f"{agreed.hash} {run} {' '.join(map(str, where))} {READ}"


def ranked(about_: str, lot: bytes, names: Sequence[str]) -> list[str]:
    """Who deals, and who would if that one fell silent."""
    first = about_.encode() + b"\0" + lot + b"\0"
    return sorted(names, key=lambda n: hashlib.sha256(first + n.encode()).digest())[:DEALERS]


def key_text(agreed: Agreement, run: str, second: str, key: bytes) -> bytes:
    """What the second signs of its key."""
    return "\0".join(("vitrail second 1", agreed.hash, run, second, key.hex())).encode()


def letter_text(kind: str, about_: str, site: str, sealed: bytes) -> bytes:
    """What a site signs of a letter; kind: half, or deck."""
    return "\0".join((f"vitrail {kind} 1", about_, site, hashlib.sha256(sealed).hexdigest())).encode()


def seal_for(key: bytes, text: bytes, info: str) -> bytes:
    """For whoever has the private half; by a key that is used for this one letter."""
    own = X25519PrivateKey.generate()
    box = SealedBox(agree(own, key, "the second server"), LETTER_KEY, info)
    return own.public_key().public_bytes_raw() + box.seal(text)


def unseal(own: X25519PrivateKey, sealed: bytes, info: str) -> bytes:
    return SealedBox(agree(own, sealed[:SIZE], "letter"), LETTER_KEY, info).open(sealed[SIZE:], "letter")
