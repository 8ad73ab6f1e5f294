"""Verbs of the coordinator of a study between machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli import completion
from vitrail.cli.options import SANDBOX, parse_pseudonyms
from vitrail.core.errors import Problem, VitrailError

if TYPE_CHECKING:
    from vitrail.deploy.identity.enrolment_records import Coordinator
    from vitrail.runs.result import Run

StudyOf = Annotated[
    Path | None,
    typer.Option("--study", help="The study file, when this folder holds more than one coordinator's folder."),
]


def invite(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).", autocompletion=completion.study_files)],
    site: Annotated[list[str] | None, typer.Option(help="A site's name; once for each site.")] = None,
    address: Annotated[str, typer.Option(help="HOST:PORT of this machine, as the sites reach it.")] = "",
    seed: Annotated[int | None, typer.Option(help="Instead of the study's first seed.")] = None,
    pseudonym: Annotated[
        list[str] | None,
        typer.Option(help="A site whose name you alone keep: SITE=PSEUDONYM, once for each. The others see PSEUDONYM."),
    ] = None,
    unnamed: Annotated[
        int, typer.Option(help="Number of new open invitations: whoever holds one chooses the name of its site.")
    ] = 0,
) -> None:
    """Coordinator: create the study's authority and an invitation for each site. Run it again to add sites or change
    the address.
    """
    from vitrail.deploy.identity import coordinator_folder, enrolment
    from vitrail.deploy.identity.pseudonyms import REAL, TICKET

    folder = enrolment.invite(study, site or [], address, seed, parse_pseudonyms(pseudonym or []), unnamed)
    who = enrolment.load_coordinator(folder)
    print(f"{folder}: {who.study.name!r} at {who.address}, seed {who.seed}. Keep this folder private and backed up.\n")
    for name, entry in who.sites.items():
        state = "removed" if entry["removed"] else "approved" if entry["approved"] else "invited"
        print(f"  {name:30s} {state:9s} {'' if entry['removed'] else coordinator_folder.invitation_of(folder, name)}")
        if REAL in entry:
            print(f"  {'':30s} a pseudonym; only this folder says that it is {entry[REAL]}")
        elif TICKET in entry and not entry["approved"]:
            print(f"  {'':30s} open: whoever has this file enrols once, under a name of its own choice")
    print(f"\nThe authority's fingerprint: {who.authority_fingerprint}")
    print("Send each site its invitation. The site answers with a request; then: vitrail approve REQUEST.")
    if any(entry["approved"] for entry in who.sites.values()):
        print(
            "Send those who are approved the new invitation too: vitrail request takes it. If somebody was added, all"
        )
        print("agree anew, to the longer list of participants, with the approvals that `vitrail approve` then writes.")


def approve(
    request: Annotated[Path, typer.Argument(help="The request, as the site sent it.")],
    study: StudyOf = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: the fingerprint was compared.")] = False,
) -> None:
    """Coordinator: sign a site's request after comparing its fingerprint by phone."""
    from vitrail.deploy.identity import coordinator_folder, enrolment

    folder = coordinator_folder.find_coordinator(study) if study else coordinator_folder.only_coordinator(Path())
    asked = enrolment.read_request(folder, request)
    print(f"{asked.site} asks to take part in {enrolment.load_coordinator(folder).study.name!r}.")
    print(f"  its fingerprint          {asked.fingerprint}")
    call = "Call the site. Does it read out the same?"
    if asked.place:
        print(f"  its invitation           {asked.place!r}, an open one: it chose this name, and proved that it has it")
        call = "Nobody can be called. Approve whoever holds that invitation?"
    if not yes and not typer.confirm(call, default=False):
        print("Not approved.")
        raise typer.Exit(1)
    done = enrolment.approve(folder, request)
    who = enrolment.load_coordinator(folder)
    print(f"{done.site} is approved.")
    _say_participants(who, done.file.parent)


def _say_participants(who: Coordinator, approvals: Path) -> None:
    """Who is missing; or what everybody accepts now, and what is to be sent."""
    from vitrail.deploy.identity.participants import several_names
    from vitrail.deploy.vertical.agreement import agreed_hash

    roster, missing = who.participants
    if missing:
        print(
            f"Not approved yet: {several_names(missing)}. Approvals name all participants and their keys: when all are"
        )
        print("there, send each site its own. Who does not take part after all: vitrail remove NAME.")
        return
    print(f"Everybody who was invited is approved: send each site its own approval from {approvals}.")
    if not who.study.parties:
        second, took = who.study.protect.second, "vitrail join KIT --approval FILE takes it"
        print(f"{took}; {second}: vitrail serve KIT --second --approval FILE." if second else f"{took}.")
        print(f"Every form names the agreement {agreed_hash(who.study, who.seed, roster)}, with these keys:")
        for name, mark in roster.items():
            available = " (pseudonym)" if name in roster.pseudonyms else ""
            print(f"  {name:30s} {mark}{available}{' (removed)' if who.sites[name]['removed'] else ''}")


