"""The verbs of a study between machines. Thin: each says what it will do, does it, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vitrail.runs.run import Run

VERBS: list[Callable[..., Any]] = []


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """Into the command line, under its own name."""
    VERBS.append(function)
    return function


StudyOf = Annotated[
    Path | None,
    typer.Option("--study", help="The study file, when this folder holds more than one coordinator's folder."),
]


@verb
def invite(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
    site: Annotated[list[str] | None, typer.Option(help="A site's name; once for each site.")] = None,
    address: Annotated[str, typer.Option(help="HOST:PORT of this machine, as the sites reach it.")] = "",
    seed: Annotated[int | None, typer.Option(help="Instead of the study's first seed.")] = None,
) -> None:
    """Coordinator: make the study's authority and an invitation for each site. Again: add sites, change the address."""
    from vitrail.deploy import enrol

    folder = enrol.invite(study, site or [], address, seed)
    who = enrol.load_coordinator(folder)
    print(f"{folder}: {who.study.name!r} at {who.address}, seed {who.seed}. Keep this folder private and backed up.\n")
    for name, entry in who.sites.items():
        state = "removed" if entry["removed"] else "approved" if entry["approved"] else "invited"
        print(f"  {name:30s} {state:9s} {'' if entry['removed'] else enrol.invitation_of(folder, name)}")
    print(f"\nThe authority's fingerprint: {who.authority_fingerprint}")
    print("Send each site its invitation; it answers with a request: vitrail approve REQUEST.")
    if any(entry["approved"] for entry in who.sites.values()):
        print(
            "Sites that are approved keep their approval. Send them the new invitation too: vitrail request takes it."
        )


@verb
def request(
    invitation: Annotated[Path, typer.Argument(help="The invitation, as the coordinator sent it.")],
    kit: Annotated[Path | None, typer.Option(help="The kit to make; NAME.kit beside the invitation otherwise.")] = None,
    home: Annotated[Path | None, typer.Option(help="Where this site keeps its own; NAME.home beside the kit.")] = None,
) -> None:
    """Site: make a key, which stays here, and a request to send to the coordinator."""
    from vitrail.deploy import enrol

    made = enrol.request(invitation, kit, home)
    own = enrol.load_kit(made.kit)
    print(f"{own.site}: {own.study.name!r} with {len(own.sites)} sites, coordinator at {own.address}.\n")
    print(f"  kit                      {made.kit} (holds your private key: never send it)")
    print(f"  home                     {own.home} (your models and your outbox)")
    print(f"  agreement                {made.agreement}")
    print(f"  your fingerprint         {made.fingerprint}")
    print(f"  authority's fingerprint  {made.authority_fingerprint}\n")
    if own.approved:
        print("This kit is approved already and has the new invitation now.")
        return
    print(f"Send {made.file} to the coordinator, and compare both fingerprints by phone.")


@verb
def approve(
    request: Annotated[Path, typer.Argument(help="The request, as the site sent it.")],
    study: StudyOf = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: the fingerprint was compared.")] = False,
) -> None:
    """Coordinator: sign a site's request, after its fingerprint was compared by phone."""
    from vitrail.deploy import enrol

    folder = enrol.find_coordinator(study) if study else enrol.only_coordinator(Path())
    asked = enrol.inspect(folder, request)
    print(f"{asked.site} asks to take part in {enrol.load_coordinator(folder).study.name!r}.")
    print(f"  its fingerprint          {asked.fingerprint}")
    if not yes and not typer.confirm("Call the site. Does it read out the same?", default=False):
        print("Not approved.")
        raise typer.Exit(1)
    done = enrol.approve(folder, request)
    print(f"Approved. Send {done.file} to {done.site}: vitrail join takes it.")


