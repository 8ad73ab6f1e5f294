"""Adult census rows at a host and a guest, for the vertical benchmarks: the twelve columns of the paper."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.optimizers import Adam
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.logistic import Logistic
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.split_network import SplitNetwork, features
from vitrail.vertical.training.terms import FEWEST, GuestOffer, Terms

NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
COLUMNS = (
    "age", "country", "education_num", "marital_status", "relationship", "race", "sex",
    "capital_gain", "capital_loss", "workclass", "occupation", "hours_per_week",
)  # fmt: skip
GUEST = {3: COLUMNS[9:], 5: COLUMNS[7:]}
USUAL: dict[str, Any] = GuestOffer._field_defaults
SPLIT: dict[str, Any] = {"epochs": 2, "alone": 5, "lr": 0.01}
LOGISTIC: dict[str, Any] = {"epochs": 2, "alone": 5, "lr": 0.05}
GUEST_LR = 0.03
HIDDEN = (64,)


class Rows(NamedTuple):
    x: Tensor  # [row, encoded column]
    y: Tensor  # [row]: 1 above 50K
    groups: dict[str, list[int]]  # encoded columns of each feature
    frame: Any

    def of(self, names: tuple[str, ...]) -> Tensor:
        return self.x[:, [c for n in names for c in self.groups[n]]]


def rows(train: Tensor) -> Rows:
    """Numbers standardised by the training rows; a column for each category, missing being one."""
    frame = vt.datasets.adult()
    parts, groups, at = [], {}, 0
    for name in COLUMNS:
        if name in NUMBERS:
            v = torch.tensor(frame[name].to_numpy(float))
            part = ((v - v[train].mean()) / v[train].std())[:, None]
        else:
            codes = frame[name].astype("category").cat.codes.to_numpy().astype(np.int64)
            part = torch.nn.functional.one_hot(torch.tensor(codes - codes.min())).double()
        parts.append(part)
        groups[name] = list(range(at, at + part.shape[1]))
        at += part.shape[1]
    y = torch.tensor((frame["target"].str.strip() == ">50K").to_numpy().astype(np.int64))
    return Rows(torch.cat(parts, 1).float(), y, groups, frame)


def reference(x: Tensor, groups: list[list[int]]) -> Tensor:
    """The median of each number, the commonest category of each feature."""
    out = x.new_zeros(x.shape[1])
    for columns in groups:
        part = x[:, columns]
        if len(columns) == 1:
            out[columns] = part.median(0).values
        else:
            out[columns[int(part.sum(0).argmax())]] = 1
    return out


def shifted(groups: dict[str, list[int]], names: tuple[str, ...]) -> list[list[int]]:
    """The places of these features' columns, counted within these features."""
    out, at = [], 0
    for n in names:
        out.append(list(range(at, at + len(groups[n]))))
        at += len(groups[n])
    return out


def parties(
    count: int, seed: int, kind: str = "split", answer: int = 1, bits: int = USUAL["bits"],
    noise: float = USUAL["noise"], bends: int = 0, epochs: int = SPLIT["epochs"], alone: int = SPLIT["alone"],
    lr: float = SPLIT["lr"], protect: bool = True, batch: int = FEWEST,
) -> tuple[Dialogue, Rows]:  # fmt: skip
    """Host, and a guest of so many columns."""
    n = len(vt.datasets.adult())
    data = rows(Terms(n, (), seed=seed).train)
    own, theirs = data.of(tuple(c for c in COLUMNS if c not in GUEST[count])), data.of(GUEST[count])
    a = features(theirs, bends, seed + 1000)
    offer = GuestOffer("registry", a.shape[1], answer, bits, noise)
    terms = Terms(n, (offer,), seed=seed, epochs=epochs, alone=alone, batch=batch, protect=protect)
    joint: Any = (
        SplitNetwork(own.shape[1], answer, 2, HIDDEN)
        if kind == "split"
        else Logistic(own.shape[1], weighs=int(noise > 0))
    )
    start = joint.init(seed) if kind == "split" else joint.init()
    y = torch.nn.functional.one_hot(data.y, 2).float()
    host = Host("bank", terms, own, y, joint, start, Adam(lr))
    off = features(reference(theirs[terms.train], shifted(data.groups, GUEST[count]))[None], bends, seed + 1000)[0]
    guest = Guest(
        offer,
        terms,
        a,
        Adam(max(lr, GUEST_LR)),
        RationAccount("registry", n, terms.asked, 4 * n),
        off,
        secret=bytes([seed]),
    )
    return Dialogue(host, [guest]), data
