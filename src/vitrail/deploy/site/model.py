"""What stays with a site after a run: its own model, to predict with and to look behind; and how a site leaves."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import safe_open
from safetensors.torch import load_file

from vitrail.analysis.images.gallery import Album
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import flatten
from vitrail.data.encoding import Encoder
from vitrail.deploy.identity.enrolment import LEFT
from vitrail.deploy.identity.enrolment_records import Kit
from vitrail.deploy.identity.party_keys import SEALING
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.site import BEHIND, POOLED, ROWS
from vitrail.deploy.verdicts.site import FOUND
from vitrail.quality.repair.inspection import SiteInspection
from vitrail.report.sections.scores.own_verdict import one_site
from vitrail.runs.plan import Plan
from vitrail.runs.result import Model
from vitrail.runs.site.inspection import SiteBriefing, look_at, look_through, unknown, with_answers
from vitrail.runs.store import FINAL, FINAL_ENCODER
from vitrail.storage.atomic_files import hold, write_atomically
from vitrail.study.known_findings import KnownFinding


@dataclass(frozen=True)
class SiteModel:
    """A site's model of one run, with its scale."""

    site: str
    run: str
    model: Model
    behind: SiteBriefing | None = None  # what the coordinator said about this site at the end
    rows: str | None = None  # the fingerprint of the rows it trained on
    verdict: dict[str, Any] | None = (
        None  # whether joining is worth it here, where the study asks (deploy/verdicts/site.py)
    )
    final: Model | None = (
        None  # trained on all rows, where the study asks (deploy/verdicts/site.py): used, and never scored
    )

    @property
    def used(self) -> Model:
        """The model for new rows."""
        return self.final or self.model

    @property
    def sights(self) -> bool:
        """Whether there is anything to look at: pictures, or what the coordinator said about this site."""
        return self.model.study.images is not None or self.behind is not None

    @property
    def joining(self) -> dict[str, Any] | None:
        """Whether joining is worth it here, for this site's own page."""
        return one_site(self.site, self.model.study, self.verdict)

    def look(
        self,
        frame: pd.DataFrame,
        features: Sequence[str] = (),
        pictures: Sequence[str] = (),
        without: Sequence[str] = (),
        answers: Sequence[KnownFinding] = (),
    ) -> SiteInspection | Album:
        """What was found about this site, with its own rows behind it; or what its model says of its pictures, and
        what it says `without` some prototypes."""
        if not self.sights:
            what = (
                "the coordinator has sent no results about this site: it did not screen the sites, or the run "
                "has not ended."
            )
            raise VitrailError("there are no results to inspect", [Problem(f"run {self.run}", what)])
        if problems := unknown(self.model.study, features, pictures, without):
            raise VitrailError("cannot look", problems)
        if self.model.study.images:
            return look_through(self.site, frame, self.model, self.rows, pictures, without)
        assert self.behind is not None
        briefing = with_answers(self.behind, answers, self.model.study)
        return look_at(self.site, frame, self.model, briefing, features, self.rows)


def load_model(kit: Kit, run: str | None = None) -> SiteModel:
    """The model of that run, or of the one that ended last."""
    models = kit.home.glob("*/model.safetensors")
    ended = {p.parent.name: p for p in models if re.fullmatch(r"[0-9a-f]{16}", p.parent.name)}
    if run is not None and run not in ended:
        available = f"Runs with a model: {', '.join(sorted(ended))}." if ended else "No run has ended here yet."
        raise VitrailError(
            "there is no model", [Problem(f"run {run}", f"{kit.home} has no model of this run.", available)]
        )
    if not ended:
        what = "no run has ended here yet, so this site has no model."
        hint = f"Take part first: vitrail join {kit.folder} --data FILE. The model is written after the last round."
        raise VitrailError("there is no model", [Problem(str(kit.home), what, hint)])
    run = run or max(ended, key=lambda name: ended[name].stat().st_mtime_ns)
    study, place = kit.study, ended[run]
    model, scale = load_file(place), json.loads((place.parent / "encoder.json").read_text(encoding="utf-8"))
    method = study.build_method()
    shape = {k: v.shape[1:] for k, v in flatten(Plan(study, method, kit.seed).settled)}
    if shape != {k: v.shape for k, v in model.items()}:
        what, hint = (
            "this model belongs to a different study or method than the kit.",
            "Use the kit with which the site joined that run.",
        )
        raise VitrailError("the model does not fit", [Problem(str(place), what, hint)])
    mine = Model(study, method, kit.seed, model, Encoder.of(study, scale))
    seen = place.with_name(ROWS)
    verdict = json.loads(verdict_file.read_text()) if (verdict_file := place.with_name(FOUND)).exists() else None
    own = SiteModel(kit.site, run, mine, rows=seen.read_text().strip() if seen.exists() else None, verdict=verdict)
    if (last := place.with_name(FINAL)).exists():
        encoder = Encoder.of(study, json.loads(place.with_name(FINAL_ENCODER).read_text(encoding="utf-8")))
        own = replace(own, final=mine._replace(tensors=load_file(last), encoder=encoder))
    return _told(own, Agreement.of(study, kit.seed, kit.participants.roster or len(kit.sites)), place.parent / BEHIND)


def _told(mine: SiteModel, agreed: Agreement, place: Path) -> SiteModel:
    """With what came at the end, where it did."""
    if not place.exists():
        return mine
    with safe_open(place, "pt") as file:
        briefing = json.loads(file.metadata()["told"])
    layers = {k.removeprefix("others/"): v for k, v in load_file(place).items()}
    beside = place.with_name(POOLED)
    pooled = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    behind = SiteBriefing(agreed.findings(briefing, mine.site), layers, briefing["others"], pooled=pooled)
    return replace(mine, behind=behind, rows=briefing["fingerprint"])


def leave(folder: Path, home: Path) -> None:
    """No more taking part with this kit: it says so, and its key and certificate are gone. The site's home stays."""
    with contextlib.suppress(FileNotFoundError), (home / ".lock").open("r+") as lock:
        if not hold(lock):
            what, hint = "`vitrail join` is running with this kit.", "Stop it before you leave."
            raise VitrailError("the site is taking part at the moment", [Problem(str(folder), what, hint)])
    if not has_left(folder):
        write_atomically(folder / LEFT, datetime.now().astimezone().isoformat(timespec="seconds") + "\n")
    for secret in ("key.pem", "certificate.pem", SEALING):
        (folder / secret).unlink(missing_ok=True)
    shutil.rmtree(folder / "flare", ignore_errors=True)  # it holds copies of both
    if (folder / "flare").exists():
        what = "this folder cannot be deleted, and it holds a copy of the site's key."
        raise VitrailError(
            "the site left, but some of its files remain", [Problem(str(folder / "flare"), what, "Delete it by hand.")]
        )


def has_left(folder: Path) -> str:
    """When the site left with this kit; empty where it has not."""
    try:
        return (folder / LEFT).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def check_not_left(folder: Path) -> None:
    """Before a site joins."""
    if when := has_left(folder):
        what, hint = (
            f"this site left the study on {when}.",
            "To take part again, ask the coordinator to invite this site under another name.",
        )
        raise VitrailError("this kit cannot join", [Problem(str(folder), what, hint)])
