"""A site's side of a transfer: its own model, the losses of others' models here, and whether it stays.

Whoever may have any model judged finds out from its loss whether a person is among the rows. So a site judges models
once in a run; each must be signed for this run by another participant that this site accepted, none twice, and lie
within the bounds of weights. The coordinator can make none of these. A participant that works with the coordinator can
make one: therefore losses leave rounded by chance, as counts of tens of patients (privacy/score_rounding.py), unless
the study asks for exact ones. A site with fewer patients than FEWEST judges nothing.

HOME/RUN/transfer/LEG.said        what was answered
HOME/RUN/transfer/losses.json     exact losses of the others' models here
HOME/RUN/transfer/feedback.csv    how differently their models and this site's own use the columns
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.core.errors import MessageRefused, printable
from vitrail.core.random import key
from vitrail.core.text import several
from vitrail.data.encoding import SiteData, encode_sites
from vitrail.data.persons import count_persons
from vitrail.deploy.identity.participants import several_names
from vitrail.deploy.identity.site_identity import SiteIdentity, read_signed
from vitrail.deploy.protocol.answer_journal import answer_once
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.protocol.run_log import RunLog
from vitrail.deploy.protocol.score_plan import POINTS
from vitrail.deploy.protocol.weight_bounds import WeightBounds
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.transfer.shared import (
    BASELINE,
    CV,
    MODEL,
    TRANSFER,
    model_of,
    own_study,
    own_task,
    plain,
    signed_text,
    together,
    transfer_run,
)
from vitrail.metrics.scores import FEWEST, Floats
from vitrail.privacy.score_rounding import LARGEST_LOSS, WIDEST, has_enough_patients, rounded
from vitrail.runs.backbone_features import as_rows
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.storage.journal import AnswerJournal
from vitrail.studies.folds import folds_of
from vitrail.studies.own_models import FEEDBACK, feedback_of, loss_weights, mean_loss, model_losses, train_alone
from vitrail.studies.transfer import chosen
from vitrail.study.model import Study
from vitrail.study.remote import TransferSpec

if TYPE_CHECKING:
    from vitrail.deploy.site.site import Site

PLACE, LOSSES, FEEDBACK_FILE = "transfer", "losses.json", "feedback.csv"


class TransferSite:
    """In the run at hand."""

    def __init__(self, site: Site) -> None:
        self.site, self.agreed, self.home = site, site.agreed, site.home / PLACE
        self.journal = AnswerJournal(self.home, TRANSFER)

    @cached_property
    def terms(self) -> TransferSpec:
        assert self.agreed.study.transfer is not None
        return self.agreed.study.transfer

    @cached_property
    def study(self) -> Study:
        return own_study(self.agreed)

    @cached_property
    def secret(self) -> str:
        return draws_of(self.site.base, transfer_run(self.site.home.name))

    def answer(self, asked: Message) -> Message:
        leg = asked.words["leg"]
        if not self.takes_part:
            if self.site.publishes:
                need = several(self.fewest, self.study.unit_word)
                self.site.notices.append(f"No part in the transfer: this site has fewer than {need} to train on.")
            return Message("refused", {})
        return answer_once(self.home / f"{leg}.said", asked, TRANSFER, lambda: getattr(self, f"_{leg}")(asked))

    @property
    def takes_part(self) -> bool:
        """Whether its model travels: it publishes, and has the patients for that."""
        site = self.site
        rows = site.rows.iloc[site.splits[site.name][0]]
        return site.publishes and count_persons(rows, self.study) >= self.fewest

    @property
    def fewest(self) -> int:
        return max(FEWEST, self.terms.folds)

    def check_stayed(self, kind: str = "round") -> None:
        """Before each question of the training: whether this site stayed. Who takes no part in the transfer trains all
        the same, where all train."""
        if self.agreed.study.transfer is None or kind not in ("round", "deal", "settle"):
            return
        answered = self.journal.answered("subset")
        stays = unpack(answered).words["stays"] if answered else not self.terms.user and not self.takes_part
        if not stays:
            why = "withdrew or was not chosen" if answered else "was not told who would train together"
            raise MessageRefused(TRANSFER, f"this site {why}, so it does not train in this run.", "Nothing was sent.")

    def _model(self, asked: Message) -> Message:
        site, name = self.site, self.site.name
        scale = {name: site.data.encoder} if self.agreed.shared_scale and site.data else None
        parts = folds_of({name: site.frame}, self.study, self.agreed.seed, self.terms.folds, {name: self.secret}, scale)
        own = train_alone(self.study, self._data(), parts, self.agreed.seed, secrets={name: self.secret})
        model = {f"{MODEL}/{k}": v[0] for k, v in own.params.items()}
        cv, baseline = (torch.tensor(v, dtype=torch.float64) for v in (own.cv[name].value, own.same[name]))
        words = self._proof.signed(signed_text(self.agreed, site.home.name, name, model, cv))
        return Message(TRANSFER, words, {**model, CV: cv, BASELINE: baseline})

    def _judge(self, asked: Message) -> Message:
        if (mine := self.journal.answered("model")) is None:
            raise MessageRefused(TRANSFER, "this site judges no models before its own has left.", "Nothing was sent.")
        models, cvs = asked.words["models"], asked.tensors["cv_losses"]
        for at, (name, signed) in enumerate(models.items()):
            self._check(name, signed, model_of(asked.tensors, at), cvs[at])
        task, others = own_task(self.agreed), plain(model_of(asked.tensors))
        (user,) = as_rows(self._data(), task.net)
        weights = loss_weights(self.study, user)
        rows = model_losses(self.study, task, others, user.train_x, user.train_y)
        exact = [mean_loss(one, weights) for one in rows]
        private_folder(self.home)
        about = zip(models, exact, cvs.tolist(), strict=True)
        content = {n: {"loss": m.value, "error": m.error, "cv_loss": cv} for n, m, cv in about}
        write_atomically(self.home / LOSSES, json.dumps(content, indent=1), private=True)
        if not self.study.images:
            own = plain(model_of(unpack(mine).tensors))
            params = {k: torch.cat([own[k][None], v]) for k, v in others.items()}
            used = pd.DataFrame(feedback_of(self.study, task, params, user, [user.name, *models]), columns=FEEDBACK)
            write_atomically(self.home / FEEDBACK_FILE, to_csv(used), private=True)
        losses = [m.value if math.isfinite(m.value) else math.nan for m in exact]
        if self.terms.losses != "exact":
            losses = self._rounded(rows, weights, user, [*models])
        return Message(TRANSFER, {}, {"losses": torch.tensor(losses, dtype=torch.float64)})

    def _check(self, name: str, signed: Any, model: Mapping[str, Tensor], cv: Tensor) -> None:
        """Whether that participant made this model for this run, and no unit of it is crafted."""
        if name in (self.site.name, self.study.protect.second):
            raise MessageRefused(f"the model of {name}", "expected the model of another site.", "Nothing was sent.")
        letter = read_signed(signed, name)
        text = signed_text(self.agreed, self.site.home.name, name, model, cv)
        self._proof.check(name, letter.certificate, text, letter.signature)
        if problems := WeightBounds(self.agreed, own_task(self.agreed).start).travelling_problems(plain(model)):
            raise MessageRefused(problems=[p._replace(where=f"the model of {name}, {p.where}") for p in problems])

    def _rounded(self, rows: Floats, weights: Floats, user: SiteData, names: Sequence[str]) -> list[float]:
        """As log losses and mean squares are rounded among scores (privacy/score_rounding.py). A patient with several
        rows, or of a class that weighs more, is one."""
        number = self.study.target.kind == "number"
        largest = (WIDEST * self.study.target.scale) ** 2 if number else LARGEST_LOSS
        people = weights if user.train_persons is None else np.bincount(user.train_persons, weights)
        count = float(weights.sum() / people.max())  # one patient is at most one part in so many
        many, unit = (count, largest) if number else (count / largest, 1.0)
        of = math.ceil(len(names) / POINTS)
        if not has_enough_patients(many, of):
            return [math.nan] * len(names)
        means = [mean_loss(one.clip(max=largest), weights).value / unit for one in rows]
        lots = [key(self.secret, TRANSFER, "losses", n) / 2.0**63 for n in names]
        pairs = zip(means, lots, strict=True)
        return [rounded(v * many, many, c, of) / many * unit if math.isfinite(v) else math.nan for v, c in pairs]

    def _subset(self, asked: Message) -> Message:
        site, words = self.site, asked.words
        subsets, group = self._read(words["subsets"], words["together"])
        judged, mine = self.journal.answered("judge"), subsets.get(site.name, [])
        if judged is not None and mine:
            content = json.loads((self.home / LOSSES).read_text())
            losses = zip(content.items(), unpack(judged).tensors["losses"].tolist(), strict=True)
            wanted = chosen({n: loss - other["cv_loss"] for (n, other), loss in losses}, self.terms.rule)
            if mine != wanted:
                what = f"expected {wanted} for this site, which follows from its losses, got {mine}."
                raise MessageRefused("subsets", what, "Nothing was sent.")
        stays = site.name in group and site.decides(group)
        out = f"Chosen for {site.name}: {several_names(mine) or 'nobody'}. "
        out += f"{several(len(group), 'site')} would train together: {several_names(group)}. This site "
        out += "stays." if stays else "withdraws." if site.name in group else "was not chosen."
        site.notices.append(out if stays else f"{out} It does not train in this run.")
        if not stays:
            RunLog.end(site.home)
        return Message(TRANSFER, {"stays": stays})

    def _read(self, subsets: Any, group: Any) -> tuple[dict[str, list[str]], list[str]]:
        """From words that anybody may have written."""
        names = {n for n in self._proof.roster if n != self.study.protect.second}

        def well(listed: Any) -> bool:
            return isinstance(listed, list) and all(isinstance(n, str) and n in names for n in listed)

        if not well(group) or not well([*subsets]) or not all(well(s) and u not in s for u, s in subsets.items()):
            raise MessageRefused("subsets", "expected lists of participants.", "Nothing was sent.")
        if self.terms.user and sorted(group) != together(self.terms.user, subsets, ()):
            what = f"expected {self.terms.user} with those chosen for it, got {printable(str(group))[:200]}."
            raise MessageRefused("subsets", what, "Nothing was sent.")
        return subsets, sorted(group)

    def _data(self) -> list[SiteData]:
        """Its rows as it trains alone: by its own scale, or by the run's."""
        site = self.site
        scale = site.data.encoder if self.agreed.shared_scale and site.data else None
        return encode_sites({site.name: site.rows}, self.study, site.splits, scale)

    @property
    def _proof(self) -> SiteIdentity:
        if self.site.proof is None:
            raise MessageRefused(TRANSFER, "this site has no key to sign its model with.", "Nothing was sent.")
        return self.site.proof
