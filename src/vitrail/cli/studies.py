"""Verbs of many runs: which method, which settings, whom to learn from, what to record, who contributed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli import completion
from vitrail.cli.options import (
    PLACE,
    BudgetBytes,
    BudgetSteps,
    Cluster,
    Data,
    Device,
    Engine,
    Resume,
    Rounds,
    StudyFile,
    Workers,
    cores,
    parse_methods,
)
from vitrail.cli.output import WORST, defined, print_comparison, print_notes, show_progress
from vitrail.core.text import print_table


def compare(
    study: StudyFile,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    methods: Annotated[
        str | None,
        typer.Option(
            help=(
                "Methods, separated by commas, also NAME:KEY=VALUE; or all (default: the baselines and a few "
                "methods that did well)."
            ),
            autocompletion=completion.many_methods,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            help=(
                "Largest number of seeds; each draws new folds at every site. If every site's answer is clear "
                "after two seeds, no more are trained."
            ),
        ),
    ] = 4,
    folds: Annotated[
        int, typer.Option(min=2, help="Number of folds of each site's rows; each fold is held out once.")
    ] = 10,
    harm: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="Largest loss that counts as no harm, as a share of the baseline's loss."),
    ] = 0.03,
    every_seed: Annotated[
        bool, typer.Option("--every-seed", help="Train all seeds, even if the answer is already clear.")
    ] = False,
    leave_one_site_out: Annotated[
        bool,
        typer.Option("--leave-one-site-out", help="Also test a model trained by all other sites on each site's rows."),
    ] = False,
    rounds: Rounds = None,
    budget_bytes: BudgetBytes = None,
    budget_steps: BudgetSteps = None,
    engine: Engine = "vectorised",
    device: Device = "cpu",
    workers: Workers = 0,
    cluster: Cluster = "",
    resume: Resume = False,
) -> None:
    """Compare methods by cross-validation within each site's rows: mean and worst site with intervals, and for each
    site whether joining is worth it."""
    from vitrail.data.readers.tables import read_sites
    from vitrail.report.pages.builder import write_report
    from vitrail.studies.compare.execution import compare as side_by_side
    from vitrail.studies.compare.execution import seeds_of
    from vitrail.study.model import Study

    agreed = Study.load(study)
    names = parse_methods(methods, study, data)
    with show_progress() as step:
        result = side_by_side(
            agreed,
            read_sites(data, agreed),
            names,
            seeds_of(agreed, seeds),
            rounds=rounds,
            folds=folds,
            harm=harm,
            every_seed=every_seed,
            leave_one_site_out=leave_one_site_out,
            budget_bytes=budget_bytes,
            budget_steps=budget_steps,
            engine=engine,
            device=device,
            out=out,
            resume=resume,
            workers=workers or (1 if device != "cpu" else cores()),
            cluster=cluster,
            progress=step,
        )
    print_comparison(result)
    print(
        f"\nTable: {(out / 'comparison.csv').resolve()}\nPage:  {write_report(result, out / 'report.html').resolve()}"
    )


def tune(
    study: StudyFile,
    data: Data,
    method: Annotated[
        str | None, typer.Option(help="Method, instead of the study's.", autocompletion=completion.methods)
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting of the method, training or network, or standardise: KEY=VALUE,VALUE; again for another; "
            "every combination is tried. Without it, the network's kind, learning rate, weight decay, rounds, scale "
            "and the values that the method declares, one after the other: about 10 trainings for each fold."
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="Number of folds within each site's training rows.")] = 3,
    metric: Annotated[
        str | None, typer.Option(help="Metric to optimise (default: log loss; for numbers RMSE).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; each trial is saved as soon as it ends.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the study's first.")] = None,
    workers: Workers = 0,
    cluster: Cluster = "",
    resume: Resume = False,
) -> None:
    """Find the best settings by cross-validation within the training rows; test rows are never touched."""
    from vitrail.data.readers.tables import read_sites
    from vitrail.metrics.scores import metric_name
    from vitrail.report.text import SAME, marked
    from vitrail.studies.tune import tune as search
    from vitrail.studies.tuning_grid import parse_grid
    from vitrail.study.model import Study

    agreed = Study.load(study)
    with show_progress() as step:
        tuning = search(
            agreed,
            read_sites(data, agreed),
            method,
            parse_grid(grid) if grid else None,
            folds,
            seed,
            metric=metric,
            rounds=rounds,
            out=out,
            resume=resume,
            workers=workers or cores(),
            cluster=cluster,
            progress=step,
        )
    judged = f"{metric_name(tuning.metric)} over {folds} folds of the training {agreed.row_word}s"
    print(f"{tuning.title}: {judged}, best first")
    print("" if grid else "One key after the other was tried, each with the best values of the keys before it.\n")
    keys = list(tuning.grid)
    table = tuning.table[[*keys, *tuning.same._fields]].to_numpy().tolist()
    table.append([SAME, *[""] * (len(keys) - 1), *tuning.same])
    shown = []
    for row in table:
        *numbers, who, baseline = row[len(keys) :]
        scores = map(defined, (*numbers, baseline)) if who else [*map(defined, numbers[:2]), "", ""]
        mean, sd, worst, same = scores
        shown.append([*map(str, row[: len(keys)]), mean, sd, marked(who, tuning.few), worst, same])
    print_table([*keys, "mean over sites", "sd over folds", "worst site", "its score", "its baseline"], shown)
    print_notes(tuning.few, [WORST], agreed.row_word, False)
    if words := tuning.caution():
        print(f"\n{words}")
    print(f"\n# the best settings, for the study file\n{tuning.section()}")
    if out:
        print(f"\nWritten: {(out / 'tuning.json').resolve()}")


def transfer(
    study: StudyFile,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Folder for the page and tables.")] = None,
    folds: Annotated[int, typer.Option(help="Number of folds of each site's cross-validation.")] = 5,
    train_with: Annotated[
        str | None, typer.Option(help="Then train with the best matches: top:3, below:0.05, or NAME,NAME.")
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(help="Site to do this for (default: each site).", autocompletion=completion.sites),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Method to train with (default: the built-in choice).", autocompletion=completion.methods),
    ] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the study's first.")] = None,
    workers: Workers = 0,
    cluster: Cluster = "",
) -> None:
    """Find out before any joint training whose model works on whose rows (the adapted Ndoye factor)."""
    from vitrail.data.readers.tables import read_sites
    from vitrail.metrics.scores import metric_name
    from vitrail.report.pages.transfer import write_transfer
    from vitrail.report.text import SAME, marked
    from vitrail.studies.transfer import on_trust, train_together
    from vitrail.studies.transfer import transfer as carry_over
    from vitrail.study.model import Study

    agreed = Study.load(study)
    tables = read_sites(data, agreed)
    with show_progress() as step:
        result = carry_over(
            agreed, tables, folds, seed, rounds, progress=lambda done, total: step("rounds", done, total)
        )
        for u in user or []:  # a mistake is told before anything is printed
            result.ranking(u)
        scores = None
        if train_with:
            scores = train_together(result, tables, train_with, user or (), method, step, workers or cores(), cluster)
    print(
        "Transfer loss: the loss of each site's own model on a user's training "
        f"{agreed.row_word}s, less its cross-validated loss\n"
    )
    shown = result.matrix()
    print_table(["user", *result.sites], [[marked(u, result.few), *map(float, shown.loc[u])] for u in result.sites])
    pictures, word = agreed.images is not None, agreed.row_word
    also = "" if pictures else "; and the columns their models use most differently"
    print(f"\nWhom to learn from, best match first{also}\n")
    rows = result.table[result.table.user.isin(user or result.sites)].sort_values(["user", "rank"])
    ranking: list[list[Any]] = []
    for name, mine in rows.groupby("user"):
        for r in mine[["user", "site", "transfer", "loss_on_user"]].to_numpy().tolist():
            ranking.append([*r, *([] if pictures else [result.most_different(r[0], r[1])])])
        ranking.append([str(name), SAME, "", result.same[str(name)], *([] if pictures else [""])])
    print_table(["user", "site", "transfer loss", "loss on user", "difference in effect"][: 5 - pictures], ranking)
    print_notes(result.few, [], word, False)
    print(f"\n{on_trust(word)}")
    if scores is not None:
        first = scores[scores.metric == agreed.metrics[0]]
        print(f"\n{metric_name(agreed.metrics[0])} on each user's own hold-out {word}s\n")
        few = {str(u): str(w) for u, w in zip(first["user"], first["few_rows"], strict=True) if w}
        lines = [
            [marked(u, few), *r]
            for u, *r in first[["user", "trained", "sites", "value", "same"]].map(defined).to_numpy().tolist()
        ]
        print_table(["user", "trained", "with", metric_name(agreed.metrics[0]), "baseline"], lines)
        print_notes(few, [], word, True)
    if out:
        print(f"\nTables: {out.resolve()}\nPage:   {write_transfer(result, out, scores).resolve()}")


def alike(
    study: StudyFile,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Folder for the page and tables.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the study's first.")] = None,
) -> None:
    """Show who is like whom by four measures (rows, models, transfer loss, trust) and how far these agree. For
    simulation only: it needs the rows of all sites."""
    from vitrail.data.readers.tables import read_sites
    from vitrail.report.pages.likeness import write_likeness
    from vitrail.studies.likeness import MEASURES, likeness
    from vitrail.study.model import Study

    agreed = Study.load(study)
    tables = read_sites(data, agreed)
    with show_progress() as step:
        result = likeness(
            agreed, tables, seed=seed, rounds=rounds, progress=lambda done, total: step("rounds", done, total)
        )
    print("The site that is most like each user, by each measure\n")
    print_table(
        ["user", *MEASURES], [[u, *(result.first(u).get(m, "not known") for m in MEASURES)] for u in result.sites]
    )
    print("\nRank correlation of the measures over the other sites, mean over users\n")
    rows = result.agreement().to_numpy().tolist()
    print_table(["measure", *MEASURES], [[m, *row] for m, row in zip(MEASURES, rows, strict=True)])
    if out:
        print(f"\nTables: {out.resolve()}\nPage:   {write_likeness(result, out).resolve()}")


def columns(
    study: StudyFile,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Folder for the page and table.")] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="Site to do this for (default: each site).", autocompletion=completion.sites),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Column of the study to judge (default: each column that a site lacks).")
    ] = None,
    folds: Annotated[
        int, typer.Option(min=2, help="Number of folds of each site's rows; each fold is held out once.")
    ] = 5,
    method: Annotated[
        str | None, typer.Option(help="Method, instead of the study's.", autocompletion=completion.methods)
    ] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the study's first.")] = None,
) -> None:
    """Find out which column a site should begin to record: what it would save of its loss, estimated from the sites
    that record it. For simulation only: it needs the rows of all sites."""
    from vitrail.data.readers.tables import read_sites
    from vitrail.report.pages.missing_columns import write_missing_columns
    from vitrail.studies.missing_columns import SUPPOSES, missing_columns
    from vitrail.study.model import Study

    agreed = Study.load(study)
    with show_progress() as step:
        result = missing_columns(
            agreed, read_sites(data, agreed), site or (), column or (), method,
            folds=folds, seed=seed, rounds=rounds, progress=step,
        )  # fmt: skip
    for sentence in result.sentences() or ["No site lacks a column of the study."]:
        print(sentence)
    print(f"\n{SUPPOSES}")
    if out:
        page = write_missing_columns(result, out)
        print(f"\nTable: {(out / 'columns.csv').resolve()}\nPage:  {page.resolve()}")


def contribution(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    user: Annotated[
        str,
        typer.Option(help="Site whose own test rows are used to measure the loss.", autocompletion=completion.sites),
    ],
    data: Annotated[
        Path, typer.Option("--data", help="The user's own file, or a folder or file with all sites.", **PLACE)
    ],
    method: Annotated[str, typer.Option(help="loo (leave-one-out), shapley or all.")] = "all",
    retrain: Annotated[
        bool | None,
        typer.Option(
            "--retrain/--no-retrain",
            help=(
                "Train groups of sites again, with the rows of all sites in --data (default: for up to 6 sites, "
                "if it takes less than an hour). Otherwise they are rebuilt from the reports that --keep-updates "
                "kept."
            ),
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds for training again; the intervals include their variation.")
    ] = 5,
    coalitions: Annotated[
        int, typer.Option(help="Number of groups of sites to sample if there are more than 10 sites.")
    ] = 512,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write (default: contribution-USER in this folder).")
    ] = None,
    cluster: Cluster = "",
) -> None:
    """Estimate how much each site's participation lowered the user's loss, with a ledger of credits. Groups of sites
    are trained again, or rebuilt from the sites' reports, with a warning where that is unreliable.
    """
    from vitrail.report.pages.contribution import write_contribution
    from vitrail.runs import Run
    from vitrail.runs.folder import site_folder
    from vitrail.studies.contribution.tables import tables_here, user_table
    from vitrail.studies.contribution.values import asked_wrongly, to_text
    from vitrail.studies.contribution.values import contribution as count

    done = Run.load(run)
    mine = user_table(data, done, user, asked_wrongly(method, coalitions, seeds))
    tables = {**({} if retrain is False else tables_here(data, done)), user: mine}
    with show_progress() as step:
        result = count(
            run, user, tables, method,
            retrain=retrain, seeds=seeds, coalitions=coalitions, progress=step, cluster=cluster,
        )  # fmt: skip
    page = write_contribution(result, out or Path(f"contribution-{site_folder(user)}"))
    print(to_text(result)[0])
    for words, header, lines in to_text(result)[1]:
        print(f"\n{words}\n")
        print_table(header, lines)
    print(f"\nTables: {page.parent.resolve()}\nPage:   {page.resolve()}")
