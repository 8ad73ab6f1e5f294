"""`vitrail doctor`: what could keep a site or a coordinator from taking part, each with what to do about it."""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import shutil
import socket
import ssl
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from vitrail.core.errors import Problem, VitrailError, printable
from vitrail.data.findings import CheckFinding
from vitrail.data.readers.tables import place_columns, read_table
from vitrail.deploy.coordinator.run_members import ENTERED
from vitrail.deploy.identity import party_keys
from vitrail.deploy.identity.certificates import COORDINATOR, fingerprint_key, name_of
from vitrail.deploy.identity.enrolment_records import Coordinator, Kit
from vitrail.deploy.identity.participants import complete
from vitrail.deploy.transport import sandbox
from vitrail.deploy.vertical.agreement import agreed_hash
from vitrail.quality.checks.table import find_faults
from vitrail.runs.folder import versions
from vitrail.vertical.tables import OWN, check_party, read_party

TIMEOUT = 5.0
ROOM = 1 << 30  # bytes that should be free
SOON = datetime.timedelta(days=30)


class Examination(NamedTuple):
    well: bool
    what: str
    to_do: str = ""


def at_site(kit: Kit, data: Path | None = None) -> list[Examination]:
    checks = [_packages(), _sandbox(), _disk(kit.home if kit.home.exists() else kit.folder)]
    certificate = kit.folder / "certificate.pem"
    if not kit.approved:
        checks.append(
            Examination(False, "The kit is not approved yet.", "Join with the coordinator's --approval FILE.")
        )
    else:
        checks += _certificate(certificate, "this site's")
        own = x509.load_pem_x509_certificate(certificate.read_bytes())
        same = fingerprint_key(own.public_key()) == kit.fingerprint
        checks.append(Examination(same, f"Certificate and key {'match' if same else 'do not match'}.", "Request anew."))
        checks += _reach(kit, certificate)
    checks += [
        _same_versions("the coordinator at the time of the invitation", kit.invitation["versions"]),
        _agreed(kit),
    ]
    checks += [_participants(kit)] if kit.approved and not kit.study.parties else []
    checks += _party(kit, data) if kit.study.parties else []
    if data is not None:
        try:
            seen = [f.severity for f in _findings(kit, data)]
            errors, warnings = seen.count("error"), seen.count("warning")
            what = f"{data.name} was checked against the study: {errors} errors, {warnings} warnings (join shows them)."
            checks.append(Examination(not errors, what, "Correct the file, or ask the coordinator."))
        except VitrailError as error:
            checks.append(
                Examination(False, f"{data.name} cannot be read: {error.title}.", "; ".join(map(str, error.problems)))
            )
    return checks


def _findings(kit: Kit, data: Path) -> list[CheckFinding]:
    if kit.study.parties:
        return check_party(read_party(data, kit.study, kit.site), kit.study, kit.site)
    return find_faults(read_table(data, kit.study), kit.study)


def _party(kit: Kit, data: Path | None) -> list[Examination]:
    """Of a party: its key for sealed letters, the others' cards, its id column and what describes its columns."""
    checks, own, place = [], kit.study.parties[kit.site], kit.folder / party_keys.CARDS
    try:
        mine = (
            party_keys.public(party_keys.sealing_key(kit.folder)).hex()
            if (kit.folder / party_keys.SEALING).exists()
            else ""
        )
        hint = "Restore it from a backup, or make a new kit with `vitrail request`."
        words = "is there" if mine else "is not there"
        checks.append(Examination(bool(mine), f"The key for sealed letters {words}.", hint))
        cards = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
        given = party_keys.read_cards(cards, kit.study.parties, kit.authority, place)
        same = given[kit.site]["key"] == mine
        words = (
            "and the card of this kit matches its key" if same else "but the card of this kit does not match its key"
        )
        checks.append(Examination(same, f"The cards of all {len(given)} parties are present, {words}.", hint))
    except (VitrailError, ValueError) as error:
        what = error.title if isinstance(error, VitrailError) else "the file cannot be read"
        checks.append(Examination(False, f"The cards of the parties: {what}.", "Join with the newest --approval FILE."))
    if data is not None and data.exists():
        with contextlib.suppress(VitrailError):  # told with the file
            frame = read_party(data, kit.study, kit.site)
            there = own.id in place_columns(frame)[0]
            hint = "The study names the column with the ids. Rename the column here, or ask the coordinator."
            checks.append(
                Examination(there, f"The column of ids, {own.id!r}, is {'there' if there else 'not there'}.", hint)
            )
            if kit.site != kit.study.host:
                by = Path(frame.attrs[OWN]).name if OWN in frame.attrs else "values in the table"
                checks.append(
                    Examination(
                        True, f"The features of this table are described by {by}; their names do not leave this site."
                    )
                )
    return checks


