"""A host and two guests in one process: every party has its own thread, and every word goes by bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import vitrail as vt
from tests.support.deploy.enrolment import ask
from vitrail.core.errors import VitrailError
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.coordinator.requests import Responses
from vitrail.deploy.identity import enrolment, party_keys
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.deploy.vertical.party import PartyEndpoint
from vitrail.deploy.vertical.relay import LetterRelay
from vitrail.deploy.vertical.session import PartyProgram, dealer_of

RUN = "0123456789abcdef"
SEED = 3


def study(**changes: Any) -> vt.Study:
    said: dict[str, Any] = {
        "name": "three houses",
        "target": {"column": "sick", "classes": ["no", "yes"], "positive": "yes"},
        "features": {"age": {"kind": "numeric"}, "sex": {"kind": "categorical", "categories": ["f", "m"]}},
        "parties": {
            "clinic": {"role": "host", "id": "patient"},
            "lab": {"role": "guest", "id": "pid", "ration": {"training": 9, "after": 900}},
            "insurer": {"role": "guest", "id": "number", "ration": {"training": 9, "after": 900}},
        },
        "match": {"at_least": 50},
        "method": {"name": "split", "epochs": 2, "alone": 1, "hidden": [4]},
    }
    return vt.Study.parse({**said, **changes})


def tables(n: int = 3600) -> dict[str, pd.DataFrame]:
    """Of which a part is in common, each in an order of its own."""
    draw = np.random.default_rng(4)
    ids = np.array([f"CH-{i:06d}" for i in range(n)])
    age, crp, claims = draw.integers(20, 90, n), draw.gamma(2, 5, n).round(3), draw.poisson(3, n)
    sick = np.where(0.05 * (age - 55) + 0.2 * (crp - 10) + 0.5 * (claims - 3) + draw.normal(0, 1, n) > 0, "yes", "no")
    clinic = pd.DataFrame({"patient": ids, "age": age, "sex": draw.choice(["f", "m"], n), "sick": sick})
    lab = pd.DataFrame({"pid": ids, "crp": crp, "blood": draw.choice(["A", "B", "O"], n)})
    insurer = pd.DataFrame({"number": ids, "claims": claims, "code": draw.integers(0, 5, n)})
    out = {"clinic": clinic.iloc[: n - 100], "lab": lab.iloc[50:], "insurer": insurer.iloc[: n - 30]}
    return {k: v.sample(frac=1, random_state=i).reset_index(drop=True) for i, (k, v) in enumerate(out.items())}


@cache
def papers(names: tuple[str, ...]) -> tuple[dict[str, dict[str, str]], dict[str, X25519PrivateKey]]:
    """Cards and keys of parties of these names, enrolled once for all tests of a process: RSA keys take long."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "study.toml"
        study(parties={name: study().parties[name].model_dump() for name in names}).save(file)
        folder = enrolment.invite(file, names, "localhost:8102", SEED)
        made = {party: ask(folder, party, Path(place) / party) for party in names}
        for request in made.values():
            enrolment.approve(folder, request.file)
        given = enrolment.load_coordinator(folder).sites
        return {p: given[p]["card"] for p in names}, {p: party_keys.sealing_key(r.kit) for p, r in made.items()}


class Houses:
    """All parties. `seen`: every byte that reaches or leaves the coordinator."""

    def __init__(self, folder: Path, agreed: vt.Study, frames: dict[str, pd.DataFrame], **given: Any) -> None:
        self.folder, self.study, self.frames, self.given = folder, agreed, frames, given
        given_cards, self.keys = papers(tuple(agreed.parties))
        self.pact = PartyAgreement(agreed, SEED, given_cards)
        self.seen = list[bytes]()
        self.events = list[tuple[str, dict[str, Any]]]()
        self.away = set[str]()
        self.consents = list[tuple[str, int, str]]()
        self.change: Callable[[str, Message], Message] | None = None  # what the coordinator does to a question
        self.parties = {name: self.party(name) for name in agreed.parties}

    def party(self, name: str) -> PartyEndpoint:
        home = self.folder / name
        ration = self.study.parties[name].ration
        told: dict[str, Any] = {"ration": (ration.training, ration.after), **self.given.get(name, {})}

        def consent(rows: int, mark: str, some: dict[Any, int]) -> None:
            self.consents.append((name, rows, mark))

        talk = PartyProgram(self.study, name, SEED, self.frames[name], home, **{"consent": consent, **told})
        return PartyEndpoint(name, self.pact, self.keys[name], home, Outbox(home), talk.run)

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        answers, trouble = {}, {}
        for name, question in questions.items():
            if name in self.away:
                trouble[name] = "it is not connected"
                continue
            asked = self.change(name, question) if self.change else question
            self.seen.append(asked.pack())
            try:
                said = self.parties[name].answer(unpack(asked.pack()))
            except VitrailError as error:
                said = Message("error", {"text": str(error)})
            self.seen.append(said.pack())
            answers[name] = unpack(said.pack())
        return Responses(answers, trouble)

    def present(self) -> set[str]:
        return set(self.parties) - self.away

    def log(self, event: str, **details: Any) -> None:
        self.events.append((event, details))

    def switch(self, deadline: float = 0.5, **more: Any) -> LetterRelay:
        return LetterRelay(self, self.pact, RUN, deadline, lambda told: dealer_of(self.study, SEED, told), **more)

    def connect(self, deadline: float = 0.5, **more: Any) -> LetterRelay:
        made = self.switch(deadline, **more)
        made.connect()
        return made

    def home(self, name: str) -> Path:
        return self.folder / name / RUN
