"""Sites on one machine whose reports cross under masks, for tests of secure sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file

import vitrail as vt
from tests.support.deploy.federation import Here, drawn
from tests.support.deploy.proofs import prove
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
FRAMES = heart_disease()
NAMES = list(FRAMES)
CLOSE = {"rtol": 0, "atol": 1e-6}


@cache
def agreement(method: str = "fedavg", rounds: int = 3, sites: int = 4, **protect: Any) -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml"))
    changed = study.with_changes(
        training={"rounds": rounds}, screen={"ask": False}, protect={"sum": "masked", "scores": "exact", **protect}
    )
    return Agreement.of(resolve(changed, method, None)[0], None, sites)


class Masked(Here):
    """`away(site, question)`: who is not there for it. Keeps all that sites said."""

    def __init__(self, root: Path, agreed: Agreement, frames: dict[str, pd.DataFrame] = FRAMES) -> None:
        self.root, self.agreed, self.frames = root, agreed, frames
        super().__init__({n: self.fresh(n) for n in frames})
        self.away: Callable[[str, Message], bool] = lambda name, question: False
        self.said = list[tuple[str, Message, Message]]()

    def fresh(self, name: str) -> Site:
        proof = prove(name, list(self.frames), self.root / "sites" / name)
        return Site(name, self.frames[name], self.agreed, self.root / "sites" / name, True, proof)

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        here = {n: q for n, q in questions.items() if not self.away(n, q)}
        heard = super().ask(here, deadline)
        self.said += [(n, questions[n], said) for n, said in heard.answers.items()]
        return Responses(
            heard.answers, heard.trouble | dict.fromkeys(questions.keys() - here.keys(), "it is not connected")
        )

    def through_doors(self) -> None:
        """What a site refuses is an answer from now on, as at its door: who refuses three times is set aside."""
        for site in self.sites.values():
            site.answer = partial(_as_at_the_door, site)  # type: ignore[method-assign]

    def conduct(self, quorum: int = 3, deadline: float = 0.01) -> vt.Run:
        folder = Folder(self.root / "run", resume=(self.root / "run").exists(), about=".lock")
        try:
            call = SiteRequests(self, self.agreed, list(self.sites), RUN, quorum, deadline)
            return conduct(call, folder, resume=True)
        finally:
            folder.close()

    def near(self, plain: bool = False, **given: Any) -> vt.Run:
        study = self.agreed.study.with_changes(protect={"sum": "plain"}) if plain else self.agreed.study
        own = drawn(self.root / "sites", self.frames, RUN)
        return vt.federate(study, self.frames, engine="looped", secrets=own, **given)

    def model(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.root / "sites" / name / RUN / "model.safetensors")


def _as_at_the_door(site: Site, asked: Message) -> Message:
    try:
        return Site.answer(site, asked)
    except VitrailError as error:
        return Message("error", {"text": "; ".join(p.what for p in error.problems)})


class KilledError(Exception):
    """The coordinator is killed."""


def asked_of(way: Masked, leg: str, round_: int) -> dict[str, Message]:
    return {
        n: asked
        for n, asked, _ in way.said
        if asked.words.get("leg", asked.kind) == leg and asked.words["round"] == round_
    }
