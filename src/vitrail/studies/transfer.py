"""The adapted Ndoye factor: before any federated training, whose model carries over to whose rows?

    f_i          the model that site i trains alone on its training rows S_i
    transfer     L(f_i on S_u) - L_cv(f_i on S_i)        for a user u; the lower, the better suited is site i
    L_cv         k-fold cross-validation on S_i, so that the number of rows of site i plays no part

L is the loss that is trained (log loss, or squared error in the target's unit), its mean over the rows of a site with
the study's class weights. The user ranks the others by it, picks some, and trains with those only. Models are judged as
they were trained, without the constant that a site adds to the answers of a model that it uses
(metrics/recalibration.py): that would undo the class weights, and hide from a user that another site's cases differ
from its own.

All models, one for each site and one for each site and fold, are sites of one run of the engine, each by itself
(studies/own_models.py). Between machines the same is a conversation: deploy/transfer/.

What it reveals: every site's model goes to every user. A user's loss under each model goes back, for the matrix.
L_cv is what a site says of itself: nobody can check it, and a site that exaggerates its own loss looks better suited.
So does, honestly, a site whose rows are hard to predict: read loss_on_user beside the transfer loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.encoding import Encoder, prepare
from vitrail.engine.contract import WireEntry
from vitrail.runs.evaluation import small_held_out
from vitrail.runs.result import mark_small_samples
from vitrail.runs.screening import unscreened
from vitrail.runs.setup import build_task, standardise_lines
from vitrail.runs.training import federate
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.studies.executor import Step, done
from vitrail.studies.folds import folds_of
from vitrail.studies.own_models import FEEDBACK, Mean, alone_method, alone_study, feedback_of, losses_on, train_alone
from vitrail.study.model import Study

STAGE = "transfer"  # of what crosses
TABLE = ["user", "site", "loss_on_user", "cv_loss", "transfer", "error", "same", "rank"]


def on_trust(word: str) -> str:
    """What speaks against the ranking; `word`: what a row is."""
    return (
        "The cross-validated losses are reported by the sites themselves, and nobody can check them: a "
        f"site that overstates its own loss looks more suitable than it is. So does a site whose {word}s are "
        f"hard to predict. Compare the loss on the user's {word}s with the transfer loss."
    )


class RemoteTransfer(NamedTuple):
    """What sites said between machines: `subsets` by user, who trains, who withdrew, who did not let its model go; and
    whether losses are exact."""

    subsets: dict[str, list[str]]
    training: list[str]
    withdrew: list[str]
    refused: list[str]
    exact: bool


@dataclass
class Transfer:
    """`table` has one row for each user and other site; `feedback` says which columns their models use differently;
    pictures have none."""

    study: Study
    seed: int
    folds: int
    sites: list[str]
    table: pd.DataFrame
    feedback: pd.DataFrame
    cv_losses: dict[str, float]
    same: dict[str, float] = field(default_factory=dict)  # user -> the loss of the best single answer to all its rows
    few: dict[str, str] = field(default_factory=dict)  # sites with few training rows -> how many
    remote: RemoteTransfer | None = None  # of a transfer between machines

    def matrix(self) -> pd.DataFrame:
        """Transfer loss, users down, sites across; nothing on the diagonal."""
        return self.table.pivot(index="user", columns="site", values="transfer").reindex(self.sites)[self.sites]

    def ranking(self, user: str) -> list[str]:
        """The other sites, best suited first."""
        self._known([user], "user")
        return list(self.table[self.table.user == user].sort_values("rank").site)

    def choose(self, user: str, rule: str) -> list[str]:
        """The sites to learn from: `top:3`, `below:0.05`, or names separated by commas. Never the user itself.

        A site whose loss is not a number is never chosen by a rule.
        """
        kind, value = parse_rule(rule)
        if kind == "names":
            names = [n for n in value if n != user]
            self._known(names, "train-with")
            return names
        mine = self.table[self.table.user == user].set_index("site").transfer
        return chosen({site: float(mine[site]) for site in self.ranking(user)}, rule)

    def most_different(self, user: str, site: str, count: int = 3) -> str:
        """The columns whose effect differs most, in words."""
        mine = self.feedback[(self.feedback.user == user) & (self.feedback.site == site)]
        top = mine.reindex(mine.difference.abs().sort_values(ascending=False, kind="stable").index)[:count]
        several = mine.output.nunique() > 1
        return ", ".join(
            f"{r.column}{f' on {r.output}' if several else ''} {r.difference:+.2f}" for r in top.itertuples()
        )

    def save(self, path: str | Path, scores: pd.DataFrame | None = None) -> None:
        """transfer.csv, feedback.csv and transfer.json in a folder; and what `train_together` gave."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())) and not (path / "transfer.json").exists():
            what = "this folder already holds files that `vitrail transfer` did not write."
            raise VitrailError("nothing was overwritten", [Problem(str(path), what, "Choose another --out.")])
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "transfer.csv", to_csv(self.table.assign(few_rows=self.table.user.map(self.few))))
        if not self.study.images and not self.remote:  # between machines each site has its own
            write_atomically(path / "feedback.csv", to_csv(self.feedback))
        if scores is not None:
            write_atomically(path / "scores.csv", to_csv(scores))
        content = {
            "study": self.study.name,
            "seed": self.seed,
            "folds": self.folds,
            "sites": self.sites,
            "trust": on_trust(self.study.row_word),
        }
        matrix = [[None if v != v else v for v in row] for row in self.matrix().to_numpy().tolist()]
        content |= {
            "cv_losses": self.cv_losses,
            "same": self.same,
            "few_rows": self.few,
            "matrix": matrix,
            "ranking": {u: self.ranking(u) for u in self.sites},
        }
        content |= self.remote._asdict() if self.remote else {}
        write_atomically(path / "transfer.json", json.dumps(content, indent=1))

    def _known(self, names: Sequence[str], where: str) -> None:
        problems = [
            Problem(where, f"there is no site {n!r}.", nearest(n, self.sites)) for n in names if n not in self.sites
        ]
        if problems:
            raise VitrailError("the sites cannot be chosen", problems)


