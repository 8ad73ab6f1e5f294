"""The command line. Thin: every verb reads its arguments, calls one function and prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from vitrail.core.problems import Problem, VitrailError
from vitrail.core.table import print_table
from vitrail.deploy.verbs import VERBS

if TYPE_CHECKING:
    from vitrail.studies import Comparison

app = typer.Typer(
    help="Vitrail: federated learning that can be seen through.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StudyFile = Annotated[Path, typer.Argument(help="The study file (TOML).")]
Data = Annotated[
    Path,
    typer.Option("--data", help="A folder with one CSV or Parquet file per site, or one file with a site column."),
]
Engine = Annotated[str, typer.Option(help="vectorised (all sites at once) or looped (one after the other).")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds, instead of the study's.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes; 0: as many as there are cores.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what is in --out.")]


def main() -> None:
    """Entry point: a user's mistake is told in words, never as a traceback."""
    try:
        app()
    except VitrailError as error:
        fail(error)
    except KeyboardInterrupt:
        print("\nStopped. What was finished is kept; continue with --resume.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


def fail(error: VitrailError) -> NoReturn:
    print(f"vitrail: {error}", file=sys.stderr)
    sys.exit(2)


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"vitrail {version('vitrail')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True)] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each method.")] = 5,
) -> None:
    """Federate the four real hospitals of the UCI heart disease data, offline, and write a page about it."""
    from vitrail.data.datasets import HEART_ATTRIBUTION, heart_disease, packaged
    from vitrail.methods import named
    from vitrail.report.build import write_report
    from vitrail.studies.compare import compare, seeds_of
    from vitrail.study import Study

    study = Study.load(packaged("heart_disease.toml"))
    print("Four hospitals, 920 patients. Is a coronary artery narrowed? Each hospital keeps its rows.")
    print(f"{HEART_ATTRIBUTION}\n")
    target = free_folder(out)
    with bar() as step:
        result = compare(
            study,
            heart_disease(),
            named(lambda kind: not kind.tune_first),
            seeds_of(study, seeds),
            out=target,
            workers=cores(),
            progress=step,
        )
    print_comparison(result)
    print(f"\nPage: {write_report(result, target / 'report.html').resolve()}")


