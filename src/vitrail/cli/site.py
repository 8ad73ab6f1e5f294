"""Verbs of a site, which works with its own rows alone, at home or in a study between machines."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli import completion
from vitrail.cli.options import PLACE, SANDBOX
from vitrail.cli.output import explain_all
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.text import print_table

if TYPE_CHECKING:
    pass


def request(
    invitation: Annotated[Path, typer.Argument(help="The invitation, as the coordinator sent it.")],
    kit: Annotated[Path | None, typer.Option(help="The kit to make; NAME.kit beside the invitation otherwise.")] = None,
    home: Annotated[Path | None, typer.Option(help="Where this site keeps its own; NAME.home beside the kit.")] = None,
) -> None:
    """Site: make a key, which stays here, and a request to send to the coordinator."""
    from vitrail.deploy.identity import enrolment

    made = enrolment.request(invitation, kit, home)
    own = enrolment.load_kit(made.kit)
    second, parties = own.study.protect.second, own.study.parties
    others = f"{len(own.sites)} {'parties' if parties else 'sites'}"
    if second:
        others = f"{len(own.sites) - 1} sites and {second}, the second server"
    print(f"{own.site}: {own.study.name!r} with {others}; coordinator at {own.address}.\n")
    print(f"  kit                      {made.kit} (holds your private key: never send it)")
    print(f"  home                     {own.home} (your models and your outbox)")
    print(f"  your fingerprint         {made.fingerprint}")
    print(f"  authority's fingerprint  {made.authority_fingerprint}\n")
    if own.approved:
        print("This kit is approved already and has the new invitation now.")
        return
    print(f"Send {made.file} to the coordinator, and compare both fingerprints by phone.")
    print(
        "What you agree to, and its hash, is shown when you join: it names all participants and their keys, which are"
    )
    print("known when everybody who was invited is approved.")


def join(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    data: Annotated[Path, typer.Option("--data", help="The site's own file; it stays here.", **PLACE)],
    approval: Annotated[Path | None, typer.Option(help="The approval, the first time.")] = None,
    accept: Annotated[str, typer.Option(help="The agreement's hash, for unattended use.")] = "",
    publish: Annotated[bool, typer.Option(help="Whether layers and models are shown where the method asks.")] = True,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Of so many messages the numbers are kept, the last ones; all without it."),
    ] = None,
    watts: Annotated[
        float | None, typer.Option(min=0.1, max=10000, help="What one busy core here draws: then energy is told.")
    ] = None,
    ration_training: Annotated[
        int | None, typer.Option(min=1, help="A guest: times that a row may be asked in training; else the study's.")
    ] = None,
    ration_after: Annotated[
        int | None, typer.Option(min=0, help="A guest: rows that may be asked afterwards; else the study's.")
    ] = None,
    places: Annotated[
        bool, typer.Option("--places", help="A party: agree beforehand that all learn which rows are in common.")
    ] = False,
    list_ratio: Annotated[
        float | None,
        typer.Option(min=1, help="A party: another's list of ids may be so many times as long as yours; else 2."),
    ] = None,
    explain: Annotated[int, typer.Option(min=0, help="A host: rows in common to explain after training.")] = 0,
    ask: Annotated[
        Path | None, typer.Option(help="A host: rows to predict after training, of anybody.", **PLACE)
    ] = None,
    look_up: Annotated[
        bool, typer.Option("--look-up", help="A guest: people who are not in common may be looked up blindly.")
    ] = False,
    another: Annotated[
        bool,
        typer.Option("--another-run", help="Another run may begin though the last has not ended; not in a service."),
    ] = False,
    show_verdict: Annotated[
        bool,
        typer.Option(
            "--show-verdict", help="With a verdict in the study: tell the others whether joining is worth it here."
        ),
    ] = False,
    most_epsilon: Annotated[
        float | None,
        typer.Option(min=0, help="Refuse a run after which these rows had spent more privacy, over all studies; kept."),
    ] = None,
    sandbox: Annotated[bool, typer.Option("--sandbox/--no-sandbox", help=SANDBOX)] = True,
) -> None:
    """Site: check the file, read what will leave the house, agree, and take part until the study is finished."""
    from vitrail.deploy.doctor import need_sandbox, need_transport
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.identity.signing import Signer
    from vitrail.deploy.identity.site_identity import SiteIdentity
    from vitrail.deploy.site.model import check_not_left, load_model
    from vitrail.deploy.site.process import SiteProcess, agree
    from vitrail.deploy.site.scores import own_words
    from vitrail.deploy.site.site import Site
    from vitrail.report.pages.site import write_look
    from vitrail.report.sections.scores.own_verdict import verdict_words, write_own_verdict

    check_not_left(kit)
    need_transport()
    need_sandbox(sandbox)
    own = enrolment.accept(kit, approval) if approval else enrolment.load_kit(kit)
    if own.study.parties:
        from vitrail.deploy.vertical.process import take_part

        say = lambda text: print(f"  {text}", flush=True)  # noqa: E731
        ration = (ration_training, ration_after)
        home = take_part(
            own, data, accept, ration, places, say, keep, explain=explain, ask=ask, look_up=look_up, another=another,
            ratio=list_ratio, sandbox=sandbox,
        )  # fmt: skip
        print(f"The study is finished. What this party keeps of it is in {home}.")
        return
    agreement, frame, ledger = agree(own, data, accept, publish, show_verdict, most_epsilon, sandbox)
    drawn = math.nan if watts is None else watts
    site = Site(
        own.site, frame, agreement, own.home, publish, SiteIdentity.of(own), another, drawn, show_verdict, ledger
    )
    door = SiteProcess(own, site, lambda text: print(f"  {text}", flush=True), keep, Signer.of_site(own), sandbox)
    print(
        f"{own.site} takes part; coordinator at {own.address}. Stop with Ctrl-C and join again at any time.", flush=True
    )
    door.stay()
    print(f"The study is finished. This site's own model is in {own.home}: vitrail predict {kit} --data FILE")
    if worth := own_words(own.study, site.home):
        print(worth)
    mine = load_model(own, site.home.name)
    if mine.verdict:
        page = site.home / "verdict.html"
        write_own_verdict(own.site, own.study, mine.verdict, page)
        shown = "The others were told." if show_verdict else "That stays here."
        print(f"Is joining worth it here? {verdict_words(mine.verdict)} {shown} {page.resolve()}")
    if mine.sights:
        page = write_look(mine.look(frame), site.home / "look.html", mine.joining)
        what = "What was found about this site, with its own rows beside it"
        what = "What its model says of its own pictures" if own.study.images else what
        print(f"{what}: {page.resolve()}")


def outbox(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    show: Annotated[int | None, typer.Option(help="Print the numbers of the message with this number.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also what came in, and what was refused.")] = False,
) -> None:
    """Site: every message that ever left this house; with --show, the numbers in it."""
    from vitrail.core.text import several, size
    from vitrail.deploy.audit.outbox import Outbox, numbers, table
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.transport.ipc import NOT_OURS

    own = enrolment.load_kit(kit)
    box = Outbox(own.home)
    if show is not None:
        print(numbers(box.show(show), box.place(show)))
        return
    entries = box.entries()
    left = [e for e in entries if e.direction == "out"]
    if shown := entries if everything else left:
        print_table(*table(shown))
        print()
    count = f"{several(len(left), 'message')} left {own.site}, {size(sum(e.bytes for e in left))} in all."
    print(f"{count if left else f'Nothing has left {own.site} so far.'} Log: {box.log}")
    if own.study.parties:
        from vitrail.deploy.vertical.match_quota import MatchQuota
        from vitrail.deploy.vertical.process import ration_left

        sealed = ["Each is shown as it was before it was sealed."] if left else []
        print("\n".join([*sealed, *ration_left(own), MatchQuota(own.home).words()]))
    if strange := [e for e in entries if e.kind == NOT_OURS]:
        print(f"{several(len(strange), 'line')} on what came over FLARE's own channels and was refused; the last one:")
        print(f"  {strange[-1].time}  {strange[-1].what}")
    if left:
        print(f"The numbers of one: vitrail outbox {kit} --show {max(left, key=lambda e: e.bytes).number}")


def predict(
    kit: Annotated[
        Path,
        typer.Argument(
            help="This site's kit; the folder of a run on one machine, with --site; or what `vitrail export` wrote."
        ),
    ],
    new: Annotated[Path | None, typer.Argument(help="The new rows: a table with the study's columns.", **PLACE)] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The new rows, or pictures; with parties, the folder of their tables.", **PLACE),
    ] = None,
    id_: Annotated[
        str, typer.Option("--id", help="A column of the new rows to write beside each prediction; it is not used.")
    ] = "",
    site: Annotated[
        str, typer.Option(help="The site whose model, where it is a run folder.", autocompletion=completion.sites)
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The CSV file to write; without it, on the screen.")] = None,
    run: Annotated[str | None, typer.Option(help="The run whose model; without it, the one that ended last.")] = None,
    keep: Annotated[
        str, typer.Option(help="Instead of what was agreed, the model trained on this site's rows alone: its method.")
    ] = "",
    without: Annotated[list[str] | None, typer.Option(help="A guest that is away: its median answer stands.")] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Guests look people up without learning whom; counted by their ration.")
    ] = False,
    today: Annotated[
        list[str] | None, typer.Option(help="A guest's table as it is today, to look people up in: GUEST=FILE.")
    ] = None,
) -> None:
    """Site: its own model on new rows, as CSV: line or picture, a probability for each class, how unsure it is."""
    from vitrail.cli.vertical import host_run_of, predict_parties, refuse_others, write_new
    from vitrail.data.readers.tables import read_table
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site.model import SiteModel, load_model
    from vitrail.runs import Run
    from vitrail.runs.site.local_model import kept_alone
    from vitrail.runs.site.prediction_ids import name_rows_by
    from vitrail.storage.csv_files import to_csv
    from vitrail.vertical.run import is_together

    if of_host := host_run_of(kit, run):
        kit, new, data = of_host, new or data, None
    if is_together(kit):
        refuse_others({"--keep": keep})
        predict_parties(kit, new, without or [], data, blind, today or [], out, id_)
        return
    rows, both = new or data, new is not None and data is not None
    if rows is None or both or without or blind or today:
        what = "expected one table of new rows." if rows is None or both else "the run has no parties."
        where = "--data" if rows is None or both else "--without, --blind, --today"
        raise VitrailError("cannot predict", [Problem(where, what, "vitrail predict PLACE new.csv")])
    if kit.is_file():
        from vitrail.export.safe_file import read_safe

        mine = SiteModel(*read_safe(kit)[:3])
    elif (kit / "run.json").exists():
        mine = SiteModel(site, kit.name, Run.load(kit).final_model(site))
    else:
        mine = load_model(enrolment.load_kit(kit), run)
        mine = replace(mine, model=mine.used)
    if keep:
        kept, rests = kept_alone(mine.model, keep)
        mine = replace(mine, model=kept)
        typer.echo(rests, err=True)  # not among the rows
    study = mine.model.study
    frame = read_table(rows, study)
    named = name_rows_by(id_, frame, study)
    answers, notes = mine.model.predict_marked(frame)
    told = to_csv(named(answers), "picture" if study.images else "line")
    typer.echo("".join(f"note: {note}\n" for note in notes), nl=False, err=True)
    if out is None:
        print(told, end="")
        if mine.model.note:
            typer.echo(mine.model.note, err=True)  # not among the rows
        return
    write_new(out, told)
    count = f"{told.count(chr(10)) - 1} {study.row_word}s"
    print(f"{out.resolve()}: {count}, with the model of {mine.site} from run {mine.run}.")
    if mine.model.note:
        print(mine.model.note)


def explain(
    place: Annotated[Path, typer.Argument(help="The folder of a run on one machine, or this site's kit.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="The site's own file; or without --site, a folder of all.", **PLACE)
    ] = None,
    site: Annotated[
        str,
        typer.Option(
            help="The site that explains its own model; without it, all of them.", autocompletion=completion.sites
        ),
    ] = "",
    party: Annotated[str, typer.Option(help="Of a run with parties, whose own page; without it, the host's.")] = "",
    id_: Annotated[list[str] | None, typer.Option("--id", help="With parties: a person to take apart.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows, by lot where there are more.")] = 1000,
    row: Annotated[list[str] | None, typer.Option(help="A row to take apart: its line in the file.")] = None,
    feature: Annotated[str | None, typer.Option(help="The feature whose dependence is drawn.")] = None,
    outcome: Annotated[str | None, typer.Option(help="The class that is explained, if not the positive one.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="The site's own file, where --data holds new rows.", **PLACE)
    ] = None,
    refuse: Annotated[
        list[str] | None,
        typer.Option(help="A site that shows nothing on the page of all.", autocompletion=completion.sites),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the lot.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The HTML file; else explain-SITE.html here, or in the run.")] = None,
) -> None:
    """Why did the model say that? At a site, its own model and rows: nothing leaves. Of all sites, means only. With
    parties, the host's own page, where a guest's columns are one feature, or a guest's own page."""
    from vitrail.cli.vertical import explain_parties, host_run_of, refuse_others
    from vitrail.data.readers.tables import read_table
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site.model import load_model
    from vitrail.report.pages.explanation import to_text, write_explained
    from vitrail.runs import Run
    from vitrail.runs.folder import site_folder
    from vitrail.runs.site.explanation import explain_model
    from vitrail.vertical.run import is_together

    place = host_run_of(place) or place
    if is_together(place):
        refuse_others({"--site": site, "--row": row, "--reference": reference, "--refuse": refuse})
        explain_parties(place, data, rows, id_ or [], party, feature, outcome, seed, out)
        return
    if data is None or party or id_:
        what = "expected the site's own file, or a folder of all." if data is None else "the run has no parties."
        raise VitrailError("cannot explain", [Problem("--data" if data is None else "--party, --id", what)])
    told = Run.load(place) if not (place / "invitation.json").exists() else None
    everyone = told is not None and not site
    alone = {"--row": row, "--feature": feature, "--reference": reference}
    if lost := [k for k, given in (alone if everyone else {"--refuse": refuse}).items() if given]:
        what = "it is for one site." if everyone else "it is for the page of all sites."
        hint = "Name the site: --site." if everyone else "Leave it out."
        raise VitrailError("cannot explain", [Problem(k, what, hint) for k in lost])
    if told is not None and everyone:
        explain_all(told, place, data, rows, seed, outcome, refuse or [], out)
        return
    if told is not None:
        mine, seen = told.final_model(site, "explain"), told.info["fingerprints"].get(site)
    else:
        own = load_model(enrolment.load_kit(place))
        mine, seen, site = own.used, own.rows, own.site
    frame = read_table(data, mine.study)
    back = read_table(reference, mine.study) if reference else None
    whole = explain_model(mine, site, frame, seen, rows, seed, outcome, back)
    shown = explain_model(mine, site, frame, seen, row, seed, outcome, back) if row else None
    path = out or Path(f"explain-{site_folder(site)}.html")
    beyond = [place / "report.html"]
    page = write_explained(whole, path, site=site, study=mine.study.name, shown=shown, feature=feature, beyond=beyond)
    print(f"{to_text(whole, site, shown)}\n\nPage: {page.resolve()}")