def transfer(
    study: Study,
    sites: Mapping[str, pd.DataFrame],
    folds: int = 5,
    seed: int | None = None,
    rounds: int | None = None,
    *,
    engine: str = "vectorised",
    progress: Callable[[int, int], None] | None = None,
    secrets: Mapping[str, str] | None = None,
    scales: Mapping[str, Encoder] | None = None,
) -> Transfer:
    """Every site of a study trains alone and cross-validates; every user tries the others' models on its training rows.
    `sites`: the table of each. Rows are cut into `folds`; `seed`, `rounds`, `engine`, `progress` are as of federate.
    `secrets`, `scales`: of the sites of a run between machines, from what they drew and by what they scaled each fold.
    """
    study = alone_study(study, rounds)
    seed = study.seeds[0] if seed is None else seed
    data = prepare(sites, study, seed)
    if len(data) < 2:
        what = f"expected at least two sites, got {len(data)}."
        raise VitrailError("there is no other site to learn from", [Problem("data", what, "Give one table per site.")])
    parts = folds_of(sites, study, seed, folds, secrets, scales)
    own = train_alone(study, data, parts, seed, engine=engine, progress=progress, secrets=secrets)
    names, feedback = [s.name for s in own.data], list[tuple[Any, ...]]()
    there = {
        user.name: dict(zip(names, losses_on(study, own.task, own.params, user), strict=True)) for user in own.data
    }
    for user in own.data:
        feedback += [] if study.images else feedback_of(study, own.task, own.params, user, names)
    used = pd.DataFrame(feedback, columns=FEEDBACK)
    values = {n: m.value for n, m in own.cv.items()}
    few = small_held_out(study, parts)
    return Transfer(study, seed, folds, names, ranked(there, own.cv, own.same), used, values, own.same, few)


def ranked(there: Mapping[str, Mapping[str, Mean]], cv: Mapping[str, Mean], same: Mapping[str, float]) -> pd.DataFrame:
    """The table of a transfer. `there`: user -> site -> the loss of the site's model on the user's rows."""
    rows = []
    for user, losses in there.items():
        for site, loss in losses.items():
            gap, error = loss.value - cv[site].value, float(np.hypot(loss.error, cv[site].error))
            rows += [(user, site, loss.value, cv[site].value, gap, error, same[user])] if site != user else []
    frame = pd.DataFrame(rows, columns=TABLE[:-1])
    by_user = frame.assign(transfer=frame.transfer.fillna(np.inf)).groupby("user", sort=False).transfer
    frame["rank"] = by_user.rank(method="first").astype(int)
    return frame[TABLE]