def remove(
    site: Annotated[str, typer.Argument(help="The site's name.", autocompletion=completion.sites)],
    study: StudyOf = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Coordinator: exclude a site from the study for good."""
    from vitrail.deploy.identity import coordinator_folder, enrolment

    folder = coordinator_folder.find_coordinator(study) if study else coordinator_folder.only_coordinator(Path())
    if not yes and not typer.confirm(f"Shut {site} out for good? This cannot be undone.", default=False):
        print("Nothing was changed.")
        raise typer.Exit(1)
    enrolment.remove(folder, site)
    print(f"Site {site} is removed: its certificate is refused from now on, also after a restart.")
    who = enrolment.load_coordinator(folder)
    if site in who.roster:
        print("A run has begun: it keeps its place in the list of participants, and the others need not agree anew.")
    elif not who.study.parties and any(entry["approved"] and not entry["removed"] for entry in who.sites.values()):
        _say_participants(who, folder / "approvals")


def serve(
    study: Annotated[
        Path,
        typer.Argument(help="The study file; with --second, the kit.", autocompletion=completion.study_files),
    ],
    quorum: Annotated[
        int | None,
        typer.Option(help="Sites needed to start and in each round; otherwise all to start, then more than half."),
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that a site has to answer.")] = 600.0,
    page: Annotated[bool, typer.Option("--page", help="A live page for this browser, on 127.0.0.1.")] = False,
    new: Annotated[
        bool, typer.Option("--new", help="A new run; the last one is left as it is, also unfinished.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With parties: the last run once more, for what its host still asks.")
    ] = False,
    second: Annotated[bool, typer.Option("--second", help="The second of two servers: holds halves, no rows.")] = False,
    approval: Annotated[Path | None, typer.Option(help="With --second: the approval, the first time.")] = None,
    accept: Annotated[
        str, typer.Option(help="With --second: hash of the form that you accept, for unattended use.")
    ] = "",
    another: Annotated[
        bool,
        typer.Option("--another-run", help="With --second: another run may begin though the last has not ended."),
    ] = False,
    sandbox: Annotated[bool, typer.Option("--sandbox/--no-sandbox", help=SANDBOX)] = True,
) -> None:
    """Coordinator: wait for the sites, run the study, and write the run folder and its page. If started again, it
    continues where it stopped.
    """
    from vitrail.cli.serve_progress import ServeScreen
    from vitrail.deploy.coordinator.process import serve as begin
    from vitrail.deploy.doctor import need_sandbox, need_transport
    from vitrail.deploy.identity import coordinator_folder, enrolment
    from vitrail.report.live.server import start
    from vitrail.report.pages.builder import write_report

    need_transport()
    need_sandbox(sandbox)
    if second:
        from vitrail.deploy.two_server.process import serve_second

        serve_second(study, approval, accept, lambda text: print(f"  {text}", flush=True), another, sandbox)
        return
    who = enrolment.load_coordinator(coordinator_folder.find_coordinator(study))
    print(f"{who.study.name!r} at {who.address}; stop with Ctrl-C and start again, nothing is lost.", flush=True)

    screen = ServeScreen()

    def show(run: Path) -> None:
        if page:
            print(f"Live: {start(run).url}", flush=True)

    def written(result: Run, place: Path) -> None:
        screen.close()
        print(f"\nRun:  {place.resolve()}\nPage: {write_report(result, place / 'report.html').resolve()}", flush=True)

    if who.study.parties:
        from vitrail.deploy.vertical.coordinator_process import serve_parties

        if quorum is not None or page:
            what = "a study with parties needs all of them, and its page is the host's."
            raise VitrailError("cannot serve", [Problem("--quorum, --page", what, "Leave it out.")])
        place = serve_parties(who, deadline, screen, new, again, sandbox)
        print(f"\nThe parties are done. What was carried, in bytes: {place.resolve() / 'carried.json'}", flush=True)
        return
    if again:
        raise VitrailError("cannot serve", [Problem("--again", "the study has no parties.", "Leave it out.")])
    try:
        begin(who, quorum, deadline, screen, show, written, new, sandbox)
    finally:
        screen.close()
