"""From a run or a comparison to the page that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from vitrail.core.problems import Problem, VitrailError
from vitrail.data.datasets import HEART_ATTRIBUTION
from vitrail.data.encode import columns
from vitrail.explain.trust import read_trust
from vitrail.methods import TABLE, build, name_of
from vitrail.report.page import Page, render
from vitrail.report.trust import Learned
from vitrail.runs.newcomer import gains
from vitrail.runs.run import Run
from vitrail.runs.setup import wire_lines
from vitrail.studies.compare import Comparison, load_comparison
from vitrail.study import LOWER_IS_BETTER, Study


def write_report(source: Run | Comparison, path: Path) -> Path:
    """One self-contained HTML file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page_of(source)), encoding="utf-8")
    return path


def load(path: Path) -> Run | Comparison:
    """The run or comparison in this folder."""
    if (path / "parts").is_dir() and (path / "run.json").exists():
        return load_comparison(path)
    if not (path / "run.json").exists():
        raise VitrailError(
            "there is nothing to report",
            [
                Problem(
                    str(path),
                    "expected the folder of a run or a comparison.",
                    "Give the folder that `vitrail run --out` or `vitrail compare --out` wrote.",
                )
            ],
        )
    return Run.load(path)


def page_of(source: Run | Comparison) -> Page:
    whole = _comparison_of(source) if isinstance(source, Run) else source
    study, single = whole.study, isinstance(source, Run)
    titles = {m: TABLE[m].title for m in whole.methods}
    rounds = study.training.rounds
    facts = [
        ("Study", study.name),
        ("Methods", ", ".join(titles.values())),
        ("Seeds", ", ".join(map(str, whole.seeds))),
        (
            "Rounds",
            f"{rounds}, with {study.training.epochs} local epoch(s) each, batches of {study.training.batch}",
        ),
        (
            "Network",
            f"{study.network.kind} {list(study.network.hidden) if study.network.kind == 'mlp' else ''}".strip(),
        ),
        ("Standardised", study.standardise),
        ("Versions", ", ".join(f"{k} {v}" for k, v in whole.info["versions"].items())),
        *((f"Data of {site}", f"fingerprint {mark}") for site, mark in whole.info["fingerprints"].items()),
    ]
    if isinstance(source, Run):
        facts += [(k.capitalize(), str(source.info[k])) for k in ("engine", "device", "started", "dropout_rate")]
    notes = ["Scores are of each site's own model on rows of that site that no training saw."]
    if study.target.column == "disease" and study.name.startswith("Heart disease, four hospitals"):
        notes.insert(0, HEART_ATTRIBUTION)
    if isinstance(source, Run):
        notes += [_newcomer_note(source, name) for name in source.info.get("newcomers", [])]
    kept = bool(whole.info.get("keep_updates"))
    if kept:
        notes.append("This run kept its updates: the coordinator saw each site's own report of each round.")
    wire = pd.concat([_wire(study, m, len(whole.sites), kept) for m in whole.methods], ignore_index=True)
    return Page(
        title=study.name,
        kind="run" if single else "compare",
        description=study.description,
        facts=facts,
        metric=study.metrics[0],
        lower_is_better=study.metrics[0] in LOWER_IS_BETTER,
        titles=titles,
        yardsticks=tuple(m for m in whole.methods if not TABLE[m].federated),
        scores=whole.scores,
        curves=whole.curves,
        summary=whole.summary(),
        verdicts=whole.verdicts(),
        ledger=whole.ledger,
        wire=wire,
        sites=whole.sites,
        notes=notes,
        shifts=source.shift_table if isinstance(source, Run) else None,
        shift_findings=source.findings() if isinstance(source, Run) and source.shift_table is not None else (),
        pseudonyms=source.info.get("pseudonyms", ()) if isinstance(source, Run) else (),
        newcomers=source.info.get("newcomers", ()) if isinstance(source, Run) else (),
        deployed=isinstance(source, Run) and source.info["engine"] == "deployed",
        learned=_learned(source) if isinstance(source, Run) else None,
    )


