"""Who was in the training rows, and what share of a site's patients are ill: from models and from totals of groups.

`membership`: heart disease, FedAvg. Half of each hospital's patients train, drawn anew for 13 federations; one after
the other of four is attacked with the other twelve as its shadows (LiRA: is the model's confidence in this patient's
outcome rather that of models that saw them?). AUC over patients; .5 is guessing. `loss`: the simple rival, a patient
whom the model is sure of is taken for a member.

`labels of groups`: GUSTO, ten sites whose share of deaths was made to go from 10 to 60 %. The coordinator reads the
change of the last layer's offsets, of every site (`each report`), of groups of three that stay or that are drawn anew
every round. Where groups change, its totals are equations, solved for what each site says on average.
Correlation of what it finds with the true shares over sites, without its sign; `a guess` is that of an order by lot. A
total of all ten tells the mean share and nothing of a site.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import vitrail as vt
from vitrail import methods
from vitrail.core.task import Task
from vitrail.core.tensors import flatten, map_tensors
from vitrail.data.encoding import class_weights, prepare
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.privacy.budget import Budget, noise_for
from vitrail.privacy.dp_sgd import PrivateTask
from vitrail.privacy.secure_sum.groups import groups_of
from vitrail.runs.setup import build_task, training_of

FEDERATIONS, VICTIMS = 13, 4
SHARES = np.linspace(0.1, 0.6, 10)


def private(task: Task, guard: str, rounds: int) -> Task:
    if not guard.startswith("rows"):
        return task
    fields = {f: getattr(task, f) for f in Task.__dataclass_fields__}
    return PrivateTask(**fields, clip=1.0, noise=noise_for(Budget(float(guard.split()[-1]), 1e-3), rounds))


def rows_of(name: str, x: Any, y: Any) -> tuple[str, Tensor, Tensor, Tensor]:
    y = y.astype(np.int64)
    weight = torch.from_numpy(class_weights(y, 2)[y]).float()[:, None]
    return name, torch.from_numpy(x).float(), torch.nn.functional.one_hot(torch.from_numpy(y), 2).float(), weight


def membership(guard: str, network: str, seed: int) -> dict[str, Any]:
    frames = vt.datasets.heart_disease()
    study = vt.Study.infer(frames, "disease", name="heart")
    if network == "long":  # made to remember: no dropout, a high rate, three times the rounds
        study = study.with_changes(network={"dropout": 0.0}, training={"rounds": 150, "lr": 0.01})
    else:
        study = study.with_changes(training={"rounds": 50})
    method, rng = methods.build("fedavg"), np.random.default_rng(seed)
    data = {
        d.name: (np.concatenate([d.train_x, d.test_x]), np.concatenate([d.train_y, d.test_y]))
        for d in prepare(frames, study, seed)
    }
    inside, sure = [], []
    for _ in range(FEDERATIONS):
        keep = {n: np.sort(rng.permutation(len(y))[: len(y) // 2]) for n, (_, y) in data.items()}
        rows = gather_sites([rows_of(n, x[keep[n]], y[keep[n]]) for n, (x, y) in data.items()])
        task = private(build_task(study, method, seed), guard, study.training.rounds)
        engine = Engine(task, method, rows, training_of(study), seed)
        *_, last = engine.run()
        settled, told = engine.settled(last), []
        for n, (x, y) in data.items():
            i = engine.names.index(n)
            own = map_tensors(lambda t: t[i : i + 1], settled)  # noqa: B023
            z = method.predict(engine.task, own, torch.from_numpy(x).float()[None])
            q = z[0].double().softmax(1).numpy()[np.arange(len(y)), y.astype(int)].clip(1e-6, 1 - 1e-6)
            told.append(np.log(q / (1 - q)))
        sure.append(np.concatenate(told))
        inside.append(np.concatenate([np.isin(np.arange(len(y)), keep[n]) for n, (_, y) in data.items()]))
    c, f = np.stack(sure), np.stack(inside)  # [federation, patient]
    lira, loss = [], []
    for v in range(VICTIMS):
        others = [i for i in range(FEDERATIONS) if i != v]
        co, fo = c[others], f[others]
        ok = fo.any(0) & (~fo).any(0)
        yes, no = (np.where(g, co, 0).sum(0) / g.sum(0).clip(min=1) for g in (fo, ~fo))
        sd = np.sqrt(np.mean((co - np.where(fo, yes, no))[:, ok] ** 2))
        score = ((c[v] - no) ** 2 - (c[v] - yes) ** 2) / (2 * sd**2)
        lira.append(roc_auc_score(f[v][ok], score[ok]))
        loss.append(roc_auc_score(f[v], c[v]))
    return {"lira": float(np.mean(lira)), "loss": float(np.mean(loss))}


def labels(seed: int, rounds: int = 30) -> dict[str, Any]:
    """Of one federation, every way of reading at once: training is the same under all of them."""
    frames = dict(sorted(vt.datasets.gusto().items(), key=lambda kv: -len(kv[1]))[:10])
    rng, made = np.random.default_rng(seed), {}
    for (name, frame), share in zip(frames.items(), rng.permutation(SHARES), strict=True):
        died = frame.day30.astype(int) == 1
        ill, well = frame[died], frame[~died]
        count = min(len(ill), 60)
        keep = min(len(well), round(count * (1 - share) / share))
        parts = [ill.sample(count, random_state=seed), well.sample(keep, random_state=seed)]
        made[name] = vt_concat(parts, seed)
    study = vt.Study.infer(made, "day30", name="gusto").with_changes(training={"rounds": rounds, "lr": 0.004})
    method = methods.build("fedavg")
    data = prepare(made, study, seed)
    true = np.array([float(np.mean(d.train_y == 1)) for d in data])
    rows = gather_sites([rows_of(d.name, d.train_x, d.train_y) for d in data])
    engine = Engine(build_task(study, method, seed), method, rows, training_of(study), seed, keep_reports=True)
    path = []
    for _ in engine.run():
        told = dict(flatten(engine.reports))
        bias = next(v for k, v in told.items() if k.startswith("change/") and v.dim() == 2 and v.shape[1] == 2)
        path.append((bias[:, 1] - bias[:, 0]).double().numpy())
    said = np.array(path)  # [round, site]
    order = [engine.names.index(d.name) for d in data]
    n, out = len(order), {}
    out["each report"] = said.mean(0)
    stay = groups_of(engine.keys, 3).numpy()
    out["groups that stay"] = np.array([said[:, stay == g].mean() for g in range(stay.max() + 1)])[stay]
    equations, totals = [], []
    for r in range(rounds):
        group = np.random.default_rng([seed, r]).permutation(n) * 3 // n
        for g in range(3):
            equations.append(group == g)
            totals.append(said[r, group == g].sum() - said[r].mean() * (group == g).sum())
    out["groups drawn anew"] = np.linalg.lstsq(np.array(equations, float), np.array(totals), rcond=None)[0]
    found = {k: _like(v[order], true) for k, v in out.items()}
    return found | {"a guess": _like(np.random.default_rng([seed, 1]).permutation(n).astype(float), true)}


def vt_concat(parts: list[Any], seed: int) -> Any:
    import pandas as pd

    return pd.concat(parts).sample(frac=1, random_state=seed).reset_index(drop=True)


def _like(found: Any, true: Any) -> float:
    return abs(float(np.corrcoef(found, true)[0, 1])) if np.std(found) > 0 else 0.0
