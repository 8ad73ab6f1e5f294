"""From a run or a comparison to the page that shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from vitrail.metrics.skill import worst_site
from vitrail.quality.checks.missing_outcomes import describe_lost
from vitrail.quality.screening.result import Screening
from vitrail.report.pages.frame import write_page
from vitrail.report.pages.links import write_linked
from vitrail.report.pages.run import Page, render
from vitrail.report.pages.vertical import render_together
from vitrail.report.text import SAME
from vitrail.runs.plan import Plan
from vitrail.runs.result import FOLDED, REFITTED, Run
from vitrail.runs.site.newcomer import gains
from vitrail.studies.compare.execution import load_comparison
from vitrail.studies.compare.result import SCORES, SUMMARY, VERDICTS, Comparison
from vitrail.study.model import LOWER_IS_BETTER, Study
from vitrail.vertical.run import VerticalRun, is_together


def write_report(source: Run | Comparison | VerticalRun, path: str | Path) -> Path:
    """One self-contained HTML file at `path`, of a run or a comparison as `source`."""
    path = Path(path)
    if isinstance(source, VerticalRun):
        return write_page(render_together(source), path, "run")
    html = render(page_of(source))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_linked(html, path)
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
    return _page_of_run(source) if isinstance(source, Run) else _page_of_comparison(source)


def _page_of_comparison(whole: Comparison) -> Page:
    study, kept_updates = whole.study, bool(whole.info.get("keep_updates"))
    seeds = f"{', '.join(map(str, whole.seeds))}{_cut(whole)}"
    wires = {m: _wire(whole, m, kept_updates) for m in whole.methods}
    return Page(
        kind="compare",
        about=_about(study, whole.methods, seeds, whole.sites, whole.info, len(whole.spread) > 0, bool(whole.spent))
        + [(f"Rounds of {TABLE[name].catalogue.title}", str(spent.rounds)) for name, spent in whole.spent.items()],
        scores=whole.scores,
        curves=whole.curves,
        summary=whole.summary(),
        verdicts=whole.verdicts(),
        ledger=whole.ledger,
        wire=pd.concat([_wire_table(lines, m) for m, lines in wires.items()], ignore_index=True),
        sites=whole.sites,
        notes=_notes(study, whole.judged_words if len(whole.spread) else "", kept_updates, whole.screening),
        chance=whole.chance.groupby(["site", "metric"], sort=False)["value"].mean().reset_index(),
        folds=whole.spread,
        screening=whole.screening,
        budget=whole.budget.words,
        spent=whole.budget_table(),
        **_study_fields(study, whole.methods),
    )


def _page_of_run(run: Run) -> Page:
    study, method, late = run.study, name_of(run.method), run.info.get("newcomers", [])
    tables = [run.scores(split).assign(split=split) for split in ("test", "train")]
    scores = pd.concat(tables, ignore_index=True).assign(method=method, seed=run.seed)
    chance = run.baseline()
    return Page(
        kind="run",
        about=_about(study, [method], str(run.seed), run.sizes, run.info) + _about_run(run),
        scores=scores[SCORES],
        curves=run.curve().assign(method=method, seed=run.seed),
        summary=_summary(run, method),
        verdicts=pd.DataFrame(columns=VERDICTS),
        ledger=run.ledger.assign(method=method),
        wire=_wire_table(run.wire(), method),
        sites=run.sizes,
        notes=_notes(study, "", bool(run.info.get("keep_updates")), run.screening, _run_notes(run)),
        newcomers=late,
        chance=chance[["site", "metric", "value"]],
        run=run,
        screening=run.screening,
        **_study_fields(study, [method]),
    )


def _study_fields(study: Study, methods: Sequence[str]) -> dict[str, Any]:
    """What a page says of its study and methods."""
    here = [m for m in TABLE if m in methods]  # in the order of the table of methods
    return {
        "title": study.name,
        "description": study.description,
        "rounds": study.training.rounds,
        "metric": study.metrics[0],
        "lower_is_better": study.metrics[0] in LOWER_IS_BETTER,
        "titles": {m: TABLE[m].catalogue.title for m in methods},
        "federated": tuple(m for m in here if TABLE[m].catalogue.federated),
        "alone": next((m for m in here if TABLE[m].catalogue.alone), None),
        "pooled": tuple(m for m in here if TABLE[m].catalogue.pools_rows),
        "row_word": study.row_word,
        "event": " ".join(filter(None, (event_sentence(study.target), decision_sentence(study.target)))),
        "test_from": study.split.test_from if study.split.by == "date" else "",
    }


def _summary(run: Run, method: str) -> pd.DataFrame:
    """For each metric: mean over sites, and the site served worst; of one run there are no intervals."""
    out, baselines = [], run.baseline()
    for metric, part in run.scores("test").groupby("metric", sort=False):
        scores = {str(site): float(value) for site, value in zip(part["site"], part["value"], strict=True)}
        same = baselines[baselines["metric"] == metric]
        chance = {str(site): float(value) for site, value in zip(same["site"], same["value"], strict=True)}
        who = worst_site(scores, chance, metric in LOWER_IS_BETTER) or ""
        mean, worst = float(part["value"].mean()), scores.get(who, math.nan)
        out.append((method, metric, mean, math.nan, math.nan, who, worst, math.nan, math.nan))
    return pd.DataFrame(out, columns=SUMMARY)


def _notes(
    study: Study, judged: str, kept_updates: bool, screening: Screening | None, own: Sequence[str] = ()
) -> list[str]:
    """`judged`: which rows are judged, where folds are held out in turn; `own`: what only this run has."""
    notes = [text for name, text in ATTRIBUTIONS.items() if study.name.startswith(name)]
    if judged:
        notes.append(f"Scores are of each site's own {judged}: folds are held out in turn, at every site at once.")
    else:
        word = study.row_word
        notes.append(f"Scores are of each site's own model on {word}s of that site that no training saw.")
    notes += own
    if kept_updates:
        notes.append("This run kept its updates: the coordinator saw each site's own report of each round.")
    if screening is None and not study.images and not study.screen.ask:
        notes.append("The study asks for no screening (screen.ask = false): whose data does not fit is not told.")
    return notes


def _run_notes(run: Run) -> list[str]:
    notes = [_newcomer_note(run, name) for name in run.info.get("newcomers", [])]
    if folds := run.info.get(FOLDED):
        notes.append(
            f"Afterwards all sites trained {folds['done']} times more, in folds, so that each could find out whether "
            f"joining is worth it there. At a site up to {size(max(folds['crossed'].values()))} crossed in that, which "
            "are not in the tables of this page."
        )
    if refit := run.info.get(REFITTED):
        notes.append(
            f"The model that `vitrail predict` uses was trained once more on all {run.study.row_word}s, those held out "
            "included. No score of that model can be given: scores on this page are of the run's own models. At a site "
            f"up to {size(max(refit['crossed'].values()))} crossed in that training, which is not in the tables of "
            "this page."
        )
    return notes


def _patients(study: Study, sizes: pd.DataFrame, crossed: bool) -> list[tuple[str, str]]:
    """How many patients there are, where the study names them; `crossed`: each row is held out once."""
    if "test_persons" not in sizes:
        return []
    parts = ["test"] if crossed else ["train", "test"]
    patients, rows = (int(sum(sizes[f"{p}_{what}"].sum() for p in parts)) for what in ("persons", "rows"))
    held = ", each held out once" if crossed else f", {int(sizes.test_persons.sum())} of the patients held out"
    return [("Patients", f"{patients}, with {rows} {study.row_word}s{held}; all of a patient stay together")]


def _about(
    study: Study,
    methods: Sequence[str],
    seeds: str,
    sizes: pd.DataFrame,
    info: Mapping[str, Any],
    crossed: bool = False,
    budget: bool = False,
) -> list[tuple[str, str]]:
    """Which study, methods, seeds, versions and data this is: label, value."""
    training, network, images = study.training, study.network, study.images
    most = "at most " if budget else ""
    layers = f" {list(network.hidden)}" if network.kind in ("mlp", "cnn") else ""
    if network.weights:
        layers += f", convolutions from {Path(network.weights).name}"
    elif network.kind in ("cnn", "prototypes"):
        layers += f", {network.width} channels first"
    return [
        ("Study", study.name),
        ("Methods", ", ".join(TABLE[m].catalogue.title for m in methods)),
        ("Seeds", seeds),
        ("Rounds", f"{most}{training.rounds}, with {training.epochs} local epoch(s) each, batches of {training.batch}"),
        ("Network", f"{network.kind}{layers}"),
        *_patients(study, sizes, crossed),
        ("Pictures", images.words) if images else ("Standardised", study.standardise),
        ("Versions", ", ".join(f"{k} {v}" for k, v in info["versions"].items())),
        *((f"Data of {site}", f"fingerprint {mark}") for site, mark in info["fingerprints"].items()),
    ]


def _about_run(run: Run) -> list[tuple[str, str]]:
    """How it was run, and which rows were left out."""
    setting = run.method.setting
    about = [("Setting", f"{setting[:1].upper()}{setting[1:]}.")] if setting else []
    about += [
        (k.capitalize().replace("_", " "), str(run.info[k])) for k in ("engine", "device", "started", "dropout_rate")
    ]
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


def _wire(whole: Comparison, method: str, kept_updates: bool) -> list[WireEntry]:
    """What crosses in one of many runs: screening is part of none of them, and none tells its rows by risk."""
    study = whole.study.with_changes(training={"rounds": whole.rounds_of(method)})
    study = study.model_copy(update={"bedside": type(whole.study.bedside)()})
    given = {k: v for k, v in study.method.items() if k != "name"} if study.method["name"] == method else {}
    return Plan(study, build(method, given), sites=len(whole.sites)).wire(kept_updates, screened=False)


def _wire_table(lines: Sequence[WireEntry], method: str) -> pd.DataFrame:
    frame = pd.DataFrame([line._asdict() for line in lines])
    frame["shape"] = [" x ".join(map(str, s)) if s else "1 number" for s in frame["shape"]]
    return frame.assign(method=method)
