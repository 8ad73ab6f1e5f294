"""One party on its own machine: from the study, its own table and its own places in the match to its side of the talk.

    own_rows -> offer_of (a guest) -> agree (all: the number in common and every guest's offer) -> make_host, make_guest

Nothing here looks at another party's table: what others know of a party is its offer and what `Terms` draw of it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.losses import CrossEntropy, Loss, SquaredError
from vitrail.core.optimizers import Adam, Optimizer
from vitrail.core.random import key
from vitrail.core.tensors import Params
from vitrail.data.encoding import Encoder, class_weights, columns, fit_encoders, typical_row
from vitrail.data.readers.cells import find_values
from vitrail.data.readers.tables import clean, place_columns
from vitrail.data.schema import TableSchema
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.study.model import Study
from vitrail.vertical.matching.ids import ParsedIds, look, tell
from vitrail.vertical.matching.match import Match
from vitrail.vertical.tables import described
from vitrail.vertical.training.guest import Everybody, Guest
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.knn import KnnGuest
from vitrail.vertical.training.logistic import Logistic
from vitrail.vertical.training.newton import Newton, curvature
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.split_network import SplitNetwork, features
from vitrail.vertical.training.terms import GuestOffer, Terms

STEPS, ALONE = 50, 20  # in which a guest learns, and the host by itself, where nothing else is said
FEWEST_SCORED = 10  # held-out rows
SECRET = "secret"  # of a guest: the file of its noise


def method_of(study: Study) -> Any:
    """Its hyperparameters (methods/vertical.py)."""
    return methods.build_party(study.method["name"], {k: v for k, v in study.method.items() if k != "name"})


@dataclass(frozen=True)
class OwnRows:
    """A party's table as it sees it alone."""

    party: str
    table: TableSchema  # what its columns are
    whole: pd.DataFrame  # features of all its rows, as `clean` gives them
    people: list[str]  # ids of all its rows, spelled as agreed
    labels: list[str]  # and as it writes them itself
    places: NDArray[np.int64]  # rows in common, in the order of the match
    outcome: NDArray[np.float64] | None = None  # of all rows, at the host; NaN where it is not known

    @cached_property
    def common(self) -> pd.DataFrame:
        return self.whole.iloc[self.places]

    @cached_property
    def known(self) -> list[str]:
        """Ids of the rows in common."""
        return [self.people[i] for i in self.places]


def own_rows(study: Study, party: str, frame: pd.DataFrame, match: Match) -> OwnRows:
    """A table that changed since the match, or that does not fit the study, is refused with its rows."""
    match.take({party: frame})
    seen = usable_ids(study, party, frame)
    table, target = described(study, party, frame), study.target
    at = place_columns(frame)[0].get(target.column)
    outcome = None
    if party == study.host:
        clean(frame, study)  # refuses outcomes that do not fit
        assert at is not None
        outcome = find_values(frame.iloc[:, at], target)
    whole = clean(frame.drop(columns=frame.columns[[] if at is None else [at]]), table, need_target=False)
    return OwnRows(party, table, whole, seen.spelled, seen.written, match.places[party], outcome)


def usable_ids(study: Study, party: str, frame: pd.DataFrame) -> ParsedIds:
    """The ids of this table; what is wrong with them is refused with its rows."""
    ids, findings = look(frame, study, party)
    if (wrong := tell(party, frame, findings)) or ids is None:
        raise VitrailError(f"the table of {party} cannot be used", wrong)
    return ids


def offer_of(study: Study, rows: OwnRows) -> GuestOffer:
    """What a guest says of itself before anything is trained."""
    party = study.parties[rows.party]
    wide = len(columns(rows.table)) + getattr(method_of(study), "bends", 0)
    return GuestOffer(rows.party, wide, party.answer, party.bits, party.noise)


def agree(study: Study, common: int, offers: Sequence[GuestOffer], seed: int) -> Terms:
    """The same at every end. Refuses what the rations do not allow, before anything crosses."""
    held, method = study.split.count(common), method_of(study)
    if problems := _fitting(study, method):
        raise VitrailError("the parties cannot train on these terms", problems)
    given: dict[str, Any] = {"seed": seed, "held_out": held / common}
    if method.joint == "neighbours":
        return Terms(common, tuple(offers), **given)
    draft = Terms(common, tuple(offers), batch=method.batch, **given)
    many, most = len(draft.batches), min(study.parties[o.name].ration.training for o in offers)
    steps = math.ceil(STEPS / many)
    epochs = method.epochs or max(1, min(max(2, steps), most - 1))
    alone = max(5, math.ceil(ALONE / many)) if method.alone is None else method.alone
    terms = Terms(common, tuple(offers), epochs=epochs, alone=alone, batch=method.batch, **given)
    for o in offers:
        if terms.asked > study.parties[o.name].ration.training:
            what = f"{o.name} allows {study.parties[o.name].ration.training} questions about each row in training, but "
            what += f"{epochs} epochs{' and one question more' * (terms.asked > epochs)} need {terms.asked}."
            hint = "Train for fewer epochs, or ask the guest for a larger ration."
            problems.append(Problem(f"parties.{o.name}.ration", what, hint))
    if problems:
        raise VitrailError("a ration is too small", problems)
    return terms


