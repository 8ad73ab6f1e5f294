"""Verbs of one run, for who has all tables at hand: draft a study, run it, look at what came out."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli import completion
from vitrail.cli.options import (
    PLACE,
    Answers,
    Data,
    Device,
    Engine,
    Resume,
    Rounds,
    StudyFile,
    parse_away,
    parse_pseudonyms,
    parse_settings,
)
from vitrail.cli.output import defined, kept_size, print_notes, print_run, show_progress
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.loading import without_collector
from vitrail.core.text import print_table


def init(
    data: Annotated[
        list[Path],
        typer.Argument(
            help=(
                "Tables or folders of pictures, one per site; or a folder of them; or one file that holds all sites."
            ),
            **PLACE,
        ),
    ],
    target: Annotated[
        str, typer.Option(help="Column to predict. Folders of pictures need none: their names are the classes.")
    ] = "",
    site_column: Annotated[str, typer.Option(help="Column that names the site, if one file holds all sites.")] = "",
    time: Annotated[str, typer.Option(help="If the target is an event: column with the follow-up time.")] = "",
    out: Annotated[Path, typer.Option(help="Study file to write.")] = Path("study.toml"),
) -> None:
    """Draft a study file from tables or pictures. Kinds, ranges and sizes are guesses: read them before you run."""
    from vitrail.data.drafting.features import infer_table, name_target, read_drafts
    from vitrail.data.event_class import draft_notes
    from vitrail.data.schema import canon
    from vitrail.report.sections.cost import traffic_words
    from vitrail.runs import Plan
    from vitrail.runs.protection.masking import with_secure_sum
    from vitrail.study.model import Study

    if out.exists():
        raise VitrailError(
            "nothing was overwritten", [Problem(str(out), "it exists already.", "Choose another --out.")]
        )
    target = target or name_target(data)
    sites = read_drafts(data, target, site_column)
    draft = infer_table(sites, target, site_column, time)
    given = {"name": out.stem, **({"site_column": site_column} if site_column else {})}
    study = Study.parse({**draft.content, **given}, "the drafted study")
    study = with_secure_sum(study.with_changes(training={"refit": study.images is None}), len(sites))
    notes = [*draft.notes, *draft_notes(study.target)]
    out.write_text("".join(f"# {note}\n" for note in notes) + study.to_toml(), encoding="utf-8")
    if study.images:
        classes = sum((Counter(map(canon, f[target].dropna())) for f in sites.values()), Counter[str]())
        counts = ", ".join(f"{level} {classes[level]}" for level in study.target.levels)
        print(f"Wrote {out}: pictures, {len(sites)} site{'s' * (len(sites) != 1)}, target {target}: {counts}.")
        print("\n".join([study.description, *notes]))
        _say_masked(study)
        print(traffic_words(Plan(study, study.build_method(), sites=len(sites))))
        print("Read it and correct size, channels and bits. Then: vitrail check, vitrail run.")
        return
    print(f"Wrote {out}: {len(study.features)} features, {len(sites)} sites, target {target} ({study.target.kind}).")
    print("".join(f"{note}\n" for note in notes), end="")
    _say_masked(study)
    print(traffic_words(Plan(study, study.build_method(), sites=len(sites))))
    print("Read it and correct units, ranges and codes for missing values. Then: vitrail check, vitrail run.")


def _say_masked(study: Any) -> None:
    if study.protect.sum == "masked":
        print(
            "Secure aggregation is on ([protect] in the study): nobody can read a single site's report, only the sum."
        )
    if study.training.refit:
        print("After scoring, all sites train once more on all rows; predictions use that model (refit in [training]).")


def run(
    study: StudyFile,
    data: Data,
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    method: Annotated[
        str | None, typer.Option(help="Method (default: the study's).", autocompletion=completion.methods)
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Hyperparameter of the method, KEY=VALUE.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (default: the study's first).")] = None,
    engine: Engine = "vectorised",
    device: Device = "cpu",
    dropout_rate: Annotated[float, typer.Option(help="Probability that a site is absent in a round.")] = 0.0,
    away: Annotated[list[str] | None, typer.Option(help="Planned absence: SITE:FIRST-LAST (rounds).")] = None,
    refuse: Annotated[
        list[str] | None,
        typer.Option(
            help="Site that publishes neither summaries of its columns nor its private layers.",
            autocompletion=completion.sites,
        ),
    ] = None,
    pseudonym: Annotated[
        list[str] | None, typer.Option(help="Name under which a site publishes: SITE=PSEUDONYM.")
    ] = None,
    keep_updates: Annotated[
        bool, typer.Option("--keep-updates", help="Keep each site's report of each round, for `vitrail contribution`.")
    ] = False,
    match: Annotated[Path | None, typer.Option(help="Vertical studies: folder of an earlier match.")] = None,
    resume: Resume = False,
) -> None:
    """Train one method over all sites (or all parties) and score it on hold-out rows."""
    from vitrail.cli.vertical import refuse_others, run_parties

    with without_collector():
        from vitrail.data.readers.tables import read_sites
        from vitrail.methods import build
        from vitrail.report.sections.cost import traffic_words
        from vitrail.runs import Plan, federate
        from vitrail.runs.setup import resolve
        from vitrail.study.model import Study

    agreed = Study.load(study)
    chosen: Any = method
    if agreed.parties:
        others = {"--rounds": rounds, "--engine": engine != "vectorised", "--device": device != "cpu", "--away": away}
        others |= {"--refuse": refuse, "--pseudonym": pseudonym, "--keep-updates": keep_updates}
        refuse_others({**others, "--dropout-rate": dropout_rate})
        before = agreed.method if method in (None, agreed.method["name"]) else {"name": method}
        changes = {**before, **parse_settings(set_ or [])}
        run_parties(agreed, data, out, changes, seed, resume, match)
        return
    if match is not None:
        what = "the study has no parties."
        raise VitrailError("the run cannot start", [Problem("--match", what, "Leave it out.")])
    if set_:
        name = method or agreed.method["name"]
        given = {k: v for k, v in agreed.method.items() if k != "name"} if name == agreed.method["name"] else {}
        chosen = build(name, {**given, **parse_settings(set_)})
    tables = read_sites(data, agreed)
    print(traffic_words(Plan(*resolve(agreed, chosen, rounds), sites=len(tables)), keep_updates), flush=True)
    with show_progress() as step:
        result = federate(
            agreed,
            tables,
            method=chosen,
            rounds=rounds,
            seed=seed,
            engine=engine,
            device=device,
            out=out,
            resume=resume,
            dropout_rate=dropout_rate,
            away=parse_away(away or []),
            refuse=refuse or [],
            pseudonyms=parse_pseudonyms(pseudonym or []),
            keep_updates=keep_updates,
            progress=lambda done, total: step("rounds", done, total),
        )
    from vitrail.report.pages.builder import write_report  # not needed before

    print_run(result)
    if keep_updates:
        print(f"\nUpdates kept: {kept_size(out)}. The coordinator sees each site's own report.")
    print(f"\nRun:  {out.resolve()}\nPage: {write_report(result, out / 'report.html').resolve()}")


def screen(
    study: StudyFile,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Folder for screen.html and screen.json.")] = None,
    answers: Answers = None,
) -> None:
    """Find out before any training whose data does not fit the others', where, and why. Exit codes: 0 nothing is likely
    wrong, 1 something is likely wrong, 2 the data cannot be read.
    """
    from vitrail.data.readers.tables import read_sites
    from vitrail.quality.known_findings import read_answers, with_known
    from vitrail.quality.screening.text import to_text, twin_sentences
    from vitrail.report.sections.screening import published, write_screen
    from vitrail.runs.screening import SCREEN, save_screening, screen_sites
    from vitrail.study.model import Study

    agreed, known_findings = Study.load(study), read_answers(answers or [])
    screening = with_known(screen_sites(agreed, read_sites(data, agreed)), known_findings, agreed.target.column)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        page = write_screen(agreed, screening, out / "screen.html")
        save_screening(out / SCREEN, screening)
    print(f"{to_text(screening)}\n\nWhat each site publishes for this: numbers in all, and of a column at most\n")
    print_table(["site", f"{agreed.unit_word}s", "numbers", "of a column", "judged"], published(agreed, screening))
    if out is not None:
        print(f"\nPage: {page.resolve()}")
    raise typer.Exit(1 if screening.wrong or twin_sentences(screening) else 0)


def wire(
    method: Annotated[str, typer.Argument(help="The method.", autocompletion=completion.methods)],
    study: Annotated[Path | None, typer.Argument(help="Study file (default: the heart disease study).")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Hyperparameter of the method, KEY=VALUE.")] = None,
    sites: Annotated[int, typer.Option(min=1, help="Number of sites, where the size of messages depends on it.")] = 4,
) -> None:
    """List what leaves a site and what comes in, by name, shape and bytes, for a method (or ndoye) and a study."""
    with without_collector():
        from vitrail.data.datasets.catalogue import packaged
        from vitrail.methods import PARTIES, build
        from vitrail.runs import Plan
        from vitrail.runs.protection.budget import budget_words, spent_by
        from vitrail.runs.protection.masking import not_masked
        from vitrail.runs.screening import SCREENING
        from vitrail.runs.verdict_wire import FOLDS, REFIT, fold_count
        from vitrail.study.model import Study

    agreed = Study.load(study or packaged("heart_disease.toml"))
    if method in PARTIES:
        what = "what crosses between parties depends on the number of columns of each guest."
        hint = "You find it on the page of a run and in its wire.csv."
        raise VitrailError("there is no table", [Problem(method, what, hint)])
    travels = method == "ndoye" or agreed.transfer is not None
    if travels:
        from vitrail.studies.transfer import STAGE, on_trust, transfer_lines, travel_lines

    if method == "ndoye":
        title = f"Adapted Ndoye factor, before any training together, {sites} sites"
        lines = transfer_lines(agreed, sites)
    else:
        chosen = build(method, parse_settings(set_ or []))
        plan = Plan(agreed, chosen, sites=sites)
        lines = (travel_lines(agreed, sites) if agreed.transfer else []) + plan.wire() + plan.later_wire()
        title = f"{chosen.catalogue.title}, {agreed.training.rounds} rounds" + (
            f", {sites} sites" if chosen.wire.per_site_messages else ""
        )
    rows = [
        [
            x.stage,
            x.direction,
            x.name,
            " x ".join(map(str, x.shape)) or "1",
            x.dtype,
            f"{x.bytes:,}",
            x.rounds,
            x.seen,
        ]
        for x in lines
    ]
    one = agreed.row_word
    print(f"{title}, on the study {agreed.name!r}\n")
    print_table(["stage", "direction", "tensor", "shape", "type", "bytes", "times", "seen"], rows)
    print()
    for direction, words in (("from site", "leaves"), ("to site", "reaches")):
        total = sum(x.bytes * x.rounds for x in lines if x.direction == direction and not x.per_row)
        print(f"In all {total / 1e6:,.2f} MB {words} each site.")
    if rows_too := sum(x.bytes for x in lines if x.per_row):
        words = (
            f"for every training {one}: THE {one.upper()}S THEMSELVES LEAVE THE SITE. This is a baseline, not for use."
        )
        print(f"And {rows_too} bytes {words}")
    if screening_lines := [x for x in lines if x.stage.startswith(SCREENING)]:
        print("\nBefore the first round, where a site agrees: whose data does not fit ([screen] in the study)")
        print("\n".join(f"  {x.stage}, {x.direction}, {x.name}: {x.words}" for x in screening_lines))
        print()
    if travels and (travelling := [x for x in lines if x.stage == STAGE]):
        print(f"\nBefore the first round, where a site agrees: whose model carries over to whose {one}s")
        print("\n".join(dict.fromkeys(f"  {x.direction}, {x.name.split('/')[0]}: {x.words}" for x in travelling)))
        print()
    if any(x.stage.startswith(FOLDS) for x in lines):
        print(f"folds: between machines all sites train {fold_count(agreed)} more times after the run, so that each")
        print("can find out whether joining is worth it there ([verdict] in the study).\n")
    if any(x.stage.startswith(REFIT) for x in lines):
        print(
            "refit: after the run all sites train once more, on all of their rows. `vitrail predict` uses that model;"
        )
        print("scores stay those of the run (refit in [training]).\n")
    if method != "ndoye" and (spent := spent_by(agreed, chosen)):
        print(f"{budget_words(spent)}\n")
    if method != "ndoye" and agreed.protect.sum == "masked":
        for why, hint in not_masked(plan, sites):
            print(f"Between machines this study would be refused: {why}. {hint}\n")
    print("seen = sum: the coordinator needs only the total over sites; each: it sees each site's own values.")
    if any(x.seen == "masked" and not x.stage.startswith(SCREENING) for x in lines):
        least = agreed.protect.least
        print(
            "masked: the coordinator can read the total of more than two thirds of the sites, of at least "
            f"{least}, and no single site's values"
        )
        print("([protect] in the study).")
        print(
            "Each masked report is accompanied by keys and sealed shares, in the message header; between "
            "machines all of it is logged."
        )
    print(f"This table lists what is sent. It does not say what could be learned from it about the {one}s behind it.")
    if method == "ndoye":
        print(f"Every site's model goes to every other site, through the coordinator. {on_trust(one)}")


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run or a comparison.")],
    out: Annotated[Path | None, typer.Option(help="HTML file to write.")] = None,
) -> None:
    """Write the report of a run or a comparison as one HTML file that needs no network."""
    from vitrail.report.pages.builder import load, write_report

    print(write_report(load(run), out or run / "report.html").resolve())


def verify(
    place: Annotated[Path, typer.Argument(help="Folder of a run or comparison; or a site's kit, home or outbox.")],
    authority: Annotated[
        Path | None, typer.Option(help="Certificate of the study's authority, or an invitation that contains it.")
    ] = None,
) -> None:
    """Verify a run folder or an outbox: report changed, missing and added files, and who signed them. Exit codes: 0
    intact, 1 modified, 2 unreadable.
    """
    from vitrail.core.text import several
    from vitrail.deploy.audit.verification import verify as look

    report = look(place, authority)
    for problem in report.wrong:
        print(f"WRONG  {problem}")
    print(f"fine   {several(report.files, 'file')} as written; {several(len(report.links), 'line')} in the log.")
    for note in report.notes:
        print(f"note   {note}")
    if report.links:
        print(f"Last hash of the log: {report.links[-1].digest}")
    raise typer.Exit(1 if report.wrong else 0)


def ui(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or in progress.")],
    port: Annotated[int, typer.Option(help="Port (0: any free port).")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than 127.0.0.1 requires a token.")
    ] = "127.0.0.1",
) -> None:
    """Follow a run in the browser: rounds, scores, traffic, and sites that disconnect and reconnect, live."""
    import json

    from vitrail.report.live.server import check_folder, start
    from vitrail.runs.folder import check_sites
    from vitrail.storage.untrusted_files import read_text

    with suppress(OSError, ValueError, AttributeError, RecursionError):
        check_sites(run, json.loads(read_text(run / "run.json")))
    check_folder(run)
    live = start(run, host, port)
    print(f"{live.url}\nCtrl-C ends the page, not the run.", flush=True)
    with suppress(KeyboardInterrupt):
        live.thread.join()
    live.stop()


def adopt(
    run: Annotated[Path, typer.Argument(help="Folder of a run with private layers.")],
    site: Annotated[str, typer.Option(help="Name of the new site.")],
    data: Annotated[Path, typer.Option("--data", help="The new site's own file.", **PLACE)],
    out: Annotated[Path, typer.Option(help="Run folder to write; the old one is not changed.")],
) -> None:
    """Add a new site to a finished run: the site fits its own private layers, and the shared model does not change."""
    from vitrail.data.readers.tables import read_table
    from vitrail.report.pages.builder import write_report
    from vitrail.runs import Run
    from vitrail.runs.site.newcomer import gains

    loaded = Run.load(run)
    result, word = loaded.adopt(site, read_table(data, loaded.study)), loaded.study.row_word
    result.save(out)
    rows = gains(result)
    print(f"{site}, on its own hold-out {word}s: the shared model unchanged, and with layers fitted to this site\n")
    mine = rows[rows.site == site]
    columns = ["metric", "before", "after", "same"]
    print_table([*columns[:-1], "baseline"], mine[columns].map(defined).to_numpy().tolist())
    few = mine.few_rows.iloc[0]
    print_notes({site: few} if few else {}, [], word, True)
    print(f"\nRun:  {out.resolve()}\nPage: {write_report(result, out / 'report.html').resolve()}")


def methods() -> None:
    """List the methods and their hyperparameters."""
    from vitrail.cli.method_list import describe_methods

    rows = []
    for method in describe_methods():
        defaults = ", ".join(f"{name}={default!r}" for name, default in method.defaults.items() if default is not None)
        rows.append([method.name, method.title, defaults, method.summary])
    print_table(["name", "title", "hyperparameters", "what it does"], rows)
