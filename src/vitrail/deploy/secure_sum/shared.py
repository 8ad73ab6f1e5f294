"""Secure sums by message: what both ends know of them.

Summed are the reports of a round's exchange under masks, the numbers of a common scale (deploy/scale/) and the products
of columns of a screening (deploy/screening/): all by the same protocol, each under a name of its own. Its legs:

ring     once a run: each site's key for sealed shares and its key for signatures in this run, signed by the key that it
         enrolled with
keys     a key for this one sum, signed, and sealed shares for the others; or with the opening of the sum before
report   the question of a round, of the scale or of the screening, with the others' keys; what this site adds, under
         masks, and a signature under the list
open     who reported, with their signatures under the list; each site's shares, so that the sum opens although somebody
         fell silent
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.errors import SumRefused
from vitrail.deploy.protocol.message import WHERE, Message, no_such
from vitrail.deploy.protocol.score_plan import report_spec
from vitrail.deploy.scale import shared as scale
from vitrail.deploy.screening import shared as screening
from vitrail.engine.rounds import coordinator_keys
from vitrail.privacy.secure_sum.dropout_tolerant import SumKeys
from vitrail.privacy.secure_sum.fixed_point import LIMIT, ZERO, fewest_of
from vitrail.privacy.secure_sum.groups import groups_of
from vitrail.privacy.secure_sum.spec import Flat, SumSpec, Values

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

Where = tuple[int, int, int]  # stage, round, place of the exchange in its stage
SCALE, SCREENING, ROUND = "scale", "screening", "round"  # what a sum is for, in the order of time
PURPOSES = (SCALE, SCREENING, ROUND)
AT: dict[str, Any] = {"purpose": str, **WHERE}
WORDS: dict[str, dict[str, Any]] = {  # of a leg's question, beside run and leg
    "ring": {},
    "keys": {**AT, "names": list, "ring": dict},
    "open": {**AT, "said": list, "lists": dict, "sealed": dict, "next": dict},
}
TOLD: dict[str, dict[str, Any]] = {  # of its answer
    "ring": {"key": str, "signer": str, "signature": str, "certificate": str},
    "keys": {"key": str, "mark": str, "signature": str, "sealed": dict},
    "open": {"shares": dict, "next": dict},
}
SIGNED: dict[str, Any] = {"list": str}  # with a report, beside where it belongs


class SumName(NamedTuple):
    """Which sum of a run. The scale and the screening have one each."""

    purpose: str
    stage: int = 0
    round: int = 0
    place: int = 0

    @classmethod
    def of_round(cls, where: Where) -> SumName:
        return cls(ROUND, *where)

    @property
    def where(self) -> Where:
        return self.stage, self.round, self.place

    @property
    def title(self) -> str:
        """As people read it."""
        return {SCALE: "Common scale", SCREENING: "Screening"}.get(self.purpose, f"Round {self.round + 1}")

    def order(self, agreed: Agreement) -> tuple[int, int, int, int]:
        """Purpose, stage, round and turn: in the order of time."""
        s, r, place = self.where
        turn = agreed.stages[s].stage.turns(r).index(place) if self.purpose == ROUND else 0
        return PURPOSES.index(self.purpose), s, r, turn


def read_name(agreed: Agreement, words: Mapping[str, Any]) -> SumName:
    """Which sum a message is about; refused where nothing of that name was agreed on."""
    purpose = words.get("purpose")
    if purpose == ROUND:
        agreed.check_sum(dict(words))
        return SumName(ROUND, *(words[k] for k in WHERE))
    name = SumName(purpose) if isinstance(purpose, str) and purpose in single_sums(agreed) else None
    if name is None or [words.get(k) for k in WHERE] != [0, 0, 0]:
        raise no_such("sum", purpose)
    return name


def single_sums(agreed: Agreement) -> dict[str, dict[str, tuple[tuple[int, ...], float]]]:
    """The sums of a run before its rounds: what each is of, with shapes and how large a number may be."""
    out = {SCALE: scale.summed_shapes(agreed)} if scale.has_masked_scale(agreed) else {}
    return out | ({SCREENING: screening.summed_shapes(agreed)} if agreed.parts else {})


def group_members(agreed: Agreement, name: SumName, invited: Sequence[str]) -> dict[str, list[str]]:
    """Which of all who were invited are added up together; by a short name, which is "" where that is everybody."""
    return grouped(agreed, name.where, invited) if name.purpose == ROUND else {"": list(invited)}


def grouped(agreed: Agreement, where: Where, invited: Sequence[str]) -> dict[str, list[str]]:
    """The same of an exchange. Both ends work it out: nobody is put into a group at will."""
    if agreed.contracts[where[0]][where[2]].read != "groups":
        return {"": list(invited)}
    places = groups_of(coordinator_keys(agreed.seed, invited), agreed.study.protect.least).tolist()
    out = dict[str, list[str]]()
    for name, place in sorted(zip(invited, places, strict=True), key=lambda pair: pair[1]):
        out.setdefault(f"group {place}", []).append(name)
    return out


def terms_of(agreed: Agreement, run: str, name: SumName, group: str = "", members: int = 0) -> SumSpec:
    """Of that sum in that run, of that group of so many; of all sites without one."""
    if name.purpose == ROUND:
        shapes = {k: shape for k, (shape, _) in report_spec(agreed, *name.where).items() if k != ZERO}
        clip = dict.fromkeys(shapes, LIMIT)
    else:
        summed = single_sums(agreed)[name.purpose]
        shapes, clip = {k: shape for k, (shape, _) in summed.items()}, {k: most for k, (_, most) in summed.items()}
    fewest = fewest_of(members, agreed.study.protect.least) if group else agreed.fewest
    about = f"{agreed.hash} {run} {' '.join(map(str, name))}" + (f" {group}" if group else "")
    return SumSpec(about, shapes, clip, agreed.sites, fewest)


def transcript_of(tensors: Mapping[str, NDArray[Any]]) -> str:
    """A digest of what all sites were sent."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + b"\0" + tensors[name].tobytes())
    return digest.hexdigest()


