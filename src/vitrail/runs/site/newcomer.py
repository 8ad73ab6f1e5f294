"""A site that comes after training. It is told the shared model and the others' mean layers, fits private layers of its
own on its own rows, and shows them: a model of its own, its scores, and its row in the heatmap. Nothing of the other
sites changes, and none of their rows is needed.

What it does not get is a verdict on its data: sites are screened together, before the first round.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from vitrail.analysis.private_layers import paper_flags
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.facts import AGREED, ENDS, OWN, Facts, private_layers_of
from vitrail.core.task import Task
from vitrail.core.tensors import Params, flatten, unflatten
from vitrail.data.encoding import prepare
from vitrail.engine.local import Engine
from vitrail.runs.private_layers import SYMBOLS, agreed
from vitrail.runs.setup import (
    asks_consent,
    is_evaluated,
    last_splits,
    training_of,
    training_rows,
    with_ends,
)

if TYPE_CHECKING:
    from vitrail.runs.result import Run


def adopt(run: Run, name: str, frame: pd.DataFrame) -> Run:
    """A new run with one more site. Its scores before fitting are those of round 0."""
    from vitrail.runs.evaluation import Evaluator, sizes_of
    from vitrail.runs.result import CLASS_SHARES, HISTORY

    _check(run, name)
    fits = run.method.newcomer()
    assert fits is not None
    study = run.study
    common_encoder = next(iter(run.encoders.values())) if study.standardise == "global" else None
    (data,) = prepare({name: frame}, study, run.seed, common_encoder)
    task = _start(run)
    rows = training_rows([data], study, run.method, "cpu")
    runner = Engine(task, fits, rows, training_of(study), run.seed)
    judge = Evaluator(runner, study, [data])
    history = judge.rows(runner.start(), ("test",))
    total = study.training.rounds + 1  # of the others: training, then publishing
    for moment in runner.run():
        if is_evaluated(moment.round, total):
            history += judge.rows(moment, ("test",))
    end = len(run.method.plan(1)) - 1, 1  # stage and round where the others' final scores stand
    history += [(*end, *row[2:]) for row in judge.rows(moment, last_splits(task, study))]
    settled = runner.settled(moment)
    own = {k: v[0].clone() for k, v in fits.models(task, settled)[OWN].items()}
    model = {k: v[0].clone() for k, v in flatten(settled)}
    table, facts = _with_row(run, name, own)
    return dataclasses.replace(
        run,
        info={
            **run.info,
            "sites": [*run.sites, name],
            "fingerprints": {**run.info["fingerprints"], name: data.fingerprint},
            "newcomers": [*run.info.get("newcomers", []), name],
            CLASS_SHARES: {**run.info.get(CLASS_SHARES, {}), **judge.class_shares},
        },
        history=pd.concat([run.history, pd.DataFrame(history + judge.baseline(), columns=HISTORY)], ignore_index=True),
        ledger=pd.concat([run.ledger, _ledger(run, name, history)], ignore_index=True),
        models={**run.models, name: model},
        encoders={**run.encoders, **judge.encoders(moment)},
        sizes=pd.concat([run.sizes, sizes_of(study, [data])], ignore_index=True),
        facts=facts,
        shift_table=table,
        held={**run.held, name: list(data.held_out)},
        answers={**run.answers, **judge.held_answers(moment)},
        summaries=dict(run.summaries),
    )


def gains(run: Run) -> pd.DataFrame:
    """site, metric, before, after, same, few_rows: what fitting was worth to each newcomer, on its own hold-out rows;
    what always giving the same answer comes to there, and whether they are few."""
    from vitrail.runs.result import mark_small_samples

    test = run.history[(run.history.split == "test") & run.history.site.isin(run.info.get("newcomers", []))]
    first = test[(test.stage == 0) & (test["round"] == 0)].set_index(["site", "metric"])["value"]
    last = run.scores().set_index(["site", "metric"])["value"]
    same = run.baseline().set_index(["site", "metric"])["value"].reindex(first.index)
    table = pd.DataFrame({"before": first, "after": last.reindex(first.index), "same": same}).reset_index()
    return mark_small_samples(table, run.sizes)


def _check(run: Run, name: str) -> None:
    problems = []
    if run.shift_table is None or run.method.newcomer() is None:
        what = f"{run.method.catalogue.title} learns no private layers, so a new site has nothing to fit."
        problems.append(Problem("the run", what, f"Adopt sites into a run of --method {with_ends()}."))
    if name in run.sites or name in set(run.pseudonyms.values()):
        problems.append(Problem("site", f"there is a site {name!r} already.", "Choose another name."))
    if not name.strip() or not name.isprintable():
        problems.append(Problem("site", f"expected a name, got {name!r}.", "Give it one."))
    if problems:
        raise VitrailError("the site cannot be adopted", problems)


def _start(run: Run) -> Task:
    """The shared model between the others' mean layers; identity layers where nobody published."""
    task = run.plan.task
    coord = unflatten(run.method.coord(task, len(run.sites)), run.shared)
    start, shown = {**task.start, **run.method.shared(coord)}, agreed(run.facts)
    if bool(shown.any()):
        start |= {k: v[shown].mean(0).to(start[k]) for k, v in private_layers_of(run.facts).items()}
    return dataclasses.replace(task, start=start)


