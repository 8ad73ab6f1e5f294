"""Studies with parties, who hold columns of the same people: what the verbs do with these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.options import StudyFile
from vitrail.cli.output import show_progress
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.text import print_table

if TYPE_CHECKING:
    import pandas as pd

    from vitrail.study.model import Study
    from vitrail.vertical.matching.match import Match
    from vitrail.vertical.run import VerticalRun


def match(
    study: StudyFile,
    data: Annotated[Path, typer.Option("--data", help="A folder with a table for each party, named after it.")],
    places: Annotated[
        bool, typer.Option("--places", help="All parties consent: each learns which of its rows are in common.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder for each party's own file, with --places.")] = Path("match"),
) -> None:
    """Count the patients that the parties of a study have in common; with --places, write a file for each party with
    its own matched rows.
    """
    from vitrail.core.text import size
    from vitrail.study.model import Study
    from vitrail.vertical.matching.match import consent
    from vitrail.vertical.matching.match import match as find
    from vitrail.vertical.tables import read_parties

    agreed = Study.load(study)
    matched = find(agreed, read_parties(data, agreed), places=places)
    lists = ", ".join(f"{party} {rows}" for party, rows in matched.rows.items())
    print(f"{matched.common} in common ({lists}).")
    for guests, rows in matched.with_some.items() if len(agreed.guests) > 1 else ():
        print(f"  with {' and '.join(guests)} alone: {rows}, {rows - matched.common} more than with all")
    sent = sum(crossed.bytes for crossed in matched.crossed)
    print(f"{len(matched.crossed)} messages would cross between the parties, {size(sent)}.")
    if not places:
        print("\nWhat each consents to with --places:")
        for party in agreed.parties:
            print(f"\n{party}\n" + "\n".join(f"  - {sentence}" for sentence in consent(agreed, party)))
        return
    for party, file in zip(matched.places, matched.save(out), strict=True):
        print(f"  {file}: the rows of {party}. It stays with {party}.")


def refuse_others(given: Mapping[str, Any]) -> None:
    """Options that mean nothing here."""
    if lost := [k for k, v in given.items() if v]:
        what = "it is for sites with rows of different people, and the study has parties."
        raise VitrailError("the run cannot start", [Problem(k, what, "Leave it out.") for k in lost])


def run_parties(
    agreed: Study, data: Path, out: Path, changes: Mapping[str, Any], seed: int | None, resume: bool, match: Path | None
) -> None:
    """`vitrail run` of a study with parties."""
    from vitrail.report.pages.builder import write_report
    from vitrail.vertical.matching.match import Match
    from vitrail.vertical.pipeline import together
    from vitrail.vertical.tables import read_parties

    study = agreed.with_changes(method=dict(changes)) if changes else agreed
    tables = read_parties(data, study)
    with show_progress() as step:
        run = together(
            study,
            tables,
            seed=seed,
            out=out,
            resume=resume,
            match=None if match is None else Match.load(match),
            data=str(data.resolve()),
            progress=lambda done, total: step("batches", done, total),
            counted=_print_count,
        )
    print_together(run)
    print(f"\nRun:  {out.resolve()}\nPage: {write_report(run, out / 'report.html').resolve()}")
    folders = ", ".join(f"parties/{party}" for party in study.parties)
    print(f"Private, one folder each: {folders}. Each party's own page: vitrail explain {out} [--party NAME]")


def _print_count(matched: Match) -> None:
    lists = ", ".join(f"{party} {rows}" for party, rows in matched.rows.items())
    print(f"{matched.common} in common ({lists}).", flush=True)


def print_together(run: VerticalRun) -> None:
    from vitrail.report.pages.vertical import to_text
    from vitrail.vertical.training.knn import GIVES_AWAY

    if run.method.joint == "neighbours":
        print(f'A simulation: between machines it needs trust = "full". {GIVES_AWAY}')
    header, rows, findings = to_text(run)
    print(f"\n{run.method.catalogue.title}, on {run.scored} held-out rows of {run.study.host}\n")
    print_table(header, rows)
    print()
    for line in findings:
        print(f"- {line}")


def tables_of(run: VerticalRun, data: Path | None) -> dict[str, pd.DataFrame]:
    """From --data, or from where they were when it was run. Between machines the host's own, which is a file."""
    from vitrail.vertical.tables import read_parties, read_party

    if not run.on_one_machine and data is not None:
        return {run.study.host: read_party(data, run.study, run.study.host)}
    place = data or Path(run.tables_at or ".")
    if data is None and not (run.tables_at and place.is_dir()):
        what = "the run knows no tables." if run.on_one_machine else "expected the host's own table."
        if run.tables_at:
            what = f"the tables were in {place}, and are there no more."
        hint = "Give their folder." if run.on_one_machine else "Give it."
        raise VitrailError("the parties are not at hand", [Problem("--data", what, hint)])
    return read_parties(place, run.study)