def round_transcript(agreed: Agreement, where: Where, sent: Mapping[str, Tensor]) -> str:
    """Of what all sites are sent alike in that exchange; "" where each is sent something of its own."""
    down = agreed.contracts[where[0]][where[2]].down
    if not agreed.alike(where[0], where[2]) or not down:
        return ""
    return transcript_of({name: sent[name].detach().cpu().numpy() for name in down})


def to_values(terms: SumSpec, up: Mapping[str, Tensor]) -> Values:
    """A report as it is summed: beside what may be no number, where it is none."""
    out = dict[str, Any]()
    for name, tensor in up.items():
        numbers = tensor.detach().cpu().double().numpy()
        if f"{name}?" in terms.shapes:
            fine = np.abs(numbers) <= LIMIT  # false for what is no number
            out[f"{name}?"], numbers = (~fine).astype(np.float64), np.where(fine, numbers, 0.0)
        out[name] = numbers
    return {k: np.asarray(out[k], dtype=np.float64) for k in terms.shapes if k in out}


def to_tensors(total: Values, up: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Tensor]:
    """What a sum came to, as the method's own report has it."""
    out = {}
    for name, (_, kind) in up.items():
        none = total.get(f"{name}?")
        numbers = total[name] if none is None else np.where(none > 0, np.nan, total[name])
        out[name] = torch.as_tensor(numbers).to(kind)
    return out


def read_drawn(words: Any) -> SumKeys:
    """What a site drew for a sum; of anybody's writing."""
    try:
        key, mark, signature = (bytes.fromhex(words[k]) for k in ("key", "mark", "signature"))
        sealed = {str(n): bytes.fromhex(v) for n, v in words.get("sealed", {}).items()}
        if len(key) != 32 or len(mark) != 32:
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SumRefused("keys", "expected a key of 32 bytes, a mark and a signature.") from None
    return SumKeys(key, mark, signature, sealed)


def drawn_words(drawn: SumKeys, sealed: bool = True) -> dict[str, Any]:
    out: dict[str, Any] = {k: getattr(drawn, k).hex() for k in ("key", "mark", "signature")}
    return out | ({"sealed": {n: v.hex() for n, v in drawn.sealed.items()}} if sealed else {})


def sum_words(site: str, drawn: Mapping[str, SumKeys], among: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """With the question for a report: who is in the sum, and the keys of this site's neighbours."""
    near = {n: drawn_words(drawn[n], sealed=False) for n in among[site] if n != site and n in drawn}
    return {"roster": sorted(drawn), "drawn": near}


def add_up(reports: Sequence[Message], terms: SumSpec) -> Flat:
    """The sum of masked reports, number after number, mod 2^64."""
    parts = [[m.tensors[k].numpy().view(np.uint64).ravel() for k in terms.summed] for m in reports]
    total: Flat = np.add.reduce(np.stack([np.concatenate(part) for part in parts]), axis=0, dtype=np.uint64)
    return total


def read_bytes(words: Mapping[str, Any]) -> dict[str, bytes]:
    """Hexadecimal by site; of anybody's writing."""
    try:
        return {str(k): bytes.fromhex(v) for k, v in words.items()}
    except (TypeError, ValueError):
        raise SumRefused("shares", "expected hexadecimal numbers.") from None


def ring_text(agreed: Agreement, run: str, site: str, key: bytes, signer: bytes) -> bytes:
    """What a site signs of its keys for shares and for signatures."""
    return "\0".join(("vitrail ring 2", agreed.hash, run, site, key.hex(), signer.hex())).encode()


def check_signed(site: str, signer: bytes, text: bytes, signature: bytes) -> None:
    """Refuse what was not signed with that site's key of this run."""
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, text)
    except (InvalidSignature, ValueError):
        what = "it did not sign this: the list, the round or the keys are others than it saw."
        raise SumRefused(site, what) from None