def at_coordinator(who: Coordinator) -> list[Examination]:
    checks = [_packages(), _sandbox(), _disk(who.folder)]
    checks += _certificate(who.folder / "authority" / "cert.pem", "the authority's")
    for name, site in who.sites.items():
        if not site["approved"] and not site["removed"]:
            checks.append(
                Examination(
                    False, f"Site {name} is invited but not approved.", "Wait for the site's request, then approve it."
                )
            )
    with socket.socket() as probe:
        probe.settimeout(TIMEOUT)
        busy = probe.connect_ex(("127.0.0.1", who.port)) == 0
    words = "in use, probably by vitrail serve" if busy else "free, so nobody can connect at present"
    checks.append(Examination(True, f"Port {who.port}: {words}."))
    try:
        socket.getaddrinfo(who.host, who.port)
        checks.append(Examination(True, f"{who.host} has an address."))
    except OSError:
        hint = "Sites will not find it either. Correct the DNS entry, or invite again with another --address."
        checks.append(Examination(False, f"{who.host} has no address here.", hint))
    for entered in sorted(who.folder.glob(f"runs/*/{ENTERED}"))[-1:]:
        sites = json.loads(entered.read_text())["sites"].items()
        checks += [_same_versions(site, entry["versions"]) for site, entry in sites]
    return checks


def _same_versions(where: str, theirs: dict[str, Any]) -> Examination:
    """Of the other end, as it said."""
    here = versions()
    others = {k: v for k, v in theirs.items() if here.get(k) != v}
    hint = "Numbers may differ in the last digits. Install the same versions (constraints.txt) on both machines."
    words = printable(", ".join(f"{k} {v} (here {here.get(k)})" for k, v in others.items())) or "as here"
    return Examination(not others, f"Versions at {where}: {words}.", hint)


def _packages() -> Examination:
    installed = ", ".join(f"{k} {v}" for k, v in versions().items())
    try:
        return Examination(True, f"{installed}, nvflare {version('nvflare')}.")
    except PackageNotFoundError:
        return Examination(
            False, f"{installed}; the transport between machines is not installed.", "pip install 'vitrail[deploy]'"
        )


def need_transport() -> None:
    """Refuse to go on where FLARE is not installed, or where it cannot run as we run it."""
    if sys.platform != "linux":
        what = f"this command runs on Linux only; this machine runs {platform.system() or sys.platform}."
        hint = "Take part from a Linux machine or container. Commands that need no other machine work here."
        raise VitrailError(
            "this command connects to other machines", [Problem("vitrail serve, vitrail join", what, hint)]
        )
    if find_spec("nvflare") is None:
        what, hint = "NVIDIA FLARE is not installed here.", "pip install 'vitrail[deploy]'"
        raise VitrailError("the transport between machines is missing", [Problem("nvflare", what, hint)])


def need_sandbox(wanted: bool) -> None:
    """Refuse to go on where FLARE's processes cannot be shut in, unless somebody says that they need not be."""
    if wanted and not sandbox.abi():
        what = (
            "the kernel has no Landlock (it needs Linux 5.13 or later), Landlock is switched off, or a "
            "container forbids it."
        )
        hint = (
            "Enable Landlock (`landlock` in the kernel's lsm= list), or start with --no-sandbox. Then "
            "FLARE's processes can read everything that this user can read, and the log records that."
        )
        raise VitrailError("FLARE's processes cannot be confined on this machine", [Problem("sandbox", what, hint)])