def predict_parties(
    place: Path,
    new: Path | None,
    without: Sequence[str],
    data: Path | None,
    blind: bool,
    today: Sequence[str],
    out: Path | None,
    id_: str = "",
) -> None:
    """`vitrail predict` of a run with parties."""
    from vitrail.data.readers.source import to_place
    from vitrail.data.readers.tables import read_table
    from vitrail.runs.site.prediction_ids import name_rows_by
    from vitrail.storage.csv_files import to_csv
    from vitrail.vertical.run import VerticalRun

    run = VerticalRun.load(place)
    if new is None:
        what = f"expected a table with the columns of {run.study.host}."
        raise VitrailError("cannot predict", [Problem("NEW", what, "vitrail predict RUN new.csv")])
    newer = {}
    for given in today:
        name, equals, file = given.partition("=")
        if not equals:
            what = f"expected GUEST=FILE, got {given!r}."
            raise VitrailError("cannot predict", [Problem("--today", what, "Write for example --today lab=lab.csv.")])
        newer[name] = read_table(to_place(file))
    blind = blind or bool(newer)
    tables = tables_of(run, data) if blind or data is not None else None
    frame = read_table(new, run.study)
    named = name_rows_by(id_, frame, run.study)
    predicted = run.predict(frame, without, tables, blind, newer)
    text = to_csv(named(predicted.table), "line")
    if out is None:
        print(text, end="")
        for line in predicted.words:
            typer.echo(line, err=True)  # not among the rows
        return
    write_new(out, text)
    print(f"{out.resolve()}: {len(predicted.table)} rows, with the model of {run.study.host}.")
    for line in predicted.words:
        print(line)


def write_new(out: Path, text: str) -> None:
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        what = f"it cannot be written: {error.strerror}."
        raise VitrailError("nothing was written", [Problem(str(out), what, "Choose another --out.")]) from None


def explain_parties(
    place: Path,
    data: Path | None,
    rows: int,
    ids: Sequence[str],
    party: str,
    feature: str | None,
    outcome: str | None,
    seed: int,
    out: Path | None,
    whole_space: bool = False,
) -> None:
    """`vitrail explain` of a run with parties: the host's own page, or, where all are on this machine, a guest's."""
    from vitrail.core.errors import nearest
    from vitrail.report.pages.explanation import to_text, write_explained
    from vitrail.runs.folder import site_folder
    from vitrail.vertical.run import VerticalRun

    run = VerticalRun.load(place)
    who = party or run.study.host
    if who not in run.study.parties:
        hint = nearest(who, run.study.parties)
        raise VitrailError("cannot explain", [Problem("--party", f"the study has no party {who!r}.", hint)])
    tables = tables_of(run, data)
    if who == run.study.host:
        whole = run.explain(rows, tables, outcome, seed, whole_space)
        shown = run.explain(list(ids), tables, outcome) if ids else None
    elif whole_space:
        what = f"{who} knows its own columns alone."
        raise VitrailError("cannot explain", [Problem("--whole", what, "Leave out --party, or --whole.")])
    else:
        whole = run.explain_guest(who, rows, tables, seed)
        shown = run.explain_guest(who, list(ids), tables) if ids else None
    path = out or Path(f"explain-{site_folder(who)}.html")
    page = write_explained(whole, path, site=who, study=run.study.name, shown=shown, feature=feature)
    print(f"{to_text(whole, who, shown)}\n\nPage: {page.resolve()}")


def host_run_of(kit: Path, run: str | None = None) -> Path | None:
    """Of the kit of a party: the run that its host keeps."""
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.vertical.postrun import host_run

    if not (kit / "invitation.json").exists():
        return None
    own = enrolment.load_kit(kit)
    return host_run(own, run) if own.study.parties else None


