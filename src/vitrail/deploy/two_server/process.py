"""`vitrail serve KIT --second`: before anything is answered, the form is shown, and somebody says yes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.consent.second_server import second_server_form
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.participants import complete
from vitrail.deploy.identity.signing import Signer
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.process import SiteProcess, agreed_to, show_form
from vitrail.deploy.two_server.server import SecondServer


def serve_second(
    kit: Path,
    approval: Path | None,
    accept: str,
    say: Callable[[str], None],
    another: bool = False,
    sandbox: bool = True,
) -> None:
    """Until the study is finished. `another`: one more run may begin, though the last has not ended."""
    own = enrolment.accept(kit, approval) if approval else enrolment.load_kit(kit)
    problem = ""
    if own.site != own.study.protect.second:
        named = own.study.protect.second
        problem = f"this is the kit of {own.site}, but the study's second server is {named or 'nobody'}."
    elif not own.approved:
        problem = "the coordinator has not approved this kit yet."
    if problem:
        hint = "Use the kit of the second server; the first time, add the coordinator's approval: --approval FILE."
        raise VitrailError("cannot serve", [Problem(str(own.folder), problem, hint)])
    agreement = Agreement.of(own.study, own.seed, complete(own.participants, str(own.folder)))
    form = second_server_form(agreement, own.site, own.fingerprint)
    show_form(form, own.home)
    accepted = {"agreement": agreement.hash, "form": form.hash} | ({} if sandbox else {"sandbox": False})
    agreed_to(own, form.hash, accepted, accept)
    server = SecondServer(own.site, agreement, own.home, SiteIdentity.of(own), another)
    door = SiteProcess(own, server, say, None, Signer.of_site(own), sandbox)
    say(f"{own.site} is the second server; coordinator at {own.address}. Stop with Ctrl-C and start again at any time.")
    door.stay()
    say("The study is finished.")
