"""One run: personalised models and honest scores, in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.explanations.rows import Explanation
from vitrail.analysis.selective_prediction import coverage, uncertainty
from vitrail.analysis.trust import Trust, read_trust
from vitrail.core.display import Plottable
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.facts import OWN, SHARE, TRUST, Facts, find_value
from vitrail.core.losses import UncertaintyLoss
from vitrail.core.task import Task
from vitrail.core.tensors import Params, map_tensors
from vitrail.data.encoding import Encoder
from vitrail.data.readers.source import tell
from vitrail.data.readers.tables import clean
from vitrail.engine.contract import WireEntry
from vitrail.methods import AnyMethod
from vitrail.metrics.holdout_summary import HeldOutAnswers, HoldOutSummary
from vitrail.metrics.recalibration import placed
from vitrail.metrics.survival import end_words
from vitrail.quality.checks.out_of_range import OUTSIDE, empty_unknown, find_strange
from vitrail.quality.screening.result import Findings, Screening
from vitrail.runs.folder import Folder, restore_like, site_folder
from vitrail.runs.plan import Plan, with_facts
from vitrail.runs.setup import COVERAGE, MAJORITY, loss_of, with_ends
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.runs.refit import Final

# split: test or train, of the site's own model; test:NAME of a model carried beside it
# coverage: what the doubt of the site's own model is worth on the hold-out rows
HISTORY = ["stage", "round", "site", "split", "metric", "value"]
ALL_SITES = "(all sites)"  # in HISTORY: a mean over all sites' patients, where single sites tell nothing in training
SHIFTS = ["site", "feature", "layer", "value", "flagged_paper"]
DEPLOYED = "deployed"  # the engine of a run between machines
FOLDED = "folds"  # in what a run says of itself: how many folds came after it, and what crossed in them, by site
REFITTED = "refit"  # in what a run says of itself: what crossed in the training on all rows, by site
CLASS_SHARES = "class_shares"  # in what a run says of itself: the share of each class, by site; not in older runs
SHOWN = "shown"  # in what a run says of itself: sites' own verdicts, by site, of those who show theirs
UNSURE = "unsure"  # the column beside those of the classes


class Model(NamedTuple):
    """A site's own, at the end of a run."""

    study: Study
    method: AnyMethod
    seed: int
    tensors: dict[str, Tensor]  # its settled state
    encoder: Encoder
    keep: str = ""  # the model beside its own that it predicts with instead (core/facts.py; runs/site/local_model.py)
    double: bool = False  # in double precision, where a row's answer must not depend on the rows beside it

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """On raw rows: a probability for each class and how unsure the model is; a number; or of an event the risk
        until the horizon, and the chance to be free of it at the end of each interval."""
        # the target is not looked at, so that rows without one are predicted too
        unknown = frame.drop(columns=self.study.target.column, errors="ignore")
        rows, target = clean(unknown, self.study, need_target=False), self.study.target
        task, z = self.scores(rows)
        answers = task.loss.predictions(z)
        if target.kind == "number":
            return pd.DataFrame(
                {target.column: answers[:, 0].double() * target.scale + target.center}, index=rows.index
            )
        if target.kind == "time":
            ends = end_words(target.ends, target.unit)
            free = {f"free of {target.column} at {end}": answers[:, k].double() for k, end in enumerate(ends)}
            risk = {f"risk of {target.column} by {ends[-1]}": 1 - answers[:, -1].double()}
            return pd.DataFrame(risk | free, index=rows.index)
        table = pd.DataFrame(answers.numpy(), index=rows.index, columns=list(target.levels))
        if isinstance(task.loss, UncertaintyLoss):
            return table.assign(**{self.unsure: task.loss.uncertainty(z).numpy()})
        return table

    def predict_marked(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """Predictions with a column that names each row's columns outside what the study agreed on, and what to say of
        them; a category that the study does not name is read as missing. Pictures have no such column."""
        answers = self.predict(empty_unknown(frame, self.study))
        if self.study.images:
            return answers, []
        strange, name = find_strange(frame, self.study), OUTSIDE
        while name in answers:
            name += "_"
        notes = list[str]()
        if strange.rows:
            many = f"{strange.rows} of {len(frame)} rows have values outside what the study agreed on"
            notes = [
                f"{many}; the column {name!r} says which. Do not rely on the predictions for these rows.",
                *strange.notes,
            ]
        return answers.assign(**{name: strange.columns.to_numpy()}), notes

    @property
    def unsure(self) -> str:
        """The column that says how unsure the model is; none of the classes' columns has its name."""
        name = UNSURE
        while name in self.study.target.levels:
            name += "_"
        return name

    @property
    def note(self) -> str:
        """What that column means; nothing where there is none."""
        loss = self.method.training_loss(loss_of(self.study))
        text = f"{self.unsure}: from 0 (sure) to 1 (knows nothing): "
        return f"{text}{loss.uncertainty_means}." if isinstance(loss, UncertaintyLoss) else ""

    def scores(self, rows: pd.DataFrame) -> tuple[Task, Tensor]:
        """[row, output] for rows that `clean` gave, and the task whose loss says what they mean."""
        task, scorer = self.scorer()
        x = torch.from_numpy(self.encoder.matrix(rows))
        return task, scorer(x if self.study.images else x.double() if self.double else x.float())

    def scorer(self) -> tuple[Task, Callable[[Tensor], Tensor]]:
        """The task, and what gives the scores of rows in the form that the network takes."""
        plan = self.plan
        task, state = plan.task, self._state(plan)
        constant = self.encoder.constants.get(self.keep or OWN)
        task = replace(task, loss=placed(task.loss, None if constant is None else torch.tensor(constant)))

        def scores(x: Tensor) -> Tensor:
            with torch.no_grad():
                if self.keep:
                    return task.output(self.method.models(task, state)[self.keep], x[None])[0]
                return self.method.predict(task, state, x[None])[0]

        return task, scores

    @property
    def plan(self) -> Plan:
        """As of one site; worked out anew each time."""
        return Plan(self.study, self.method, self.seed)

    def _state(self, plan: Plan) -> Any:
        """Its settled state, stacked over this one site."""
        try:
            stacked = {k: v[None] for k, v in self.tensors.items()}
            state = restore_like(plan.settled, stacked, exact=not self.method.wire.per_site_messages)
            return map_tensors(lambda v: v.double() if v.is_floating_point() else v, state) if self.double else state
        except ValueError:
            what = "its tensors are not those of this study's network and method."
            hint = (
                "Another model's file may have replaced it: restore it from a copy. vitrail verify lists what was "
                "changed."
            )
            raise VitrailError("the model is of another study", [Problem("model.safetensors", what, hint)]) from None

    def knows(self) -> dict[str, float]:
        """What the site found out about itself, by what it means (core/facts.py)."""
        state = self._state(self.plan)
        return {means: float(value[0]) for means, value in self.method.self_report(state).items()}

    def models(self, plan: Plan | None = None) -> dict[str, Params]:
        """The models that the site holds, by what each is to it (core/facts.py). `plan`: its own, worked out before."""
        plan = plan or self.plan
        models = self.method.models(plan.task, self._state(plan))
        return {name: {k: v[0] for k, v in params.items()} for name, params in models.items()}


@dataclass(repr=False)
class Run(Plottable):
    """The result of a run. `models` holds each site's final state, which is private to that site."""

    study: Study
    method: AnyMethod
    seed: int
    info: dict[str, Any]
    history: pd.DataFrame
    ledger: pd.DataFrame
    models: dict[str, dict[str, Tensor]]
    encoders: dict[str, Encoder]
    sizes: pd.DataFrame
    facts: Facts = field(default_factory=dict)
    shared: dict[str, Tensor] = field(default_factory=dict)  # what the coordinator holds at the end
    shift_table: pd.DataFrame | None = None  # of a run with private layers: see `shifts`
    pseudonyms: dict[str, str] = field(default_factory=dict)  # site -> the name its layers go by; each knows its own
    screening: Screening | None = None  # whose data does not fit, from before the first round
    held: dict[str, list[int | str]] = field(default_factory=dict)  # see `held_out`; of sites on this machine
    final: dict[str, Final] = field(default_factory=dict)  # models trained on all rows, which are used and not scored
    answers: dict[str, HeldOutAnswers] = field(default_factory=dict)  # in memory alone, where sites are on this machine
    summaries: dict[str, HoldOutSummary] = field(default_factory=dict)  # see runs/site/holdout.py, `summaries_of`

    def __repr__(self) -> str:
        sites = f"{len(self.sites)} site{'s' * (len(self.sites) != 1)}"
        return f"<run of {self.study.name!r}: {self.method.catalogue.title}, {sites}, seed {self.seed}>"

    @property
    def sites(self) -> list[str]:
        return list(self.info["sites"])

    @cached_property
    def plan(self) -> Plan:
        """What it was to be; of a run that was just made, the one by which it trained."""
        return Plan(self.study, self.method, self.seed, len(self.sites))

    def scores(self, split: str = "test") -> pd.DataFrame:
        """site, metric, value: after the last round, on each site's own rows of that split."""
        last = self.history[self.history.split == split]
        last = last[last.stage == last.stage.max()]
        last = last[last["round"] == last["round"].max()]
        return pd.DataFrame(last[["site", "metric", "value"]]).reset_index(drop=True)

    def baseline(self) -> pd.DataFrame:
        """site, metric, value: the score of one answer for every row (the most common class, or the mean) on each
        site's own hold-out rows. Empty for a run of an earlier version, which did not keep it."""
        rows = self.history[self.history.split == f"test:{MAJORITY}"]
        return rows[["site", "metric", "value"]].reset_index(drop=True)

    def held_out(self) -> pd.DataFrame:
        """site, row: which rows of each site's own table were held out and never trained on, by their line in the file
        (the header is line 1) or a picture's path. Between machines each site has its own list, which stays there."""
        if not self.held:
            what = "its sites are on other machines, or an earlier version of Vitrail made it, which did not keep this."
            hint = "A site finds its own list in held_out.csv, in the folder of the run in its home."
            raise VitrailError("it is not known which rows were held out", [Problem("the run", what, hint)])
        rows = [(site, row) for site, some in self.held.items() for row in some]
        return pd.DataFrame(rows, columns=["site", "row"])

    @property
    def trained(self) -> bool:
        """Whether any site took part in any round of training."""
        return any(self.info.get("took_part", {"": 1}).values())

    def uncertainty(self) -> pd.DataFrame:
        """site, rows, doubt, auroc, accuracy, kept, accuracy_kept: how unsure each site's final model is on the site's
        own hold-out rows, and how well that predicts its mistakes.

        `doubt` is the mean over the rows, from 0 (sure) to 1 (knows nothing). `auroc` is the chance that it is larger
        at a mistake than at a row that the model got right: 0.5 is chance. Without the least sure tenth of the rows
        there are `kept` rows, and the model has `accuracy_kept` on them; if most sites have fewer than 100 rows, the
        least sure fifth or two fifths are left out instead. A number is NaN if it rests on fewer than 10 rows, or if
        fewer than 10 rows lie between two numbers; `auroc` also if the model is never wrong or always wrong.
        """
        self._check_doubt()
        return uncertainty(self.scores(COVERAGE), self.sizes)

    def coverage(self) -> pd.DataFrame:
        """site, share, rows, accuracy: on the surest 100, 90, ..., 10 per cent of each site's own hold-out rows. NaN
        where fewer than 10 rows are left, or lie between two numbers."""
        self._check_doubt()
        return coverage(self.scores(COVERAGE), self.sizes)

    def _check_doubt(self) -> None:
        if not (self.history.split == COVERAGE).any():
            what = "its target is a number, or an earlier version of Vitrail made it, which did not keep this."
            raise VitrailError("there is no uncertainty", [Problem("the run", what, "Run a study of classes again.")])

    def curve(self) -> pd.DataFrame:
        """round, site, metric, value: along the run, stages one after the other, on each site's own hold-out rows."""
        return curve_of_history(self.history)

    def shifts(self) -> pd.DataFrame:
        """site, feature, layer, value, flagged_paper: private layers, and the iFedAvg paper's marks (O, x) on them.

        `value` is missing where a site refused to publish. What the shared model does about a difference is here;
        whose data does not fit, in `findings`.
        """
        if self.shift_table is None:
            what = f"{self.method.catalogue.title} learns no private layers."
            raise VitrailError("there are no shifts", [Problem("method", what, f"Run it with --method {with_ends()}.")])
        return self.shift_table

    def findings(self) -> Findings:
        """Whose data does not fit, the likely wrong first; nothing where the run did not screen."""
        return Findings(self.screening.findings if self.screening else ())

    def wire(self) -> list[WireEntry]:
        """Every tensor that left a site or came in."""
        return self.plan.wire(bool(self.info.get("keep_updates")), self.screening is not None)

    def fact(self, means: str) -> Tensor | None:
        """The fact of this run with this meaning (core/facts.py), if there is one."""
        return find_value(self.facts, means)

    def trust(self) -> Trust:
        """Whom each site learned from, round by round."""
        if (result := read_trust(self.sites, self.facts)) is None:
            what = f"{self.method.catalogue.title} keeps no trust between sites."
            raise VitrailError(
                "there is no trust",
                [Problem("method", what, f"Run it with --method {with_facts(self.study, TRUST, SHARE)}.")],
            )
        return result

    def influence(self) -> pd.DataFrame:
        """Whom each site learned from: share of its model, mean over the rounds; users down, sites across."""
        if (shares := self.fact(SHARE)) is None:
            what = f"{self.method.catalogue.title} does not weight sites."
            raise VitrailError(
                "there is no influence", [Problem("method", what, f"Run --method {with_facts(self.study, SHARE)}.")]
            )
        return pd.DataFrame(shares.nanmean(0).numpy(), index=self.sites, columns=self.sites)

    def companion_scores(self) -> pd.DataFrame:
        """round, site, model, metric, value: scores of the models that are carried along beside each site's own, on its
        hold-out rows."""
        rows = self.history[(self.history.stage == 0) & self.history.split.str.startswith("test:")]
        rows = rows[rows.split != f"test:{MAJORITY}"]  # nobody carries that: see `baseline`
        rows = rows.assign(model=rows.split.str.removeprefix("test:"))
        return rows[["round", "site", "model", "metric", "value"]].reset_index(drop=True)

    def published_name(self, site: str) -> str:
        """The name under which this site's layers were published."""
        return self.pseudonyms.get(site, site)

    def predict(self, site: str, frame: pd.DataFrame) -> pd.DataFrame:
        """What that site's own model predicts for raw rows: a probability for each class and how unsure it is, or a
        number. Warns if rows have values outside what the study agreed on; `final_model(site).predict_marked` names
        them."""
        answers, notes = self.final_model(site).predict_marked(frame)
        for note in notes:
            tell(note)
        return answers.drop(columns=answers.columns[-1]) if not self.study.images else answers

    def explain(
        self,
        site: str,
        frame: pd.DataFrame,
        rows: int | Sequence[Any] = 1000,
        seed: int = 1,
        outcome: str | None = None,
        reference: pd.DataFrame | None = None,
    ) -> Explanation:
        """Why that site's own model predicts what it predicts for raw rows: Shapley values of the study's features.

        `rows`: the number of rows to explain, sampled at random if there are more, or the names (index) of the rows.
        `outcome`: the class whose log odds are explained; by default the positive or the last one. A feature that is
        switched off has the value of the typical row (median, most frequent level) of `reference`; without `reference`,
        of the site's training rows if `frame` holds the rows of the run, else of `frame`.
        """
        from vitrail.runs.site.explanation import explain_model

        mine, seen = self.final_model(site, "explain"), self.info["fingerprints"].get(site)
        return explain_model(mine, site, frame, seen, rows, seed, outcome, reference)

    def final_model(self, site: str, verb: str = "predict") -> Model:
        """The model that a site uses: trained on all of its rows, where the study asks for that (training.refit)."""
        scored = self.model_of(site, verb)
        return scored._replace(**self.final[site]._asdict()) if site in self.final else scored

    def model_of(self, site: str, verb: str = "predict") -> Model:
        """The model that was scored: it never saw the site's held-out rows."""
        if site not in self.models:
            away, takes_part = self.info.get("engine") == DEPLOYED, site in self.sites
            what = f"the model of {site!r} is on its own machine." if takes_part else f"there is no site {site!r}."
            hint = f"{verb.capitalize()} there: vitrail {verb}." if takes_part else nearest(site, self.sites)
            if takes_part and not away:
                what = f"sites/{site_folder(site)} with its model is not in the run folder: it was left out or removed."
                hint = "Restore it from a copy of the run."
            raise VitrailError(f"cannot {verb}", [Problem("site", what, hint)])
        return Model(self.study, self.method, self.seed, self.models[site], self.encoders[site])

    def adopt(self, name: str, frame: pd.DataFrame) -> Run:
        """A new run with one more site, which fits private layers to the shared model; this one stays as it is."""
        from vitrail.runs.site.newcomer import adopt

        return adopt(self, name, frame)

    def save(self, path: str | Path) -> None:
        """Write a run folder; never overwrites anything."""
        from vitrail.runs.store import write_run

        folder = Folder(Path(path), resume=False)
        try:
            write_run(folder, self, "saved")
        finally:
            folder.close()

    @classmethod
    def load(cls, path: str | Path) -> Run:
        from vitrail.runs.store import load_run

        return load_run(Path(path))


def curve_of_history(history: pd.DataFrame) -> pd.DataFrame:
    """The curve of a history, whole or so far."""
    test = history[history.split == "test"]
    ends = test.groupby("stage")["round"].max()
    before = test.stage.map(lambda s: int(ends[ends.index < s].sum()))
    return test.assign(round=test["round"] + before)[["round", "site", "metric", "value"]].reset_index(drop=True)


def mark_small_samples(frame: pd.DataFrame, sizes: pd.DataFrame, by: str = "site") -> pd.DataFrame:
    """A table of results with the column `few_rows`: on how few hold-out rows the site's scores stand, else nothing."""
    warning_of = dict(zip(sizes["site"], sizes["few_rows"], strict=True)) if "few_rows" in sizes else {}
    return frame.assign(few_rows=[warning_of.get(site, "") for site in frame[by]])