@app.command()
def init(
    data: Annotated[list[Path], typer.Argument(help="Tables, one per site; or a folder; or one table of all sites.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    site_column: Annotated[str, typer.Option(help="The column that names the site, when one file holds all.")] = "",
    out: Annotated[Path, typer.Option(help="The study file to write.")] = Path("study.toml"),
) -> None:
    """Draft a study file from tables. Kinds, ranges and categories are guesses: read them before you run."""
    from vitrail.data.infer import read_drafts
    from vitrail.study import Study

    if out.exists():
        raise VitrailError(
            "nothing was overwritten", [Problem(str(out), "it exists already.", "Choose another --out.")]
        )
    sites = read_drafts(data, target, site_column)
    study = Study.infer(sites, target, name=out.stem, **({"site_column": site_column} if site_column else {}))
    study.save(out)
    skipped = {str(c) for f in sites.values() for c in f.columns} - set(study.features) - {target, site_column}
    print(f"Wrote {out}: {len(study.features)} features, {len(sites)} sites, target {target} ({study.target.kind}).")
    if skipped:
        print(f"Left out (constant, empty, free text or identifiers): {', '.join(sorted(skipped))}.")
    print("Read it: units, ranges and codes for missing values are yours to correct. Then: vitrail check, vitrail run.")


@app.command()
def check(
    study: StudyFile,
    file: Annotated[Path, typer.Argument(help="The site's own table.")],
    json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Check one site's file against the study, alone and offline. Exit code 0 fine, 1 findings, 2 cannot read."""
    from vitrail.data.check import check as look
    from vitrail.data.check import to_json, to_text
    from vitrail.data.read import read_table
    from vitrail.study import Study

    agreed = Study.load(study)
    frame = read_table(file, agreed)
    findings = look(frame, agreed)
    print((to_json if json else to_text)(findings, file.name, len(frame)))
    raise typer.Exit(1 if findings else 0)


@app.command()
def run(
    study: StudyFile,
    data: Data,
    out: Annotated[Path, typer.Option(help="The run folder to write.")],
    method: Annotated[str | None, typer.Option(help="Method, instead of the study's.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Hyperparameter of the method: KEY=VALUE.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the study's first.")] = None,
    engine: Engine = "vectorised",
    device: Device = "cpu",
    dropout_rate: Annotated[float, typer.Option(help="Chance that a site is absent in a round.")] = 0.0,
    away: Annotated[list[str] | None, typer.Option(help="A planned absence, SITE:FIRST-LAST rounds.")] = None,
    refuse: Annotated[list[str] | None, typer.Option(help="A site that does not publish its private layers.")] = None,
    pseudonym: Annotated[
        list[str] | None, typer.Option(help="The name a site publishes its layers under: SITE=PSEUDONYM.")
    ] = None,
    keep_updates: Annotated[
        bool, typer.Option("--keep-updates", help="Keep what each site reports in each round, for `contribution`.")
    ] = False,
    resume: Resume = False,
) -> None:
    """Train one method over all sites and score every site on its own hold-out rows."""
    from vitrail import methods
    from vitrail.data.read import read_sites
    from vitrail.explain.trust import read_trust
    from vitrail.report.build import write_report
    from vitrail.report.findings import no_shifts
    from vitrail.runs import federate
    from vitrail.study import Study

    agreed = Study.load(study)
    chosen: Any = method
    if set_:
        name = method or agreed.method["name"]
        given = {k: v for k, v in agreed.method.items() if k != "name"} if name == agreed.method["name"] else {}
        chosen = methods.build(name, {**given, **parse_settings(set_)})
    with bar() as step:
        result = federate(
            agreed,
            read_sites(data, agreed),
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
    table = result.scores().pivot(index="site", columns="metric", values="value").loc[result.sites]
    print_table(
        ["site", *result.study.metrics],
        [[s, *(table.loc[s, m] for m in result.study.metrics)] for s in table.index],
    )
    if result.shift_table is not None:
        print("\nWhose data does not fit?")
        found = result.findings()
        print("\n".join(f"  - {f.text}" for f in found) or f"  {no_shifts(result.shifts())}")
    if trust := read_trust(result.sites, result.facts):
        words = "How far each site trusts the others after the last round: 1 fully, 0 no more"
        if trust.shares:
            words = "Whom each site learned from: share of its model, mean over rounds"
        print(f"\n{words}\n")
        shown = trust.mean if trust.shares else trust.final
        print_table(["user", *trust.sites], [[u, *map(float, a)] for u, a in zip(trust.sites, shown, strict=True)])
    if keep_updates:
        print(f"\nUpdates kept: {kept_size(out)}. The coordinator sees each site's own report.")
    print(f"\nRun:  {out.resolve()}\nPage: {write_report(result, out / 'report.html').resolve()}")


@app.command()
def compare(
    study: StudyFile,
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, separated by commas; or all. Without it, the yardsticks and the default method."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    rounds: Rounds = None,
    engine: Engine = "vectorised",
    device: Device = "cpu",
    workers: Workers = 0,
    resume: Resume = False,
) -> None:
    """Compare methods over seeds: mean and worst site with intervals, and for each site whether joining is worth it."""
    from vitrail.data.read import read_sites
    from vitrail.report.build import write_report
    from vitrail.studies.compare import compare as side_by_side
    from vitrail.studies.compare import seeds_of
    from vitrail.study import Study

    agreed = Study.load(study)
    names = parse_methods(methods)
    with bar() as step:
        result = side_by_side(
            agreed,
            read_sites(data, agreed),
            names,
            seeds_of(agreed, seeds),
            rounds=rounds,
            engine=engine,
            device=device,
            out=out,
            resume=resume,
            workers=workers or (1 if device != "cpu" else cores()),
            progress=step,
        )
    print_comparison(result)
    print(
        f"\nTable: {(out / 'comparison.csv').resolve()}\nPage:  {write_report(result, out / 'report.html').resolve()}"
    )


@app.command()
def wire(
    method: Annotated[str, typer.Argument(help="The method.")],
    study: Annotated[Path | None, typer.Argument(help="The study file; without it, the heart disease study.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Hyperparameter of the method: KEY=VALUE.")] = None,
    sites: Annotated[int, typer.Option(min=1, help="How many sites, where messages grow with them.")] = 4,
) -> None:
    """What leaves a site and what comes in, by name, shape and bytes, for that method (or ndoye) and this study."""
    from vitrail import methods
    from vitrail.data.datasets import packaged
    from vitrail.runs import wire_lines
    from vitrail.study import Study

    agreed = Study.load(study or packaged("heart_disease.toml"))
    if method == "ndoye":
        from vitrail.studies.transfer import TRUST, transfer_lines

        title, lines = (
            f"Adapted Ndoye factor, before any training together, {sites} sites",
            transfer_lines(agreed, sites),
        )
    else:
        chosen = methods.build(method, parse_settings(set_ or []))
        lines = wire_lines(agreed, chosen, sites=sites)
        title = f"{chosen.title}, {agreed.training.rounds} rounds" + (f", {sites} sites" if chosen.grows else "")
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
    print(f"{title}, on the study {agreed.name!r}\n")
    print_table(["stage", "direction", "tensor", "shape", "type", "bytes", "times", "seen"], rows)
    print()
    for direction, words in (("from site", "leaves"), ("to site", "reaches")):
        total = sum(x.bytes * x.rounds for x in lines if x.direction == direction and not x.per_row)
        print(f"In all {total / 1e6:,.2f} MB {words} each site.")
    if rows_too := sum(x.bytes for x in lines if x.per_row):
        print(f"And {rows_too} bytes for every training row: THE ROWS THEMSELVES LEAVE. A yardstick, not for use.")
    print("seen = sum: the coordinator needs only the total over sites; each: it sees every site's own.")
    print("This table says what travels, not what could be learned from it about the rows behind it.")
    if method == "ndoye":
        print(f"Every site's model goes to every other site, through the coordinator. {TRUST}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run or a comparison.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file to write.")] = None,
) -> None:
    """Write the page of a run or a comparison: one HTML file that needs no network."""
    from vitrail.report.build import load, write_report

    print(write_report(load(run), out or run / "report.html").resolve())


@app.command()
def ui(
    run: Annotated[Path, typer.Argument(help="The folder of a run, finished or being written.")],
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="Anything but 127.0.0.1 asks for a token.")] = "127.0.0.1",
) -> None:
    """Follow a run in the browser: sites, rounds, curves, bytes, losses and returns as they happen."""
    from vitrail.report.live import check_folder, start

    check_folder(run)
    live = start(run, host, port)
    print(f"{live.url}\nCtrl-C ends the page, not the run.", flush=True)
    with suppress(KeyboardInterrupt):
        live.thread.join()
    live.stop()