def _with_row(run: Run, name: str, own: Params) -> tuple[pd.DataFrame, Facts]:
    """The table of shifts and the published layers with the newcomer's among them; the paper's marks anew."""
    assert run.shift_table is not None
    names = list(dict.fromkeys(run.shift_table.site))
    order = sorted(range(len(names) + 1), key=lambda i: [*names, name][i])
    fresh = {AGREED: torch.ones((), dtype=torch.bool)} | {what: own[k] for what, k in ENDS.items() if k in own}
    facts = {
        k: f._replace(value=torch.cat([f.value, fresh[f.means][None].to(f.value)])[order]) for k, f in run.facts.items()
    }
    names = [[*names, name][i] for i in order]
    frames = []
    for (key, values), old in zip(
        private_layers_of(facts).items(),
        (part for _, part in run.shift_table.groupby("layer", sort=False)),
        strict=True,
    ):
        layer, shown = SYMBOLS[key], np.where(agreed(facts).numpy()[:, None], values.double().numpy(), np.nan)
        o, x = paper_flags(shown)
        for j, (feature, part) in enumerate(old.groupby("feature", sort=False)):
            rows: Any = part.set_index("site").reindex(names)
            marks = [("O" if mark else "") + ("x" if x[j] else "") for mark in o[:, j]]
            rows = rows.assign(feature=feature, layer=layer, value=shown[:, j], flagged_paper=marks)
            frames.append(rows.reset_index(names="site"))
    return pd.concat(frames, ignore_index=True)[list(run.shift_table.columns)], facts


def _ledger(run: Run, name: str, history: list[tuple[Any, ...]]) -> pd.DataFrame:
    """What crossed for the newcomer: told once, said once; and its scores."""
    training, *later = run.method.plan(1)
    received = ((stage, "to site") for stage in ("standardise", training.name))
    sent = ((stage, "from site") for stage in (*(s.name for s in later if asks_consent(s)), "scores"))
    lines = pd.DataFrame([line._asdict() for line in run.plan.wire()])
    sums = lines.groupby(["stage", "direction"], sort=False)["bytes"].sum()
    rows = []
    for place in (*received, *sent):
        if place in sums.index:
            scores = place[0] == "scores"
            size = 8 * len(history) if scores else int(sums[place])
            messages = len({row[:2] for row in history}) if scores else 1
            rows.append((name, *place, messages, size))
    return pd.DataFrame(rows, columns=["site", "stage", "direction", "messages", "bytes"])
