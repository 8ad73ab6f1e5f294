"""From a run or a comparison to the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.text import size
from vitrail.data.datasets.catalogue import ATTRIBUTIONS
from vitrail.data.event_class import decision_sentence, event_sentence
from vitrail.engine.contract import WireEntry
from vitrail.methods import TABLE, build, name_of
from vitrail.metrics.scores import metric_name
from vitrail.quality.checks.missing_outcomes import describe_lost
from vitrail.report.pages.frame import write_page
from vitrail.report.pages.run import Page, render
from vitrail.report.pages.vertical import render_together
from vitrail.report.text import SAME
from vitrail.runs.integrity import add_to_chain
from vitrail.runs.plan import Plan
from vitrail.runs.result import FOLDED, REFITTED, Run
from vitrail.runs.site.newcomer import gains
from vitrail.storage.atomic_files import write_atomically
from vitrail.studies.compare.execution import load_comparison
from vitrail.studies.compare.result import Comparison
from vitrail.study.model import LOWER_IS_BETTER
from vitrail.vertical.run import VerticalRun, is_together


def write_report(source: Run | Comparison | VerticalRun, path: str | Path) -> Path:
    """One self-contained HTML file at `path`, of a run or a comparison as `source`."""
    path = Path(path)
    if isinstance(source, VerticalRun):
        return write_page(render_together(source), path, "run")
    html = render(page_of(source))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, html)
    add_to_chain(path)
    return path


def load(path: Path) -> Run | Comparison | VerticalRun:
    """The run, of sites or of parties, or the comparison in this folder."""
    if is_together(path):
        return VerticalRun.load(path)
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
    run = source if isinstance(source, Run) else None
    whole = source if isinstance(source, Comparison) else _comparison_of(source)
    study, kept = whole.study, bool(whole.info.get("keep_updates"))
    late = [] if run is None else run.info.get("newcomers", [])
    notes = [f"Scores are of each site's own model on {study.row_word}s of that site that no training saw."]
    if len(whole.spread):
        notes = [
            f"Scores are of each site's own {whole.judged_words}: folds are held out in turn, at every site at once."
        ]
    notes[:0] = [said for name, said in ATTRIBUTIONS.items() if study.name.startswith(name)]
    notes += [_newcomer_note(run, name) for name in late if run]
    if run is not None and (folds := run.info.get(FOLDED)):
        notes.append(
            f"Afterwards all sites trained {folds['done']} times more, in folds, so that each could find out whether "
            f"joining is worth it there. At a site up to {size(max(folds['crossed'].values()))} crossed in that, which "
            "are not in the tables of this page."
        )
    if run is not None and (refit := run.info.get(REFITTED)):
        notes.append(
            f"The model that `vitrail predict` uses was trained once more on all {study.row_word}s, those held out "
            "included. No score of that model can be given: scores on this page are of the run's own models. At a site "
            f"up to {size(max(refit['crossed'].values()))} crossed in that training, which is not in the tables of "
            "this page."
        )
    if kept:
        notes.append("This run kept its updates: the coordinator saw each site's own report of each round.")
    wires = {m: _wire(whole, m, kept) for m in whole.methods} if run is None else {whole.methods[0]: run.wire()}
    if whole.screening is None and not study.images and not study.screen.ask:
        notes.append("The study asks for no screening (screen.ask = false): whose data does not fit is not told.")
    here = [m for m in TABLE if m in whole.methods]  # in the order of the table of methods
    return Page(
        title=study.name,
        kind="compare" if run is None else "run",
        description=study.description,
        about=_about(whole, run),
        rounds=study.training.rounds,
        metric=study.metrics[0],
        lower_is_better=study.metrics[0] in LOWER_IS_BETTER,
        titles={m: TABLE[m].catalogue.title for m in whole.methods},
        federated=tuple(m for m in here if TABLE[m].catalogue.federated),
        alone=next((m for m in here if TABLE[m].catalogue.alone), None),
        pooled=tuple(m for m in here if TABLE[m].catalogue.pools_rows),
        scores=whole.scores,
        curves=whole.curves,
        summary=whole.summary(),
        verdicts=whole.verdicts(),
        ledger=whole.ledger,
        wire=pd.concat([_wire_table(lines, m) for m, lines in wires.items()], ignore_index=True),
        sites=whole.sites,
        notes=notes,
        chance=whole.chance.groupby(["site", "metric"], sort=False)["value"].mean().reset_index(),
        folds=whole.spread,
        row_word=study.row_word,
        event=" ".join(filter(None, (event_sentence(study.target), decision_sentence(study.target)))),
        newcomers=late,
        run=run,
        screening=whole.screening,
        test_from=study.split.test_from if study.split.by == "date" else "",
    )


def _patients(whole: Comparison) -> list[tuple[str, str]]:
    """How many patients there are, where the study names them."""
    if "test_persons" not in whole.sites:
        return []
    crossed = bool(len(whole.spread))  # then each row is held out once
    parts = ["test"] if crossed else ["train", "test"]
    patients, rows = (int(sum(whole.sites[f"{p}_{what}"].sum() for p in parts)) for what in ("persons", "rows"))
    held = ", each held out once" if crossed else f", {int(whole.sites.test_persons.sum())} of the patients held out"
    return [("Patients", f"{patients}, with {rows} {whole.study.row_word}s{held}; all of a patient stay together")]


def _about(whole: Comparison, run: Run | None) -> list[tuple[str, str]]:
    """Which run, study, methods, seeds, versions and data this is: label, value."""
    training, network = whole.study.training, whole.study.network
    layers = f" {list(network.hidden)}" if network.kind in ("mlp", "cnn") else ""
    if network.weights:
        layers += f", convolutions from {Path(network.weights).name}"
    elif network.kind in ("cnn", "prototypes"):
        layers += f", {network.width} channels first"
    images = whole.study.images
    about = [
        ("Study", whole.study.name),
        ("Methods", ", ".join(TABLE[m].catalogue.title for m in whole.methods)),
        ("Seeds", ", ".join(map(str, whole.seeds)) + _cut(whole)),
        ("Rounds", f"{training.rounds}, with {training.epochs} local epoch(s) each, batches of {training.batch}"),
        ("Network", f"{network.kind}{layers}"),
        *_patients(whole),
        ("Pictures", images.words) if images else ("Standardised", whole.study.standardise),
        ("Versions", ", ".join(f"{k} {v}" for k, v in whole.info["versions"].items())),
        *((f"Data of {site}", f"fingerprint {mark}") for site, mark in whole.info["fingerprints"].items()),
    ]
    if run is not None:
        kept = ("engine", "device", "started", "dropout_rate")
        about += [(k.capitalize().replace("_", " "), str(run.info[k])) for k in kept]
        rows = dict(zip(run.sizes.site, run.sizes.train_rows + run.sizes.test_rows, strict=True))
        for site, lost in run.info.get("no_outcome", {}).items():
            about.append((f"Left out at {site}", describe_lost(lost, lost + int(rows[site]), run.study)))
    return about


def _cut(whole: Comparison) -> str:
    """How rows were held out, and whether it ended early."""
    if whole.spread.empty:
        return ""
    early = "; more were not needed, since every site's answer was clear" if whole.look[0] < whole.look[1] else ""
    return f"; {int(whole.spread['fold'].max()) + 1} folds each{early}"


def _newcomer_note(run: Run, name: str) -> str:
    rows, metric = gains(run), run.study.metrics[0]
    before, after, same = rows[(rows.site == name) & (rows.metric == metric)][["before", "after", "same"]].to_numpy()[0]
    chance = f" ({SAME} would have {same:.3f})" if same == same else ""
    return (
        f"{name} came after training: the shared model stood still and only {name}'s private layers were fitted. "
        f"Its {metric_name(metric)} was {before:.3f} with the shared model and the others' mean layers, and is "
        f"{after:.3f} with its own{chance}. Its data was not screened: sites are, together, before the first round. "
        "The paper's marks are over the layers of all who published, its own among them."
    )


def _wire(whole: Comparison, method: str, kept: bool) -> list[WireEntry]:
    """What crosses in one of many runs: screening is part of none of them, and none tells its rows by risk."""
    study = whole.study.model_copy(update={"bedside": type(whole.study.bedside)()})
    given = {k: v for k, v in study.method.items() if k != "name"} if study.method["name"] == method else {}
    return Plan(study, build(method, given), sites=len(whole.sites)).wire(kept, screened=False)


def _wire_table(lines: Sequence[WireEntry], method: str) -> pd.DataFrame:
    frame = pd.DataFrame([line._asdict() for line in lines])
    frame["shape"] = [" x ".join(map(str, s)) if s else "1 number" for s in frame["shape"]]
    return frame.assign(method=method)


def _comparison_of(run: Run) -> Comparison:
    """A run as a comparison of one."""
    name = name_of(run.method)
    scores = [run.scores(split).assign(method=name, seed=run.seed, split=split) for split in ("test", "train")]
    curves, chance = run.curve().assign(method=name, seed=run.seed), run.baseline().assign(seed=run.seed)
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
        chance,
        run.screening,
    )
