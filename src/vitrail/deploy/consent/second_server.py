"""What the form of a second server says: every value that its template fills in."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.deploy.consent.form import ConsentForm, fill
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.privacy.two_server.protocol import TESTS


@dataclass(frozen=True)
class SecondServerForm:
    """The one context object of a second server's form."""

    server: str
    sites: tuple[str, ...]
    agreement: str
    study: str
    description: str
    tests: int  # sums of each report with random signs
    least: int  # reports in a total
    fingerprint: str


def second_server_form(agreement: Agreement, server: str, fingerprint: str) -> ConsentForm:
    study = agreement.study
    available = agreement.roster.pseudonyms
    names = sorted(name for name in agreement.roster if name != server)
    sites = tuple(f"{name} (a pseudonym)" if name in available else name for name in names)
    about = agreement.hash, study.name, study.description, TESTS, study.protect.least, fingerprint
    return ConsentForm(fill("second_server.txt", SecondServerForm(server, sites, *about)))
