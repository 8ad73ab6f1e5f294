"""The adapted Ndoye factor: before any federated training, whose model carries over to whose rows?

    f_i          the model that site i trains alone on its training rows S_i
    transfer     L(f_i on S_u) - L_cv(f_i on S_i)        for a user u; the lower, the better suited is site i
    L_cv         k-fold cross-validation on S_i, so that the number of rows of site i plays no part

L is the loss that is trained (log loss, or squared error in the target's unit), its mean over the rows of a site with
the study's class weights. The user ranks the others by it, picks some, and trains with those only. Models are judged as
they were trained, without the constant that a site adds to the answers of a model that it uses
(metrics/recalibration.py): that would undo the class weights, and hide from a user that another site's cases differ
from its own.

All models, one for each site and one for each site and fold, are sites of one run of the engine, each by itself.

What it reveals: every site's model goes to every user. A user's loss under each model goes back, for the matrix.
L_cv is what a site says of itself: nobody can check it, and a site that exaggerates its own loss looks better suited.
So does, honestly, a site whose rows are hard to predict: read loss_on_user beside the transfer loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.facts import OWN
from vitrail.core.losses import log_hazard, log_shares
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.data.encoding import SiteData, class_weights, columns, prepare
from vitrail.engine.contract import WireEntry
from vitrail.engine.local import Engine
from vitrail.methods import AnyMethod
from vitrail.metrics.scores import Floats
from vitrail.metrics.survival import losses
from vitrail.runs.evaluation import small_held_out, truth_of
from vitrail.runs.result import mark_small_samples
from vitrail.runs.screening import unscreened
from vitrail.runs.setup import build_task, resolve, standardise_lines, training_of, training_rows
from vitrail.runs.training import federate
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.studies.cross_validation import same_loss
from vitrail.studies.executor import Step, done
from vitrail.studies.folds import folds_of
from vitrail.study.model import Study

TABLE = ["user", "site", "loss_on_user", "cv_loss", "transfer", "error", "same", "rank"]
FEEDBACK = ["user", "site", "column", "output", "user_effect", "site_effect", "difference"]


def on_trust(word: str) -> str:
    """What speaks against the ranking; `word`: what a row is."""
    return (
        "The cross-validated losses are reported by the sites themselves, and nobody can check them: a "
        f"site that overstates its own loss looks more suitable than it is. So does a site whose {word}s are "
        f"hard to predict. Compare the loss on the user's {word}s with the transfer loss."
    )


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
        ranking, kind, value = self.ranking(user), *_parsed(rule)
        if kind == "names":
            names = [n for n in value if n != user]
            self._known(names, "train-with")
            return names
        mine = self.table[self.table.user == user].set_index("site").transfer
        fit = [s for s in ranking if np.isfinite(mine[s])]
        return fit[:value] if kind == "top" else [s for s in fit if mine[s] < value]

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
        if not self.study.images:
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
) -> Transfer:
    """Every site of a study trains alone and cross-validates; every user tries the others' models on its training rows.
    `sites`: the table of each. Rows are cut into `folds`; `seed`, `rounds`, `engine`, `progress` are as of federate.
    """
    study, method = resolve(study, _alone(), rounds)
    seed = study.seeds[0] if seed is None else seed
    data = prepare(sites, study, seed)
    if len(data) < 2:
        what = f"expected at least two sites, got {len(data)}."
        raise VitrailError("there is no other site to learn from", [Problem("data", what, "Give one table per site.")])
    parts = folds_of(sites, study, seed, folds)
    left_out = {_name(s.name, k): s for k, fold in enumerate(parts) for s in fold}
    everyone = [*data, *(s._replace(name=n) for n, s in left_out.items())]
    task = build_task(study, method, seed)
    rows = training_rows(everyone, study, method, "cpu")
    runner = Engine(task, method, rows, training_of(study), seed, looped=engine == "looped")
    last = runner.start()
    for last in runner.run():
        if progress:
            progress(last.round, study.training.rounds)
    states = method.models(task, runner.settled(last))[OWN]
    place = {name: i for i, name in enumerate(runner.sites.names)}
    names = [s.name for s in data]
    own = {k: v[[place[n] for n in names]] for k, v in states.items()}  # f_i, in the order of `data`
    same = {s.name: same_loss(study, truth_of(study, s, "train"), _weights(study, s.train_y, s.train_y)) for s in data}
    judged = {s.name: _cross_validated(study, task, states, place, s, parts) for s in data}
    table, feedback = [], []
    for user in data:
        losses = _losses(study, task, own, user.train_x, user.train_y)
        weights = _weights(study, user.train_y, user.train_y)
        for name, theirs in zip(names, losses, strict=True):
            if name != user.name:
                there, here = _mean(theirs, weights), judged[name]
                gap = there.value - here.value
                error = float(np.hypot(there.error, here.error))
                table.append((user.name, name, there.value, here.value, gap, error, same[user.name]))
        feedback += [] if study.images else _feedback(study, task, own, user, names)
    frame = pd.DataFrame(table, columns=TABLE[:-1])
    by_user = frame.assign(transfer=frame.transfer.fillna(np.inf)).groupby("user", sort=False).transfer
    frame["rank"] = by_user.rank(method="first").astype(int)
    values = {n: m.value for n, m in judged.items()}
    used = pd.DataFrame(feedback, columns=FEEDBACK)
    return Transfer(study, seed, folds, names, frame[TABLE], used, values, same, small_held_out(study, parts))


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
        _TransferJob("alone", methods.name_of(_alone()), list(sites)),
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


def _alone() -> AnyMethod:
    """The method by which each site trains by itself."""
    return methods.build(methods.named(lambda kind: kind.catalogue.alone)[0])


def transfer_lines(study: Study, sites: int, folds: int = 5) -> list[WireEntry]:
    """What crosses the wire before any federated training, in a federation of that many sites."""
    task = build_task(study, _alone(), 0)
    lines = standardise_lines(study, 1 + folds)  # for the sites' models, and anew for each fold
    for name, v in task.start.items():
        shape, size = tuple(v.shape), v.numel() * 4
        lines.append(WireEntry("transfer", "from site", f"model/{name}", shape, "float32", size, 1, "each"))
        lines.append(
            WireEntry(
                "transfer", "to site", f"model/{name}", (sites - 1, *shape), "float32", size * (sites - 1), 1, "each"
            )
        )
    lines.append(
        WireEntry("transfer", "from site", "cross-validated loss, reported and trusted", (), "float64", 8, 1, "each")
    )
    others = (sites - 1,)
    lines.append(
        WireEntry("transfer", "to site", "cross-validated losses", others, "float64", 8 * (sites - 1), 1, "each")
    )
    words = f"losses of the others' models on its {study.row_word}s"
    lines.append(WireEntry("transfer", "from site", words, others, "float64", 8 * (sites - 1), 1, "each"))
    return lines


class Mean(NamedTuple):
    value: float
    error: float  # standard error, as if rows were independent


def _name(site: str, fold: int) -> str:
    return f"{site}\x1f{fold}"  # no file has such a name


def _parsed(rule: str) -> tuple[str, Any]:
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


def _losses(study: Study, task: Task, params: Params, x: Any, y: NDArray[np.generic]) -> Floats:
    """[model, row]: each model's loss on each row."""
    some, rows = next(iter(params.values())), torch.from_numpy(x)
    rows = rows if study.images else rows.to(some)
    with torch.no_grad():
        z = task.output(params, rows.expand(len(some), *x.shape)).double()
        if study.target.kind == "number":
            wrong = (z[..., 0] - torch.from_numpy(y)) * study.target.scale
            return (wrong**2).numpy()
        if study.target.kind == "time":
            return np.stack([losses(y.astype(np.float64), p) for p in task.loss.predictions(z).numpy()])
        right = torch.from_numpy(y.astype(np.int64)).expand(len(some), -1)[..., None]
        return -log_shares(task.loss, z).gather(2, right)[..., 0].numpy()


