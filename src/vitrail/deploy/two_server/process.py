"""`vitrail serve KIT --second`: before anything is answered, the form is shown, and somebody says yes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.consent.form import bullets, wrapped
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.participants import complete
from vitrail.deploy.identity.signing import Signer
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.process import SiteProcess, agreed_to
from vitrail.deploy.two_server.server import SecondServer
from vitrail.privacy.two_server.protocol import TESTS


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
        problem = f"it is the kit of {own.site}, and the study's second server is {named or 'nobody'}."
    elif not own.approved:
        problem = "it is not approved yet."
    if problem:
        hint = "Take the second server's kit, and the first time the coordinator's answer: --approval FILE."
        raise VitrailError("cannot serve", [Problem(str(own.folder), problem, hint)])
    agreement = Agreement.of(own.study, own.seed, complete(own.participants, str(own.folder)))
    print(second_text(agreement, own))
    agreed_to(own, agreement.hash, {"agreement": agreement.hash} | ({} if sandbox else {"sandbox": False}), accept)
    server = SecondServer(own.site, agreement, own.home, SiteIdentity.of(own), another)
    door = SiteProcess(own, server, say, None, Signer.of_site(own), sandbox)
    say(f"{own.site} is the second server; coordinator at {own.address}. Stop with Ctrl-C and start again at any time.")
    door.stay()
    say("The study is finished.")


def second_text(agreement: Agreement, kit: enrolment.Kit) -> str:
    """What a second server takes on."""
    study, sites = agreement.study, [n for n in kit.sites if n != kit.site]
    tells = [
        "its key for sealed letters, signed",
        "for each round, of every site's half that came: that it is there",
        f"its halves of the distances between reports, and of {TESTS} sums of each with signs drawn by both servers",
        f"its half of the total of the reports that are chosen, never of fewer than {study.protect.least}",
    ]
    holds = [
        "half of each report is noise, and tells nothing; with the coordinator's half it is the report. Whoever runs "
        "both servers, or has them put their halves together, reads every site: that nobody does is what you promise",
        "a dealer, which is a site drawn by lot in each round, could with either server read that round",
        "each round is answered once, for one list of sites; what was said is on this machine's disk, and asked "
        "otherwise this server refuses. Do not put this folder back in time",
        "compare by phone, with every site, the fingerprint of this server's key: the coordinator could issue a "
        f"second certificate in your name. It is {kit.fingerprint}",
    ]
    parts = [
        "THE STUDY",
        *wrapped(" ".join(filter(None, [f"{study.name}.", study.description]))),
        *wrapped(f"Sites: {', '.join(sites)}. This server holds no rows; the other server is the coordinator."),
        "",
        "WHAT THIS SERVER SAYS",
        *bullets(tells),
        "",
        "WHAT IT ANSWERS FOR",
        *bullets(holds),
        "",
        "TO ACCEPT",
        *wrapped(f"The hash of this contract is {agreement.hash}, the sites' own. Unattended:"),
        f"  --accept {agreement.hash}",
    ]
    return "\n".join(parts)