def _newcomer_note(run: Run, name: str) -> str:
    rows, metric = gains(run), run.study.metrics[0]
    before, after = rows[(rows.site == name) & (rows.metric == metric)][["before", "after"]].to_numpy()[0]
    return (
        f"{name} came after training: the shared model stood still and only {name}'s private layers were fitted. "
        f"Its {metric.replace('_', ' ')} was {before:.3f} with the shared model and the others' mean layers, and is "
        f"{after:.3f} with its own. No test of its data was made: that needs what the other sites say of their rows, "
        "which a run does not keep. The paper's marks are over all published rows, its own among them."
    )


def _learned(run: Run) -> Learned | None:
    if (trust := read_trust(run.sites, run.facts)) is None:
        return None
    metric, beside = run.study.metrics[0], run.beside()
    own = run.curve().assign(model="own")
    own = own[own["round"] <= trust.rounds[-1]]  # what comes after trains nothing
    curves = pd.concat([own, beside], ignore_index=True)
    curves = curves[curves["metric"] == metric][["round", "site", "model", "value"]]
    shown = dict(zip(run.sites, run.facts["shown"].tolist(), strict=True)) if "shown" in run.facts else {}
    refused = [site for site, said in shown.items() if not said]
    return Learned(run.method.title, trust, curves, _weights(run, shown), refused)


def _weights(run: Run, shown: dict[str, bool]) -> pd.DataFrame | None:
    """What a linear model makes of each feature: site, answer, feature, model, value."""
    if run.study.network.kind == "mlp" and run.study.network.hidden:
        return None
    target, names, rows = run.study.target, [*columns(run.study), "(constant)"], []
    answers = target.levels[1:] if len(target.levels) == 2 else target.levels or (f"more {target.column}",)
    for i, site in enumerate(run.sites):
        parts = {"own": ("params/", run.models[site]), "global": ("shared/", run.models[site])}
        held = {m: (d[f"{k}head.weight"], d[f"{k}head.bias"]) for m, (k, d) in parts.items() if f"{k}head.bias" in d}
        if shown.get(site):
            held["local"] = run.facts["local/head.weight"][i], run.facts["local/head.bias"][i]
        for model, (weight, bias) in held.items():
            both = torch.cat([weight, bias[None]]).double()  # [feature, output]
            if len(target.levels) == 2:
                both = both[:, 1:] - both[:, :1]
            elif target.levels:
                both = both - both.mean(1, keepdim=True)
            rows += [
                (site, answer, feature, model, float(both[f, a]))
                for a, answer in enumerate(answers)
                for f, feature in enumerate(names)
            ]
    return pd.DataFrame(rows, columns=["site", "answer", "feature", "model", "value"])


def _wire(study: Study, method: str, sites: int, kept: bool) -> pd.DataFrame:
    given = {k: v for k, v in study.method.items() if k != "name"} if study.method["name"] == method else {}
    frame = pd.DataFrame([line._asdict() for line in wire_lines(study, build(method, given), kept, sites)])
    frame["shape"] = [" x ".join(map(str, s)) if s else "1 number" for s in frame["shape"]]
    return frame.assign(method=method)


def _comparison_of(run: Run) -> Comparison:
    """A run as a comparison of one."""
    name = name_of(run.method)
    scores = [run.scores(split).assign(method=name, seed=run.seed, split=split) for split in ("test", "train")]
    curves = run.curve().assign(method=name, seed=run.seed)
    info: dict[str, Any] = json.loads(json.dumps(run.info))
    return Comparison(
        run.study,
        [name],
        [run.seed],
        pd.concat(scores, ignore_index=True)[["method", "seed", "site", "split", "metric", "value"]],
        curves[["method", "seed", "round", "site", "metric", "value"]],
        run.ledger.assign(method=name),
        run.sizes,
        info,
    )