def demo_vertical(target: Path, seeds: int) -> Study:
    """A hospital and a laboratory with the same patients: what the laboratory's columns are worth to the hospital."""
    import numpy as np

    from vitrail.data.datasets import catalogue as datasets
    from vitrail.report.pages.builder import write_report
    from vitrail.report.pages.explanation import to_text, write_explained
    from vitrail.study.model import Study
    from vitrail.vertical.pipeline import together
    from vitrail.vertical.tables import read_parties

    folder = target / "parties"
    folder.mkdir(parents=True)
    given = datasets.cleveland_parties()
    for party in ("hospital", "lab"):
        given[party].to_csv(folder / f"{party}.csv", index=False)
    given["new"].to_csv(target / "new.csv", index=False)
    (folder / "lab.toml").write_text(datasets.packaged("vertical_lab.toml").read_text("utf-8"), encoding="utf-8")
    text = datasets.packaged("vertical.toml").read_text("utf-8")
    (target / "study.toml").write_text(text, encoding="utf-8")
    study = Study.load(target / "study.toml")
    print("A hospital knows who is ill; a laboratory has ECG and stress test of the same patients. Neither shows its")
    print("columns. What are the laboratory's worth to the hospital? All of it on this machine, nothing is sent.")
    print()
    tables = read_parties(folder, study)
    with show_progress() as step:
        run = together(
            study,
            tables,
            out=target / "run",
            data=str(folder.resolve()),
            progress=lambda done, total: step("batches", done, total),
            counted=_print_count,
        )
        print_together(run)
        print_seeds(study, tables, run, 2 * seeds, step)
    whole = run.explain(1000)
    at = int(np.argmax(np.abs(whole.values[:, -1])))
    one = run.explain([whole.rows[at]])
    print("\nOne patient explained at the hospital, the one for whom the laboratory matters most\n")
    explained = to_text(one, "hospital", one)
    print(explained[explained.index("Row ") :])
    new = run.predict(given["new"][:1], blind=True)
    print("\nA new patient, looked up blindly: the laboratory counts a question and does not learn of whom it was")
    print(f"  disease with probability {new.table.iloc[0]['1']:.2f}. {new.words[0]}")
    pages = {
        "for both": write_report(run, target / "run" / "report.html"),
        "the hospital's own": write_explained(
            whole, target / "explain-hospital.html", site="hospital", study=study.name, shown=one
        ),
        "the laboratory's own": write_explained(
            run.explain_guest("lab"), target / "explain-lab.html", site="lab", study=study.name
        ),
    }
    print("\nPages")
    for whose, page in pages.items():
        print(f"  {whose}: {page.resolve()}")
    print(f"Go on with: vitrail predict {target / 'run'} {target / 'new.csv'} --without lab")
    return study


def print_seeds(
    study: Study,
    tables: Mapping[str, pd.DataFrame],
    run: VerticalRun,
    seeds: int,
    step: Callable[[str, int, int], None],
) -> None:
    """The same again, other rows held out; and what answers that are neither rounded nor noisy would bring."""
    from vitrail.core.text import number, signed
    from vitrail.stats.intervals import interval
    from vitrail.studies.compare.execution import seeds_of
    from vitrail.vertical.pipeline import ALONE, TOGETHER, together

    metric, bare = study.metrics[0], {"bits": 0, "noise": 0.0}
    plain = study.with_changes(parties={g: {**study.parties[g].model_dump(), **bare} for g in study.guests})
    by_seed: dict[str, list[float]] = {}
    for i, seed in enumerate(seeds_of(study, seeds)):
        for words, one in (("as agreed", study), ("as they are", plain)):
            scores = together(one, tables, seed=seed, match=run.match).scores
            value = scores[scores.metric == metric].set_index("model").value
            by_seed.setdefault("host alone", []).append(value[ALONE])
            by_seed.setdefault(f"with its answers {words}", []).append(value[TOGETHER] - value[ALONE])
        step("seeds", i + 1, seeds)
    share = len(run.terms.test) / run.terms.rows
    print(f"\nOver {seeds} ways to hold out a third of the rows: mean gain in {metric} (95 % interval)\n")
    rows = []
    for words, values in by_seed.items():
        if words != "host alone":
            mean, low, high = interval(values, share)
            rows.append([words, signed(mean), f"{signed(low)} to {signed(high)}" if low == low else "one seed"])
    print_table(["the laboratory", "gain", "95 % interval"], rows)
    print(f"The hospital alone: {number(float(sum(by_seed['host alone']) / len(by_seed['host alone'])))}.")
    print("Settings were chosen on these patients: the intervals are too favourable to be evidence of a gain.")