def scored(study: Study, terms: Terms) -> Tensor:
    """Held-out rows that guests are asked about once, to score: as many as half of each one's ration allows, by lot."""
    most = min(study.parties[o.name].ration.after // 2 for o in terms.offers)
    return terms.order[: min(len(terms.test), most)].sort().values


def _fitting(study: Study, method: Any) -> list[Problem]:
    problems, levels = [], len(study.target.levels)
    need = max(1, levels - 1)
    for name in study.guests if method.joint == "sum" else ():
        if (got := study.parties[name].answer) != need:
            what = f"scores are added up, so a guest must answer with {need} numbers for {levels} classes, got {got}."
            problems.append(Problem(f"parties.{name}.answer", what, f"Write answer = {need}."))
    for name in study.guests:
        if (after := study.parties[name].ration.after) < 2 * FEWEST_SCORED:
            what = (
                f"{name} allows questions about {after} rows after training, of which half serve to score the model; "
                "that is too few."
            )
            problems.append(Problem(f"parties.{name}.ration", what, f"Ask the guest for at least {2 * FEWEST_SCORED}."))
    if method.joint == "neighbours" and levels > 2:
        what = f"nearest neighbours need two classes or a number, but the target has {levels} classes."
        problems.append(Problem("method.name", what, "Use split."))
    return problems


class HostSide(NamedTuple):
    host: Host
    rows: OwnRows
    encoder: Encoder


class GuestSide(NamedTuple):
    guest: Guest
    rows: OwnRows
    encoder: Encoder
    seed: int  # of its bends
    bends: int

    def features(self, cleaned: pd.DataFrame) -> Tensor:
        """[row, column] that its model weighs."""
        return features(matrix(self.encoder, cleaned), self.bends, self.seed)

    def everybody(self, study: Study, newer: pd.DataFrame | None = None) -> Everybody:
        """All people of its table, or of its table as it is today, for blind questions."""
        whole, people = self.rows.whole, self.rows.people
        if newer is not None:
            people = usable_ids(study, self.rows.party, newer).spelled
            whole = clean(newer, self.rows.table, need_target=False)
        return lambda: (self.features(whole), people)


def matrix(encoder: Encoder, cleaned: pd.DataFrame) -> Tensor:
    return torch.from_numpy(encoder.matrix(cleaned)).float()


def encoder_of(rows: OwnRows, terms: Terms) -> Encoder:
    """Fitted to the party's own training rows, in the order of the match: whatever order its table has."""
    return fit_encoders({rows.party: rows.common.iloc[terms.train.numpy()]}, rows.table)[rows.party]


def groups_of(encoder: Encoder) -> list[list[int]]:
    """The encoded columns of each feature."""
    return [np.flatnonzero(encoder.layout.source == i).tolist() for i in range(len(encoder.table.features))]


def reference_of(rows: OwnRows, terms: Terms) -> pd.DataFrame:
    """The row that says "off": typical among the party's own training rows."""
    return typical_row(rows.common.iloc[terms.train.numpy()], rows.table)


def make_host(study: Study, rows: OwnRows, terms: Terms, offers: Sequence[GuestOffer] | None = None) -> HostSide:
    """`offers`: those of the terms; () makes the same model of the host's columns alone."""
    method, encoder = method_of(study), encoder_of(rows, terms)
    x, (y, w) = matrix(encoder, rows.common), outcomes(study, rows, terms)
    if offers is not None:
        terms = Terms(
            terms.rows, tuple(offers), terms.seed, terms.epochs, terms.alone, terms.least, terms.held_out
        )  # the same batches
    joint, start = joint_of(study, x.shape[1], terms)
    rule = Adam(getattr(method, "lr", 0.0), decay=study.training.weight_decay)
    return HostSide(Host(rows.party, terms, x, y, joint, start, rule, loss_of(study), w), rows, encoder)


def joint_of(study: Study, wide: int, terms: Terms) -> tuple[SplitNetwork | Logistic, Params]:
    """The model of so many columns of the host and the guests' answers, and its first weights."""
    method, number = method_of(study), study.target.kind == "number"
    outputs = 1 if number else len(study.target.levels)
    if method.joint == "network":
        net = SplitNetwork(wide, sum(o.answer for o in terms.offers), outputs, tuple(method.hidden))
        return net, net.init(terms.seed)
    weighs = len(terms.offers) if any(o.noise or o.bits for o in terms.offers) else 0
    line = Logistic(wide, max(1, outputs - 1), not number, weighs)
    return line, line.init()


def loss_of(study: Study) -> Loss:
    return SquaredError() if study.target.kind == "number" else CrossEntropy()


def outcomes(study: Study, rows: OwnRows, terms: Terms) -> tuple[Tensor, Tensor]:
    """y [row, output] and weights [row] of the rows in common; whose outcome is not known weighs nothing."""
    assert rows.outcome is not None
    target, values = study.target, rows.outcome[rows.places]
    present, train = ~np.isnan(values), terms.train.numpy()
    seen = values[train][present[train]]
    if len(np.unique(seen)) < 2:
        got = f"all {len(seen)} have the same outcome." if len(seen) else "none of them has an outcome."
        what = f"expected different outcomes among the {len(train)} common training rows; {got}"
        problem = Problem(f"{rows.party}, column {target.column}", what, "Agree on more rows or on another target.")
        raise VitrailError("there is nothing to learn", [problem])
    w = present.astype(np.float32)
    if target.kind == "number":
        y = np.where(present, (values - target.center) / target.scale, 0.0)[:, None]
        return torch.from_numpy(y).float(), torch.from_numpy(w)
    place = torch.from_numpy(np.where(present, values, 0).astype(np.int64))
    if study.training.class_weights == "inverse":
        w = w * class_weights(seen, len(target.levels))[place.numpy()].astype(np.float32)
    return nn.functional.one_hot(place, len(target.levels)).float(), torch.from_numpy(w)


def make_guest(study: Study, rows: OwnRows, terms: Terms, secret: bytes, ration: Path | None = None) -> GuestSide:
    """`secret`: from `keep_secret`; `ration`: the file in which it keeps what was asked of it."""
    method, encoder = method_of(study), encoder_of(rows, terms)
    offer = next(o for o in terms.offers if o.name == rows.party)
    bends, seed = getattr(method, "bends", 0), key(secret.hex(), "bends")
    made = features(matrix(encoder, rows.common), bends, seed)
    off = features(matrix(encoder, reference_of(rows, terms)), bends, seed)[0]
    if not bool((made[terms.train] != made[terms.train][:1]).any()):
        what = f"none of its columns varies over the {len(terms.train)} common training rows."
        problem = Problem(
            f"guest {rows.party}",
            what,
            "Nothing can be learned from this guest. Match other rows, or remove the guest.",
        )
        raise VitrailError("a guest's columns do not vary", [problem])
    left = ration_of(study, rows.party, terms, ration)
    rule: Optimizer = Adam(getattr(method, "guest_lr", 0.0), decay=study.training.weight_decay)
    if method.joint == "sum":
        bound = 1.0 if study.target.kind == "number" else 0.25
        rule = Newton(method.guest_lr, curvature(made[terms.train], bound))
    guest = Guest(offer, terms, made, rule, left, off, secret=secret, people=rows.known)
    return GuestSide(guest, rows, encoder, seed, bends)


def make_neighbour(study: Study, rows: OwnRows, terms: Terms, trust: str, ration: RationAccount) -> KnnGuest:
    """A guest of nearest neighbours, whose distances give its columns away."""
    encoder = encoder_of(rows, terms)
    off = matrix(encoder, reference_of(rows, terms))[0]
    return KnnGuest(rows.party, matrix(encoder, rows.common), terms.train, off, trust=trust, ration=ration)


def ration_of(study: Study, guest: str, terms: Terms, path: Path | None = None) -> RationAccount:
    ration = study.parties[guest].ration
    return RationAccount(guest, terms.rows, ration.training, ration.after, path)


def keep_secret(home: Path, drawn: bytes | None = None) -> bytes:
    """What a guest's noise is made of: from its file, which nobody else can read, or new. In a simulation `drawn`."""
    file = home / SECRET
    if file.exists():
        try:
            secret = bytes.fromhex(file.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            secret = b""
        if len(secret) != 32:
            what = "expected 64 hexadecimal digits."
            hint = "Restore it from a copy: with a new secret, earlier answers would reveal the noise."
            raise VitrailError("a guest's secret cannot be read", [Problem(str(file), what, hint)])
        return secret
    made = secrets.token_bytes(32) if drawn is None else drawn
    write_atomically(private_folder(home) / SECRET, made.hex() + "\n", private=True)
    return made