def _weights(study: Study, y: NDArray[np.generic], trained: NDArray[np.generic]) -> Floats:
    if study.target.kind != "classes" or study.training.class_weights == "none":
        return np.ones(len(y))
    return class_weights(trained, len(study.target.levels))[y.astype(np.int64)]


def _mean(losses: Floats, weights: Floats) -> Mean:
    value = float((losses * weights).sum() / weights.sum())
    return Mean(value, float(np.sqrt((weights**2 * (losses - value) ** 2).sum()) / weights.sum()))


def _cross_validated(
    study: Study, task: Task, states: Params, place: dict[str, int], site: SiteData, parts: list[list[SiteData]]
) -> Mean:
    """Every training row's loss under the model that has not seen it."""
    losses, weights = [], []
    for k, fold in enumerate(parts):
        at = place[_name(site.name, k)]
        mine = next(s for s in fold if s.name == site.name)
        losses.append(_losses(study, task, {n: v[at : at + 1] for n, v in states.items()}, mine.test_x, mine.test_y)[0])
        weights.append(_weights(study, mine.test_y, site.train_y))
    return _mean(np.concatenate(losses), np.concatenate(weights))


def _feedback(study: Study, task: Task, own: Params, user: SiteData, names: list[str]) -> list[tuple[Any, ...]]:
    """How much each column moves the answer, in the user's model and in each other's.

    The mean slope of the answer over the user's rows. For a linear model it is the weight itself; first-layer weights
    of a network with hidden layers cannot be compared, slopes can. `(intercept)`: the answer where all columns are 0.
    """
    some = next(iter(own.values()))
    x = torch.from_numpy(user.train_x).to(some).expand(len(names), *user.train_x.shape).contiguous().requires_grad_()
    answers, outputs = _answers(study, task.output(own, x))
    rows, me = [], names.index(user.name)
    with torch.no_grad():
        level = _answers(study, task.output(own, torch.zeros_like(x[:, :1])))[0][:, 0]  # [model, output]
    for o, output in enumerate(outputs):
        (slope,) = torch.autograd.grad(answers[..., o].mean(1).sum(), x, retain_graph=True)
        effects = torch.cat([slope.sum(1), level[:, o : o + 1]], 1).double().numpy()  # [model, column]
        for i, name in enumerate(names):
            if i != me:
                for c, column in enumerate([*columns(study), "(intercept)"]):
                    mine, theirs = float(effects[me, c]), float(effects[i, c])
                    rows.append((user.name, name, column, output, mine, theirs, theirs - mine))
    return rows


def _answers(study: Study, z: Tensor) -> tuple[Tensor, list[str]]:
    """[model, row, output], free of what a softmax does not see; two classes have one answer, the log-odds."""
    target = study.target
    if target.kind == "number":
        return z * target.scale, [target.column]
    if target.kind == "time":
        return log_hazard(z)[..., None], [target.column]
    if len(target.levels) == 2:
        return z[..., 1:] - z[..., :1], [target.levels[1]]
    return z - z.mean(2, keepdim=True), list(target.levels)