@app.command()
def look(
    data: Annotated[Path, typer.Option("--data", help="The site's own file.")],
    run: Annotated[Path | None, typer.Argument(help="The folder of a run with private layers; not with --kit.")] = None,
    site: Annotated[str, typer.Option(help="The site whose own eyes these are.")] = "",
    kit: Annotated[Path | None, typer.Option(help="The site's kit, where it took part between machines.")] = None,
    feature: Annotated[list[str] | None, typer.Option(help="A column to look at besides the findings'.")] = None,
    out: Annotated[Path | None, typer.Option(help="The HTML file; without it, look-SITE.html here.")] = None,
) -> None:
    """At a site, alone: its own rows behind each of its marks, with a likely cause and a repair. Nothing leaves."""
    from vitrail.data.read import read_table
    from vitrail.explain.text import to_text
    from vitrail.report.private import write_private
    from vitrail.runs import Run
    from vitrail.runs.folder import site_folder
    from vitrail.runs.look import look_behind

    if (run is None) == (kit is None):
        what = "expected one of them: a run folder with --site, or --kit where the site took part between machines."
        raise VitrailError("cannot look", [Problem("RUN or --kit", what)])
    if kit is not None:
        from vitrail.deploy import enrol, personal

        mine = personal.load_model(enrol.load_kit(kit))
        seen = mine.look(read_table(data, mine.model.study), feature or [])
    else:
        assert run is not None
        told = Run.load(run)
        seen = look_behind(told, site, read_table(data, told.study), feature or [])
    page = write_private(seen, out or Path(f"look-{site_folder(seen.site)}.html"))
    print(f"{to_text(seen)}\n\nPage: {page.resolve()}")