@verb
def remove(
    site: Annotated[str, typer.Argument(help="The site's name.")],
    study: StudyOf = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Coordinator: shut a site out of the study for good."""
    from vitrail.deploy import enrol

    folder = enrol.find_coordinator(study) if study else enrol.only_coordinator(Path())
    if not yes and not typer.confirm(f"Shut {site} out for good? This cannot be undone.", default=False):
        print("Nothing was changed.")
        raise typer.Exit(1)
    enrol.remove(folder, site)
    print(f"{site} is removed: its certificate is refused from now on, also after a restart.")


@verb
def serve(
    study: Annotated[Path, typer.Argument(help="The study file, as it was invited with.")],
    quorum: Annotated[
        int | None,
        typer.Option(help="Sites needed to start and in each round; otherwise all to start, then more than half."),
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that a site has to answer.")] = 600.0,
    page: Annotated[bool, typer.Option("--page", help="A live page for this browser, on 127.0.0.1.")] = False,
    new: Annotated[bool, typer.Option("--new", help="A new run, though a site has not taken its last one.")] = False,
) -> None:
    """Coordinator: wait for the sites, run the study, write run and page. Started again, it goes on where it was."""
    from vitrail.deploy import enrol
    from vitrail.deploy.serve import serve as conduct
    from vitrail.report.build import write_report
    from vitrail.report.live import start
    from vitrail.report.watch import words

    need_transport()
    who = enrol.load_coordinator(enrol.find_coordinator(study))
    print(f"{who.study.name!r} at {who.address}; stop with Ctrl-C and start again, nothing is lost.", flush=True)

    def show(run: Path) -> None:
        if page:
            print(f"Live: {start(run).url}", flush=True)

    def written(result: Run, place: Path) -> None:
        print(f"\nRun:  {place.resolve()}\nPage: {write_report(result, place / 'report.html').resolve()}", flush=True)

    say = lambda event, told: print(f"  {words(event, told)}", flush=True)  # noqa: E731
    conduct(who, quorum, deadline, say, show, written, new)


@verb
def join(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    data: Annotated[Path, typer.Option("--data", help="The site's own file; it stays here.")],
    approval: Annotated[Path | None, typer.Option(help="The approval, the first time.")] = None,
    accept: Annotated[str, typer.Option(help="The agreement's hash, for unattended use.")] = "",
    publish: Annotated[bool, typer.Option(help="Whether layers and models are shown where the method asks.")] = True,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Of so many messages the numbers are kept, the last ones; all without it."),
    ] = None,
) -> None:
    """Site: check the file, read what will leave the house, agree, and take part until the study is finished."""
    from vitrail.deploy import enrol
    from vitrail.deploy.join import Door, agree
    from vitrail.deploy.personal import check_not_left, load_model
    from vitrail.deploy.site import Site
    from vitrail.report.private import write_private

    check_not_left(kit)
    need_transport()
    own = enrol.accept(kit, approval) if approval else enrol.load_kit(kit)
    agreement, frame = agree(own, data, accept, publish)
    site = Site(own.site, frame, agreement, own.home, publish)
    door = Door(own, site, lambda text: print(f"  {text}", flush=True), keep)
    print(
        f"{own.site} takes part; coordinator at {own.address}. Stop with Ctrl-C and join again at any time.", flush=True
    )
    door.stay()
    print(f"The study is finished. This site's own model is in {own.home}: vitrail predict {kit} --data FILE")
    mine = load_model(own, site.home.name)
    if mine.behind is not None:
        page = write_private(mine.look(frame), site.home / "look.html")
        print(f"What was found about this site, with its own rows beside it: {page.resolve()}")


@verb
def outbox(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    show: Annotated[int | None, typer.Option(help="Print the numbers of the message with this number.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also what came in, and what was refused.")] = False,
) -> None:
    """Site: every message that ever left this house; with --show, the numbers in it."""
    from vitrail.core.table import print_table
    from vitrail.deploy import enrol
    from vitrail.deploy.outbox import Outbox, numbers, table
    from vitrail.report.words import several, size

    own = enrol.load_kit(kit)
    box = Outbox(own.home)
    if show is not None:
        print(numbers(box.show(show), box.place(show)))
        return
    entries = box.entries()
    left = [e for e in entries if e.direction == "out"]
    if shown := entries if everything else left:
        print_table(*table(shown))
        print()
    print(f"{several(len(left), 'message')} left, {size(sum(e.bytes for e in left))}, from {own.site}. {box.log}")
    if left:
        print(f"The numbers of one: vitrail outbox {kit} --show {max(left, key=lambda e: e.bytes).number}")


@verb
def predict(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    data: Annotated[Path, typer.Option("--data", help="The new rows: a table with the study's columns.")],
    out: Annotated[Path | None, typer.Option(help="The CSV file to write; without it, on the screen.")] = None,
    run: Annotated[str | None, typer.Option(help="The run whose model; without it, the one that ended last.")] = None,
) -> None:
    """Site: this site's own model on new rows, as CSV: the line in the file, and a probability for each class."""
    from vitrail.core.problems import Problem, VitrailError
    from vitrail.data.read import read_table
    from vitrail.deploy import enrol
    from vitrail.deploy.personal import load_model

    mine = load_model(enrol.load_kit(kit), run)
    told = mine.model.predict(read_table(data, mine.model.study)).to_csv(index_label="line")
    if out is None:
        print(told, end="")
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(told)
    except OSError as error:
        what = f"it cannot be written: {error.strerror}."
        raise VitrailError("nothing was written", [Problem(str(out), what, "Choose another --out.")]) from None
    print(f"{out.resolve()}: {told.count(chr(10)) - 1} rows, with the model of {mine.site} from run {mine.run}.")


@verb
def leave(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Site: end taking part for good. The key is deleted; the site's own model and its outbox stay."""
    from vitrail.deploy import enrol, personal

    own = enrol.load_kit(kit)
    print(f"{own.site} leaves {own.study.name!r}: its key and certificate are deleted, and this kit joins no more.")
    print(f"What stays here: {own.home} (models and outbox). What left before cannot be called back.")
    if not yes and not typer.confirm("Leave for good?", default=False):
        print("Nothing was changed.")
        raise typer.Exit(1)
    personal.leave(own.folder, own.home)
    print("Left. Tell the coordinator, who can shut the name out at that end too: vitrail remove.")


def need_transport() -> None:
    from importlib.util import find_spec

    from vitrail.core.problems import Problem, VitrailError

    if find_spec("nvflare") is None:
        what, hint = "NVIDIA FLARE is not installed here.", "pip install 'vitrail[deploy]'"
        raise VitrailError("this needs the transport between machines", [Problem("nvflare", what, hint)])


@verb
def doctor(
    place: Annotated[Path, typer.Argument(help="A site's kit, or the coordinator's study file.")],
    data: Annotated[Path | None, typer.Option("--data", help="At a site: its own file.")] = None,
) -> None:
    """Either end: is everything there to take part? Each finding with what to do. Exit code 1 if something is not."""
    from vitrail.deploy import enrol
    from vitrail.deploy.doctor import at_coordinator, at_site

    if (place / "invitation.json").exists():
        found = at_site(enrol.load_kit(place), data)
    else:
        found = at_coordinator(enrol.load_coordinator(enrol.find_coordinator(place)))
    for finding in found:
        print(f"{'fine ' if finding.well else 'WRONG'}  {finding.what}")
        if not finding.well and finding.to_do:
            print(f"       -> {finding.to_do}")
    raise typer.Exit(0 if all(f.well for f in found) else 1)