def leave(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Site: end taking part for good. The key is deleted; the site's own model and its outbox stay."""
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site import model as site_model

    own = enrolment.load_kit(kit)
    if when := site_model.has_left(own.folder):
        print(f"{own.site} left {own.study.name!r} with this kit on {when}. There is nothing more to do.")
        return
    print(f"{own.site} leaves {own.study.name!r}: its key and certificate are deleted, and this kit joins no more.")
    print(f"What stays here: {own.home} (models and outbox). What left before cannot be called back.")
    if not yes and not typer.confirm("Leave for good?", default=False):
        print("Nothing was changed.")
        raise typer.Exit(1)
    site_model.leave(own.folder, own.home)
    print(f"Left. Tell the coordinator, who can shut {own.site} out at that end too: vitrail remove {own.site!r}")


def doctor(
    place: Annotated[Path, typer.Argument(help="A site's kit, or the coordinator's study file.")],
    data: Annotated[Path | None, typer.Option("--data", help="At a site: its own file.", **PLACE)] = None,
) -> None:
    """Either end: is everything there to take part? Each finding with what to do. Exit code 1 if something is not."""
    from vitrail.deploy.doctor import at_coordinator, at_site
    from vitrail.deploy.identity import coordinator_folder, enrolment

    if (place / "invitation.json").exists():
        found = at_site(enrolment.load_kit(place), data)
    elif not place.exists():
        what, hint = "there is no such file or folder.", "Name a site's kit, or the coordinator's study file."
        raise VitrailError("cannot examine it", [Problem(str(place), what, hint)])
    else:
        found = at_coordinator(enrolment.load_coordinator(coordinator_folder.find_coordinator(place)))
    for finding in found:
        print(f"{'fine ' if finding.well else 'WRONG'}  {finding.what}")
        if not finding.well and finding.to_do:
            print(f"       -> {finding.to_do}")
    raise typer.Exit(0 if all(f.well for f in found) else 1)