def _sandbox() -> Examination:
    version = sandbox.abi()
    if not version:
        hint = (
            "`join` and `serve` refuse to start without it, unless --no-sandbox is given. It needs Linux 5.13 or later."
        )
        return Examination(False, "Landlock is not active, so FLARE's processes cannot be confined.", hint)
    covered = ["files", *(["ports"] if version >= 4 else []), *(["signals"] if version >= 6 else [])]
    return Examination(True, f"Landlock version {version} confines FLARE's processes ({', '.join(covered)}).")


def _disk(place: Path) -> Examination:
    free = shutil.disk_usage(place).free
    hint = "Free disk space. A site stops when it cannot record a message, because it sends only what it has recorded."
    return Examination(free > ROOM, f"{free / (1 << 30):.1f} GB free at {place}.", hint)


def _certificate(path: Path, whose: str) -> list[Examination]:
    hint = "Ask the coordinator to approve the same request again."
    return _valid(x509.load_pem_x509_certificate(path.read_bytes()), whose, hint)


def _valid(own: x509.Certificate, whose: str, hint: str) -> list[Examination]:
    now = datetime.datetime.now(datetime.UTC)
    first, last = own.not_valid_before_utc, own.not_valid_after_utc
    if now < first:
        set_it = "Set the clocks: this machine's clock is slow, or the coordinator's is fast."
        what = f"According to this machine's clock ({now:%Y-%m-%d %H:%M} UTC), {whose} certificate is not valid yet."
        return [Examination(False, what, set_it)]
    return [
        Examination(
            now < last - SOON, f"{whose[0].upper()}{whose[1:]} certificate is valid until {last:%Y-%m-%d}.", hint
        )
    ]


def _reach(kit: Kit, certificate: Path) -> list[Examination]:
    host, _, port = kit.address.rpartition(":")
    hint = "Check that vitrail serve is running there, and that no firewall blocks connections from here to that port."
    try:
        plain = socket.create_connection((host, int(port)), TIMEOUT)
    except OSError as error:
        return [Examination(False, f"{kit.address} cannot be reached ({error.strerror or error}).", hint)]
    checks = [Examination(True, f"{kit.address} answers.")]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=kit.invitation["authority"])
    context.load_cert_chain(certificate, kit.folder / "key.pem")
    context.check_hostname = (
        False  # the study's authority signs for one coordinator, wherever it is: its name is looked at
    )
    context.set_alpn_protocols(["h2"])
    try:
        with plain, context.wrap_socket(plain) as line:
            shown = x509.load_der_x509_certificate(line.getpeercert(binary_form=True) or b"")
        if name_of(shown) != COORDINATOR:
            raise ssl.SSLError(f"its certificate is {printable(name_of(shown))!r}'s")
        checks.append(
            Examination(True, f"It is the coordinator of this study (authority {kit.authority_fingerprint}).")
        )
        checks += _valid(
            shown,
            "the coordinator's",
            "Ask the coordinator to run `vitrail invite` again, which renews its certificate.",
        )
    except (ssl.SSLError, OSError) as error:
        hint = (
            "Compare the authority's fingerprint by phone. Another program, proxy or study may be answering "
            "at that address."
        )
        checks.append(
            Examination(False, f"The program that answers there is not this study's coordinator ({error}).", hint)
        )
    return checks


def _agreed(kit: Kit) -> Examination:
    mine, theirs = agreed_hash(kit.study, kit.seed, len(kit.sites)), kit.invitation["agreement"]
    hint = "Install the coordinator's version of Vitrail, or ask for a new invitation."
    same = "This machine reads the invitation as the coordinator wrote it."
    other = f"This machine computes the agreement {mine} from the invitation, but the invitation says {theirs}."
    return Examination(mine == theirs, same if mine == theirs else other, hint)


def _participants(kit: Kit) -> Examination:
    """Who takes part, and with that what is accepted."""
    try:
        roster = complete(kit.participants, str(kit.folder))
    except VitrailError as error:
        return Examination(False, "; ".join(p.what for p in error.problems), error.problems[0].hint)
    hidden = f", {len(roster.pseudonyms)} of them under a pseudonym" if roster.pseudonyms else ""
    return Examination(
        True, f"{len(roster)} participants{hidden}; the agreement is {agreed_hash(kit.study, kit.seed, roster)}."
    )
