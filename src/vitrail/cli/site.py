"""Verbs of a site in a study between machines: request, join, outbox, leave; and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.options import PLACE, SANDBOX
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.text import print_table


def request(
    invitation: Annotated[Path, typer.Argument(help="Invitation, as the coordinator sent it.")],
    kit: Annotated[Path | None, typer.Option(help="Kit to create (default: NAME.kit next to the invitation).")] = None,
    home: Annotated[
        Path | None, typer.Option(help="Folder for this site's models and outbox (default: NAME.home next to the kit).")
    ] = None,
    chosen: Annotated[
        str, typer.Option("--as", help="With an open invitation: the name under which this site takes part.")
    ] = "",
) -> None:
    """Site: create a key, which stays here, and a request to send to the coordinator."""
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.identity.participants import NOBODY_KNOWS

    made = enrolment.request(invitation, kit, home, chosen)
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
    if available := own.invitation.get("pseudonym"):
        who = "Nobody" if available == NOBODY_KNOWS else "Only the coordinator"
        print(f"{own.site} is a pseudonym. {who} can say whose it is; the consent form says what it does not hide.")
    if own.approved:
        print("This kit was approved before; it now has the new invitation.")
        return
    print(f"Send {made.file} to the coordinator, and compare both fingerprints by phone.")
    print("The consent form and its hash are shown when you join. It names all participants and their keys, which are")
    print("known once everybody who was invited has been approved.")


def join(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    data: Annotated[Path, typer.Option("--data", help="The site's own file; it stays here.", **PLACE)],
    approval: Annotated[Path | None, typer.Option(help="Approval, needed the first time.")] = None,
    accept: Annotated[str, typer.Option(help="Hash of the consent form that you accept, for unattended use.")] = "",
    publish: Annotated[
        bool, typer.Option(help="Whether to publish layers and models where the method asks for them.")
    ] = True,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Keep the contents of the last N messages only (default: all)."),
    ] = None,
    watts: Annotated[
        float | None,
        typer.Option(min=0.1, max=10000, help="Power draw of one busy CPU core in watts; enables the energy estimate."),
    ] = None,
    grid: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=2000,
            help="With --watts: grams of CO2 that your grid emits for a kWh; enables the CO2 estimate.",
        ),
    ] = None,
    least_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="With [share] in the study: take no part in a round with a smaller share."),
    ] = None,
    most_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="With [share] in the study: take no part in a round with a larger share."),
    ] = None,
    ration_training: Annotated[
        int | None,
        typer.Option(min=1, help="Guest: how often a row may be queried during training (default: the study's limit)."),
    ] = None,
    ration_after: Annotated[
        int | None,
        typer.Option(min=0, help="Guest: how many rows may be queried after training (default: the study's limit)."),
    ] = None,
    places: Annotated[
        bool,
        typer.Option("--places", help="Party: agree in advance that all parties learn which rows they have in common."),
    ] = False,
    list_ratio: Annotated[
        float | None,
        typer.Option(
            min=1, help="Party: how many times as long as yours another party's list of IDs may be (default: 2)."
        ),
    ] = None,
    explain: Annotated[int, typer.Option(min=0, help="Host: number of matched rows to explain after training.")] = 0,
    ask: Annotated[
        Path | None, typer.Option(help="Host: number of rows to predict after training, matched or not.", **PLACE)
    ] = None,
    look_up: Annotated[
        bool, typer.Option("--look-up", help="Guest: allow private lookups of people who are not in the match.")
    ] = False,
    another: Annotated[
        bool,
        typer.Option(
            "--another-run", help="Allow a new run although the last one has not ended; do not use this in a service."
        ),
    ] = False,
    show_verdict: Annotated[
        bool,
        typer.Option(
            "--show-verdict", help="If the study has a verdict: tell the other sites whether joining is worth it here."
        ),
    ] = False,
    fewest_together: Annotated[
        int,
        typer.Option(
            min=0,
            help="If the study chooses whom to learn from: withdraw before training if fewer than N sites would train.",
        ),
    ] = 0,
    confirm_subset: Annotated[
        bool,
        typer.Option(
            "--confirm-subset", help="In such a study: ask at this terminal before this site trains with the others."
        ),
    ] = False,
    most_epsilon: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=(
                "Refuse a run after which these rows would have spent more than this privacy budget (epsilon) "
                "over all studies. The limit is remembered."
            ),
        ),
    ] = None,
    named_only: Annotated[
        bool, typer.Option("--named-only", help="Refuse a study in which others take part under a pseudonym.")
    ] = False,
    sandbox: Annotated[bool, typer.Option("--sandbox/--no-sandbox", help=SANDBOX)] = True,
) -> None:
    """Site: check the file, read what will leave the hospital, agree, and take part until the study is finished."""
    from vitrail.deploy.doctor import need_sandbox, need_transport
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.identity.pseudonyms import check_named_only
    from vitrail.deploy.identity.signing import Signer
    from vitrail.deploy.identity.site_identity import SiteIdentity
    from vitrail.deploy.share.site import own_limits
    from vitrail.deploy.site.model import check_not_left, load_model
    from vitrail.deploy.site.process import SiteProcess, agree
    from vitrail.deploy.site.scores import own_words
    from vitrail.deploy.site.site import Site
    from vitrail.deploy.transfer.site import PLACE as TRANSFER_FOLDER
    from vitrail.deploy.transfer.withdrawal import decision
    from vitrail.engine.resource_usage import StatedPower
    from vitrail.quality.checks.table import repeated_rows
    from vitrail.quality.known_findings import read_answers
    from vitrail.quality.screening.text import sentence
    from vitrail.report.pages.site import write_look
    from vitrail.report.sections.scores.own_verdict import verdict_words, write_own_verdict

    if grid is not None and watts is None:
        what = "CO2 is worked out from energy, and no --watts are stated."
        raise VitrailError("the site cannot join", [Problem("--grid", what, "State --watts too, or leave --grid out.")])
    check_not_left(kit)
    need_transport()
    need_sandbox(sandbox)
    own = enrolment.accept(kit, approval) if approval else enrolment.load_kit(kit)
    if named_only:
        check_named_only(own.site, own.participants.roster.pseudonyms)
    limits = own_limits(own.study, least_share, most_share)
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
    for text in repeated_rows(frame, own.study):
        print(f"Look at your file: {text}")
    proof, power = SiteIdentity.of(own), StatedPower(watts, grid)
    given = publish, proof, another, power, show_verdict, ledger, limits
    site = Site(own.site, frame, agreement, own.home, *given)
    site.decides = decision(own.study, fewest_together, confirm_subset)
    door = SiteProcess(own, site, lambda text: print(f"  {text}", flush=True), keep, Signer.of_site(own), sandbox)
    print(
        f"{own.site} takes part; coordinator at {own.address}. Stop with Ctrl-C and join again at any time.", flush=True
    )
    door.stay()
    if (site.home / TRANSFER_FOLDER).exists() and not (site.home / "model.safetensors").exists():
        print(f"This site did not train in this run. What it found out is in {(site.home / TRANSFER_FOLDER).resolve()}")
        return
    print(f"The study is finished. This site's own model is in {own.home}: vitrail predict {kit} --data FILE")
    if worth := own_words(own.study, site.home):
        print(worth)
    mine = load_model(own, site.home.name)
    if mine.verdict:
        page = site.home / "verdict.html"
        write_own_verdict(own.site, own.study, mine.verdict, page)
        shown = "The other sites were informed." if show_verdict else "This stays here."
        print(f"Is joining worth it here? {verdict_words(mine.verdict)} {shown} {page.resolve()}")
    if mine.sights:
        answered = [file] if (file := kit / "known.toml").is_file() else []
        seen = mine.look(frame, answers=read_answers(answered))
        page = write_look(seen, site.home / "look.html", mine.joining)
        for finding in mine.behind.findings if mine.behind else ():
            if finding.wrong:
                print(f"Likely wrong in your data: {sentence(finding)}")
        what = "What was found about this site, with its own rows beside it"
        what = "What its model says of its own pictures" if own.study.images else what
        print(f"{what}: {page.resolve()}")


def outbox(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    show: Annotated[int | None, typer.Option(help="Print the contents of the message with this number.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list what came in and what was refused.")] = False,
) -> None:
    """Site: list every message that ever left this hospital; with --show, the numbers in it."""
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

        sealed = ["Each message is shown as it was before encryption."] if left else []
        print("\n".join([*sealed, *ration_left(own), MatchQuota(own.home).words()]))
    if strange := [e for e in entries if e.kind == NOT_OURS]:
        print(
            f"{several(len(strange), 'line')} about messages that came over FLARE's own channels and were refused; "
            "the last one:"
        )
        print(f"  {strange[-1].time}  {strange[-1].what}")
    if left:
        print(
            f"To see the numbers in one message: vitrail outbox {kit} --show {max(left, key=lambda e: e.bytes).number}"
        )


def leave(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Site: leave the study for good. The key is deleted; the site's own model and its outbox stay."""
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site import model as site_model

    own = enrolment.load_kit(kit)
    if when := site_model.has_left(own.folder):
        print(f"{own.site} left {own.study.name!r} with this kit on {when}. There is nothing more to do.")
        return
    print(f"{own.site} leaves {own.study.name!r}: its key and certificate are deleted, and this kit cannot join again.")
    print(f"What stays here: {own.home} (models and outbox). What was sent before cannot be taken back.")
    if not yes and not typer.confirm("Leave the study for good?", default=False):
        print("Nothing was changed.")
        raise typer.Exit(1)
    site_model.leave(own.folder, own.home)
    print(f"Left. Tell the coordinator, who can shut {own.site} out at that end too: vitrail remove {own.site!r}")


def doctor(
    place: Annotated[Path, typer.Argument(help="A site's kit, or the coordinator's study file.")],
    data: Annotated[Path | None, typer.Option("--data", help="Site: its own file.", **PLACE)] = None,
) -> None:
    """Site or coordinator: check that everything needed to take part is in place, and say what to do about each
    problem. Exit code 1 if something is missing.
    """
    from vitrail.deploy.doctor import at_coordinator, at_site
    from vitrail.deploy.identity import coordinator_folder, enrolment

    if (place / "invitation.json").exists():
        examinations = at_site(enrolment.load_kit(place), data)
    elif not place.exists():
        what, hint = "there is no such file or folder.", "Name a site's kit, or the coordinator's study file."
        raise VitrailError("cannot examine it", [Problem(str(place), what, hint)])
    else:
        examinations = at_coordinator(enrolment.load_coordinator(coordinator_folder.find_coordinator(place)))
    for finding in examinations:
        print(f"{'fine ' if finding.well else 'WRONG'}  {finding.what}")
        if not finding.well and finding.to_do:
            print(f"       -> {finding.to_do}")
    raise typer.Exit(0 if all(f.well for f in examinations) else 1)