def train_together(
    measured: Transfer,
    sites: Mapping[str, pd.DataFrame],
    rule: str,
    users: Sequence[str] = (),
    method: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    workers: int = 1,
    cluster: str = "",
) -> pd.DataFrame:
    """user, trained, sites, metric, value, same (what always giving the same answer comes to), few_rows: on each user's
    own hold-out rows, for a model trained with the chosen sites.

    Beside it the user alone, and all sites by the default method. Without `users`, every site is the user once.
    """
    users = list(users) or measured.sites
    chosen = {u: measured.choose(u, rule) for u in users}  # mistakes first
    method = methods.name_of(methods.build(method or methods.DEFAULT))
    jobs = [
        _TransferJob("alone", methods.name_of(alone_method()), list(sites)),
        _TransferJob("all sites", methods.DEFAULT, list(sites)),
    ]
    jobs += [_TransferJob(u, method, [n for n in sites if n == u or n in chosen[u]]) for u in users]
    of = measured.study.training.rounds

    def tell(job: _TransferJob, so_far: float) -> None:
        if progress:
            progress(job.words, round(so_far * of), len(jobs) * of)

    held = (measured.study, measured.seed, dict(sites))
    (alone, about), (together, _), *apart = done(jobs, _trained, held, workers, tell, cluster=cluster)
    rows = []
    for u, (mine, _) in zip(users, apart, strict=True):
        others = [n for n in sites if n != u]
        for words, scores, with_ in (
            ("alone", alone, []),
            ("chosen", mine, chosen[u]),
            ("all sites", together, others),
        ):
            of_user = scores[scores.site == u]
            rows += [(u, words, ", ".join(with_), m, v) for m, v in zip(of_user.metric, of_user.value, strict=True)]
    table = pd.DataFrame(rows, columns=["user", "trained", "sites", "metric", "value"])
    return table.merge(about.rename(columns={"site": "user"}), "left", ["user", "metric"])


class _TransferJob(NamedTuple):
    """One run with some of the sites."""

    words: str
    method: str
    sites: list[str]


def _trained(
    job: _TransferJob, held: tuple[Study, int, dict[str, pd.DataFrame]], step: Step
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores; and for each site and metric the same answer's, and whether its rows are few."""
    study, seed, tables = held
    here = {n: tables[n] for n in job.sites}
    run = federate(unscreened(study), here, method=job.method, seed=seed, progress=step)
    same = run.baseline().rename(columns={"value": "same"})[["site", "metric", "same"]]
    return run.scores(), mark_small_samples(same, run.sizes)


def chosen(losses: Mapping[str, float], rule: str) -> list[str]:
    """The sites that `top:K` or `below:X` picks of these transfer losses, best suited first; none without a number."""
    kind, value = parse_rule(rule)
    fit = sorted((site for site, loss in losses.items() if np.isfinite(loss)), key=lambda site: losses[site])
    return fit[:value] if kind == "top" else [site for site in fit if losses[site] < value]


def transfer_lines(study: Study, sites: int, folds: int = 5) -> list[WireEntry]:
    """What crosses the wire before any federated training, in a federation of that many sites."""
    return standardise_lines(study, 1 + folds) + travel_lines(study, sites)  # for the models, and anew for each fold


def travel_lines(study: Study, sites: int) -> list[WireEntry]:
    """The same without scales; a site may refuse all of it."""
    word, others = study.row_word, sites - 1
    task, lines = build_task(alone_study(study), alone_method(), 0), list[WireEntry]()

    def line(out: bool, name: str, shape: tuple[int, ...], dtype: str, words: str) -> None:
        size = math.prod(shape) * (8 if dtype == "float64" else 4)
        way: Any = "from site" if out else "to site"
        lines.append(WireEntry(STAGE, way, name, shape, dtype, size, 1, "each", asks=True, words=words))

    for name, v in task.start.items():
        line(True, f"model/{name}", tuple(v.shape), "float32", f"the model that you train alone on your {word}s")
    line(True, "cv_loss", (), "float64", "its cross-validated loss, reported and trusted")
    line(True, "baseline_loss", (), "float64", f"the loss of the best single answer to all your training {word}s")
    for name, v in task.start.items():
        line(False, f"model/{name}", (others, *v.shape), "float32", "the models that the other sites trained alone")
    line(False, "cv_losses", (others,), "float64", "the cross-validated losses of these models")
    line(True, "losses", (others,), "float64", f"the losses of the others' models on your training {word}s")
    return lines


def parse_rule(rule: str) -> tuple[str, Any]:
    kind, colon, value = rule.partition(":")
    hint = "Write top:3, below:0.05, or names separated by commas."
    what = ""
    if colon and kind == "top":
        if value.strip().isdigit() and int(value) > 0:
            return kind, int(value)
        what = f"expected top:K with a whole number K of at least 1, got {rule!r}."
    elif colon and kind == "below":
        try:
            return kind, float(value)
        except ValueError:
            what = f"expected below:NUMBER, got {rule!r}."
    elif names := [n.strip() for n in rule.split(",") if n.strip()]:
        return "names", names
    raise VitrailError("the sites cannot be chosen", [Problem("train-with", what or "it is empty.", hint)])