@app.command()
def adopt(
    run: Annotated[Path, typer.Argument(help="The folder of a run with private layers.")],
    site: Annotated[str, typer.Option(help="The new site's name.")],
    data: Annotated[Path, typer.Option("--data", help="The new site's own file.")],
    out: Annotated[Path, typer.Option(help="The run folder to write; the old one is left alone.")],
) -> None:
    """Take a new site into a finished run: it fits its own private layers, the shared model stands still."""
    from vitrail.data.read import read_table
    from vitrail.report.build import write_report
    from vitrail.runs import Run
    from vitrail.runs.newcomer import gains

    told = Run.load(run)
    result = told.adopt(site, read_table(data, told.study))
    result.save(out)
    rows = gains(result)
    print(f"{site}, on its own hold-out rows: the shared model as it is, and with layers fitted to the site\n")
    print_table(
        ["metric", "before", "after"], rows[rows.site == site][["metric", "before", "after"]].to_numpy().tolist()
    )
    print(f"\nRun:  {out.resolve()}\nPage: {write_report(result, out / 'report.html').resolve()}")


@app.command()
def contribution(
    run: Annotated[Path, typer.Argument(help="The folder of a run made with --keep-updates.")],
    user: Annotated[str, typer.Option(help="The site on whose own test rows the loss is counted.")],
    data: Annotated[Path, typer.Option("--data", help="The user's own file, or a folder that holds it by name.")],
    method: Annotated[str, typer.Option(help="loo (leave-one-out), shapley or all.")] = "all",
    permutations: Annotated[int, typer.Option(help="Orders of joining that are drawn where not all are used.")] = 200,
    out: Annotated[Path | None, typer.Option(help="The folder to write; without it, contribution-USER here.")] = None,
) -> None:
    """How much each site's taking part lowered the user's loss, and a ledger of credits. Nothing is trained again."""
    from vitrail.report.contribution import write_contribution
    from vitrail.runs import Run
    from vitrail.runs.folder import site_folder
    from vitrail.studies.contribution import contribution as count
    from vitrail.studies.contribution import to_text, user_table

    rows = user_table(data, Run.load(run).study, user)
    with bar() as step:
        told = count(run, user, rows, method, permutations, step)
    page = write_contribution(told, out or Path(f"contribution-{site_folder(user)}"))
    print(to_text(told)[0])
    for words, header, lines in to_text(told)[1]:
        print(f"\n{words}\n")
        print_table(header, lines)
    print(f"\nTables: {page.parent.resolve()}\nPage:   {page.resolve()}")


@app.command("methods")
def list_methods() -> None:
    """The methods and their hyperparameters."""
    import dataclasses

    from vitrail.methods import TABLE

    rows = []
    for name, kind in TABLE.items():
        given = ", ".join(f"{f.name}={f.default!r}" for f in dataclasses.fields(kind) if f.default is not None)
        doc = sys.modules[kind.__module__].__doc__ or ""
        rows.append([name, kind.title, given, doc.split("\n")[0]])
    print_table(["name", "title", "hyperparameters", "what it does"], rows)


