"""Masked reports by message: what both ends know of them. The legs of a sum:

ring     once a run: each site's key for sealed shares and its key for signatures in this run, signed by the key that it
         enrolled with
keys     a key for this one sum, signed, and sealed shares for the others; or with the opening of the sum before
(round)  the question of the round with the others' keys; the report under masks, and a signature under the list
open     who reported, with their signatures under the list; each site's shares, so that the sum opens although somebody
         fell silent
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from torch import Tensor

from vitrail.core.errors import SumRefused
from vitrail.deploy.protocol.score_plan import report_spec
from vitrail.engine.rounds import coordinator_keys
from vitrail.privacy.secure_sum.dropout_tolerant import SumKeys
from vitrail.privacy.secure_sum.fixed_point import LIMIT, ZERO, fewest_of
from vitrail.privacy.secure_sum.groups import groups_of
from vitrail.privacy.secure_sum.pairwise import SumSpec, Values

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

Where = tuple[int, int, int]  # stage, round, place of the exchange in its stage
WORDS: dict[str, dict[str, Any]] = {  # of a leg's question, beside run and leg
    "ring": {},
    "keys": {"stage": int, "round": int, "place": int, "names": list, "ring": dict},
    "open": {"stage": int, "round": int, "place": int, "said": list, "lists": dict, "sealed": dict, "next": dict},
}
TOLD: dict[str, dict[str, Any]] = {  # of its answer
    "ring": {"key": str, "signer": str, "signature": str, "certificate": str},
    "keys": {"key": str, "mark": str, "signature": str, "sealed": dict},
    "open": {"shares": dict, "next": dict},
}
SIGNED: dict[str, Any] = {"list": str}  # with a report, beside where it belongs


def grouped(agreed: Agreement, where: Where, invited: Sequence[str]) -> dict[str, list[str]]:
    """Which of all who were invited add their reports of that exchange up together; by a short name, which is "" where
    that is everybody. Both ends work it out: nobody is put into a group at will."""
    if agreed.contracts[where[0]][where[2]].read != "groups":
        return {"": list(invited)}
    places = groups_of(coordinator_keys(agreed.seed, invited), agreed.study.protect.least).tolist()
    out = dict[str, list[str]]()
    for name, place in sorted(zip(invited, places, strict=True), key=lambda pair: pair[1]):
        out.setdefault(f"group {place}", []).append(name)
    return out


def terms_of(agreed: Agreement, run: str, where: Where, group: str = "", members: int = 0) -> SumSpec:
    """Of that exchange of that round, in that run, of that group of so many; of all sites without one."""
    shapes = {k: shape for k, (shape, _) in report_spec(agreed, *where).items() if k != ZERO}
    fewest = fewest_of(members, agreed.study.protect.least) if group else agreed.fewest
    about = f"{agreed.hash} {run} {' '.join(map(str, where))}" + (f" {group}" if group else "")
    return SumSpec(about, shapes, dict.fromkeys(shapes, LIMIT), agreed.sites, fewest)


def told_digest(agreed: Agreement, where: Where, told: Mapping[str, Tensor]) -> str:
    """Of what all sites are told alike in that exchange; "" where each is told something of its own."""
    if not agreed.alike(where[0], where[2]) or not agreed.contracts[where[0]][where[2]].down:
        return ""
    mark = hashlib.sha256()
    for name in sorted(agreed.contracts[where[0]][where[2]].down):
        mark.update(name.encode() + b"\0" + told[name].detach().cpu().contiguous().numpy().tobytes())
    return mark.hexdigest()


def to_values(terms: SumSpec, up: Mapping[str, Tensor]) -> Values:
    """A report as it is summed: beside what may be no number, where it is none."""
    out = dict[str, Any]()
    for name, tensor in up.items():
        found = tensor.detach().cpu().double().numpy()
        if f"{name}?" in terms.shapes:
            fine = np.abs(found) <= LIMIT  # false for what is no number
            out[f"{name}?"], found = (~fine).astype(np.float64), np.where(fine, found, 0.0)
        out[name] = found
    return {k: np.asarray(out[k], dtype=np.float64) for k in terms.shapes if k in out}


def to_tensors(total: Values, up: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Tensor]:
    """What a sum came to, as the method's own report has it."""
    out = {}
    for name, (_, kind) in up.items():
        none = total.get(f"{name}?")
        found = total[name] if none is None else np.where(none > 0, np.nan, total[name])
        out[name] = torch.as_tensor(found).to(kind)
    return out


def read_drawn(said: Any) -> SumKeys:
    """What a site drew for a sum; of anybody's writing."""
    try:
        key, mark, signature = (bytes.fromhex(said[k]) for k in ("key", "mark", "signature"))
        sealed = {str(n): bytes.fromhex(v) for n, v in said.get("sealed", {}).items()}
        if len(key) != 32 or len(mark) != 32:
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SumRefused("keys", "expected a key of 32 bytes, a mark and a signature.") from None
    return SumKeys(key, mark, signature, sealed)


def drawn_words(drawn: SumKeys, sealed: bool = True) -> dict[str, Any]:
    out: dict[str, Any] = {k: getattr(drawn, k).hex() for k in ("key", "mark", "signature")}
    return out | ({"sealed": {n: v.hex() for n, v in drawn.sealed.items()}} if sealed else {})


def read_bytes(said: Mapping[str, Any]) -> dict[str, bytes]:
    """Hexadecimal by site; of anybody's writing."""
    try:
        return {str(k): bytes.fromhex(v) for k, v in said.items()}
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