@app.command()
def transfer(
    study: StudyFile,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="A folder for page and tables.")] = None,
    folds: Annotated[int, typer.Option(help="Folds of each site's cross-validation.")] = 5,
    train_with: Annotated[
        str | None, typer.Option(help="Then train with the best: top:3, below:0.05, or NAME,NAME.")
    ] = None,
    user: Annotated[list[str] | None, typer.Option(help="For this site; without it, for each.")] = None,
    method: Annotated[str | None, typer.Option(help="The method to train with, instead of the default one.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the study's first.")] = None,
    workers: Workers = 0,
) -> None:
    """Before any training together: whose model carries over to whose rows (the adapted Ndoye factor)?"""
    from vitrail.data.read import read_sites
    from vitrail.report.transfer import write_transfer
    from vitrail.studies.transfer import TRUST, train_together
    from vitrail.studies.transfer import transfer as carry_over
    from vitrail.study import Study

    agreed = Study.load(study)
    tables = read_sites(data, agreed)
    with bar() as step:
        found = carry_over(
            agreed, tables, folds, seed, rounds, progress=lambda done, total: step("rounds", done, total)
        )
        for u in user or []:  # a mistake is told before anything is printed
            found.ranking(u)
        scores = None
        if train_with:
            scores = train_together(found, tables, train_with, user or (), method, step, workers or cores())
    print("Transfer loss: the loss of each site's own model on a user's training rows, less its cross-validated loss\n")
    shown = found.matrix()
    print_table(["user", *found.sites], [[u, *map(float, shown.loc[u])] for u in found.sites])
    print("\nWhom to learn from, best suited first; and the columns their models use most differently\n")
    rows = found.table[found.table.user.isin(user or found.sites)].sort_values(["user", "rank"])
    said = [
        [*r[:4], found.most_different(r[0], r[1])] for r in rows[["user", "site", "transfer", "loss_on_user"]].values
    ]
    print_table(["user", "site", "transfer loss", "loss on user", "difference in effect"], said)
    print(f"\n{TRUST}")
    if scores is not None:
        first = scores[scores.metric == agreed.metrics[0]]
        print(f"\n{agreed.metrics[0].replace('_', ' ')} on each user's own hold-out rows\n")
        print_table(
            ["user", "trained", "with", agreed.metrics[0]],
            first[["user", "trained", "sites", "value"]].to_numpy().tolist(),
        )
    if out:
        print(f"\nTables: {out.resolve()}\nPage:   {write_transfer(found, out, scores).resolve()}")


@app.command()
def tune(
    study: StudyFile,
    data: Data,
    method: Annotated[str | None, typer.Option(help="Method, instead of the study's.")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="A setting of the method, training or network: KEY=VALUE,VALUE.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds within each site's training rows.")] = 3,
    metric: Annotated[str | None, typer.Option(help="What to judge by, instead of the study's first metric.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; it keeps each trial as it ends.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the study's first.")] = None,
    workers: Workers = 0,
    resume: Resume = False,
) -> None:
    """Find the best settings by cross-validation within the training rows; test rows are never touched."""
    from vitrail.data.read import read_sites
    from vitrail.studies.tune import parse_grid
    from vitrail.studies.tune import tune as search
    from vitrail.study import Study

    agreed = Study.load(study)
    with bar() as step:
        found = search(
            agreed,
            read_sites(data, agreed),
            method,
            parse_grid(grid or []),
            folds,
            seed,
            metric=metric,
            rounds=rounds,
            out=out,
            resume=resume,
            workers=workers or cores(),
            progress=step,
        )
    print(f"{found.title}: {found.metric.replace('_', ' ')} over {folds} folds of the training rows, best first\n")
    keys = list(found.grid)
    table = found.table[[*keys, "mean", "sd", "worst", "worst_site"]].to_numpy().tolist()
    shown = [[*map(str, row[: len(keys)]), *row[len(keys) :]] for row in table]
    print_table([*keys, "mean over sites", "sd over folds", "worst site", "which"], shown)
    print(f"\n# the best, for the study file\n{found.section()}")
    if out:
        print(f"\nWritten: {(out / 'tuning.json').resolve()}")


def parse_methods(given: str | None) -> list[str]:
    """Names separated by commas. `all`: those that can be compared by their defaults; the others are told."""
    from vitrail.methods import DEFAULT, TABLE, named

    if given is None:
        return [*named(lambda kind: not kind.federated), DEFAULT]
    if given.strip() != "all":
        return [name.strip() for name in given.split(",") if name.strip()]
    if left_out := named(lambda kind: kind.tune_first):
        titles = ", ".join(TABLE[name].title for name in left_out)
        print(f"Left out: {titles}. Their defaults are no use before `vitrail tune`.")
        print(f"To have them all the same, name them: --methods {','.join(left_out)}\n")
    return named(lambda kind: not kind.tune_first)


def parse_settings(given: list[str]) -> dict[str, Any]:
    """KEY=VALUE as TOML values, texts also without quotes."""
    import tomllib

    out: dict[str, Any] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise VitrailError(
                "cannot read --set",
                [Problem("--set", f"expected KEY=VALUE, got {item!r}.", "Write for example --set mu=0.1.")],
            )
        try:
            out[key.strip()] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            out[key.strip()] = value.strip()
    return out


def parse_away(given: list[str]) -> dict[str, list[tuple[int, int]]]:
    out: dict[str, list[tuple[int, int]]] = {}
    for item in given:
        site, _, span = item.rpartition(":")
        first, dash, last = span.partition("-")
        if not site or not first.isdigit() or (dash and not last.isdigit()):
            raise VitrailError(
                "cannot read --away",
                [
                    Problem(
                        "--away",
                        f"expected SITE:FIRST-LAST, got {item!r}.",
                        "Write for example --away va:10-20.",
                    )
                ],
            )
        out.setdefault(site, []).append((int(first), int(last or first)))
    return out


def parse_pseudonyms(given: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    problems = []
    for item in given:
        site, _, known = item.rpartition("=")
        if not site or not known or site in out:
            what = f"{site!r} has two." if site in out else f"expected SITE=PSEUDONYM, got {item!r}."
            problems.append(Problem("--pseudonym", what, "Write for example --pseudonym va=site-7, once for a site."))
        out[site] = known
    if problems:
        raise VitrailError("cannot read --pseudonym", problems)
    return out


def cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kept_size(run: Path) -> str:
    from vitrail.report.words import several, size
    from vitrail.runs.folder import UPDATES

    kept = [f.stat().st_size for f in (run / UPDATES).glob("round-*.safetensors")]
    return f"{several(len(kept), 'round')}, {size(sum(kept))}, in {run / UPDATES}"


def free_folder(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that is not in use: a demo never writes over another."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on the error stream; silent when that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = [BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}")]
    with Progress(*shown, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda words, done, total: progress.update(task, completed=done, total=total, description=words)


def print_comparison(result: Comparison) -> None:
    """Method x site, worst site named; then the verdicts."""
    metric = result.study.metrics[0]
    mean = result.means(metric)
    summary = {row["method"]: row for row in result.summary().to_dict("records") if row["metric"] == metric}
    sites = list(result.sites.site)
    shown = sites if len(sites) <= 8 else []  # more do not fit a line; the page has them all
    rows, worst = [], []
    for method, title in titles_of(result).items():
        row = summary[method]
        rows.append([title, *(mean[method, s] for s in shown), row["mean"], row["worst"], row["worst_site"]])
        worst.append(1 + shown.index(row["worst_site"]) if row["worst_site"] in shown else -1)
    print(f"{metric.replace('_', ' ')} on each site's own hold-out rows, mean over {len(result.seeds)} seed(s)\n")
    print_table(["method", *shown, "mean", "worst", "worst site"], rows, lambda r, c: c == worst[r])
    verdicts = result.verdicts()
    if len(verdicts):
        print("\nIs joining worth it? (best federated method against training alone)\n")
        print_table(["site", "verdict", "why"], verdicts[["site", "verdict", "why"]].to_numpy().tolist())


def titles_of(result: Comparison) -> dict[str, str]:
    from vitrail.methods import TABLE

    return {m: TABLE[m].title for m in result.methods}


for _verb in VERBS:
    app.command()(_verb)

if __name__ == "__main__":
    main()
