"""Who takes part: an authority for each study, an invitation per site, a request that comes back, an approval.

Private keys are made where they are used and stay there. What travels (invitation, request, approval) is public and
may go by mail: people at both ends compare the fingerprints by phone.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.deploy.identity import party_keys
from vitrail.deploy.identity import pseudonyms as pseudonym
from vitrail.deploy.identity.certificates import (
    BITS,
    COORDINATOR,
    StudyAuthority,
    fingerprint_key,
    hosts_of,
    is_issued,
    make_authority,
    own_key,
    read_authority,
    read_certificate,
    requested_key,
    x509_name,
)
from vitrail.deploy.identity.coordinator_folder import approval_of, folder_of, invitation_of
from vitrail.deploy.identity.documents import (
    APPROVAL,
    BOOK,
    INVITATION,
    METHOD,
    PAPER_FORMAT,
    REQUEST,
    Approval,
    EnrolmentRequest,
    PendingRequest,
    address_problems,
    check_agreement,
    identity_of,
    name_problems,
    read_paper,
    study_of,
    to_text,
)
from vitrail.deploy.identity.enrolment_records import CURRENT as CURRENT
from vitrail.deploy.identity.enrolment_records import Coordinator as Coordinator
from vitrail.deploy.identity.enrolment_records import Kit as Kit
from vitrail.deploy.identity.invitation import SIGNATURE, check_signature, sign_invitation
from vitrail.deploy.identity.participants import (
    FILE,
    ParticipantList,
    load_participants,
    read_participants,
)
from vitrail.deploy.vertical.agreement import agreed_hash
from vitrail.runs.folder import site_folder, versions
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.study.model import Study

LEAD = "lead@coordinator"  # who submits FLARE's jobs
LEFT = "left.txt"  # in a kit whose site left, and whose key is gone: when


# the coordinator


def invite(
    study_file: Path,
    sites: Sequence[str],
    address: str,
    seed: int | None = None,
    pseudonyms: Mapping[str, str] | None = None,
    unnamed: int = 0,
) -> Path:
    """Make the study's authority and an invitation per site. Again: adds sites, changes the address ("" keeps it).
    `pseudonyms`: real name -> the name under which that site is invited; `unnamed`: so many open invitations."""
    study = Study.load(study_file)
    folder = folder_of(study_file)
    old = load_coordinator(folder) if (folder / "coordinator.json").exists() else None
    enrolled = dict(old.sites) if old else {}
    sites, given = sites or ([] if enrolled else list(study.parties)), dict(pseudonyms or {})
    unsaid = list(pseudonym.invitation_problems(study, sites, given, unnamed, enrolled, address))
    sites = [*sites, *given.values()]
    if (second := study.protect.second) and second not in {*enrolled, *(given.strip() for given in sites)}:
        sites = [*sites, second]  # it is enrolled like a site
    problems = [*name_problems(sites, enrolled), *unsaid]
    if old and old.study.name != study.name:
        what = f"this folder belongs to the study {old.study.name!r}, but the study file describes {study.name!r}."
        problems.append(Problem(str(folder), what, "Rename the study file, or give the study its former name."))
    if study.parties and {*enrolled, *(given.strip() for given in sites)} != study.parties.keys():
        what = f"expected exactly the study's parties, {', '.join(study.parties)}."
        problems.append(Problem("--site", what, "Omit --site, or name each party."))
    if not sites and not enrolled and not unnamed:
        problems.append(Problem("--site", "no site is named.", "Name each with --site NAME."))
    if seed is not None and not 0 <= seed < 2**63:
        problems.append(Problem("--seed", f"expected a number from 0 to 2^63 - 1, got {seed}.", "Correct it."))
    if not address and old:
        address = old.address
    else:
        problems += address_problems(address)
    if problems:
        raise VitrailError("no invitation was written", problems)
    for name in (named.strip() for named in sites):
        enrolled.setdefault(name, pseudonym.blank(name))
    enrolled |= {
        name: pseudonym.hidden(real, name) for real, name in given.items() if not enrolled[name]["fingerprint"]
    }
    enrolled |= pseudonym.open_invitations(enrolled, unnamed)
    seed = seed if seed is not None else old.seed if old else study.seeds[0]
    agreed = agreed_hash(study, seed, len(enrolled))  # before anything is written: it may refuse

    private_folder(folder)
    for name in ("authority", "keys", "invitations", "approvals", "runs"):
        private_folder(folder / name)
    if not (folder / "authority" / "cert.pem").exists():
        make_authority(folder / "authority")
    signer = StudyAuthority(folder)
    host = address.rpartition(":")[0].lower()
    address = f"{host}:{int(address.rpartition(':')[2])}"
    before = folder / "keys" / "coordinator.crt"
    hosts = [*dict.fromkeys([host, "localhost", "127.0.0.1", *(hosts_of(before) if before.exists() else [])])]
    for who, subject, role, names in (("coordinator", COORDINATOR, "", hosts), ("lead", LEAD, "lead", [LEAD])):
        key = own_key(folder / "keys" / f"{who}.key")
        signed = signer.sign(key.public_key(), subject, COORDINATOR, names, role=role, serves=who == "coordinator")
        write_atomically(folder / "keys" / f"{who}.crt", signed, private=True)
    write_atomically(folder / "study.toml", study.to_toml(), private=True)
    _write_approvals(Coordinator(folder, study, seed, address, enrolled, old.roster if old else ParticipantList({})))
    origin = methods.origin(study.method["name"])
    brought = {METHOD: " ".join(origin)} if origin else {}
    for name, site in enrolled.items():
        if site["removed"]:
            continue
        invitation = {
            "format": PAPER_FORMAT, "study": study.to_toml(), "seed": seed, "sites": list(enrolled), "site": name,
            "identity": site["identity"], "address": address, "authority": signer.pem, "agreement": agreed,
            "versions": versions() | brought, **pseudonym.on_invitation(site),
        }  # fmt: skip
        write_atomically(invitation_of(folder, name), to_text(sign_invitation(invitation, signer)), private=True)
    return folder


def read_request(folder: Path, request: Path) -> PendingRequest:
    """Read a request and check everything that a machine can check."""
    who, paper = load_coordinator(folder), read_paper(request, REQUEST, "a request", "Ask the site to send it again.")
    where, title = str(request), "the request was not approved"
    if place := pseudonym.place_of(who.sites, paper, who.authority_fingerprint, where):
        who = replace(who, sites=pseudonym.renamed(who.sites, place, paper["site"]))
    site, book = paper["site"], who.sites.get(paper["site"])
    if paper["authority"] != who.authority_fingerprint or paper["study"] != who.study.name:
        what = (
            f"it answers an invitation to another study ({paper['study']!r}), which was not made in this "
            "coordinator's folder."
        )
        raise VitrailError(title, [Problem(where, what, "Approve it in the folder where that invitation was made.")])
    if book is None or paper["identity"] != book["identity"]:
        what, hint = f"the site {site!r} was not invited.", nearest(site, who.sites) + " Or: vitrail invite --site."
        raise VitrailError(title, [Problem(where, what, hint)])
    if book["removed"]:
        what = f"the site {site!r} was removed from the study for good."
        raise VitrailError(title, [Problem(where, what, "To readmit the site, invite it under another name.")])
    if (key := requested_key(paper["csr"])) is None:
        what = f"it holds no valid signing request with an RSA key of {BITS} bits or more."
        raise VitrailError(title, [Problem(where, what, "Ask the site to run `vitrail request` again.")])
    mark = fingerprint_key(key)
    if book["approved"] and book["fingerprint"] != mark:
        what = f"{site!r} was approved with another key ({book['fingerprint']}); this one is {mark}."
        hint = f"If the site lost its key, run vitrail remove {site!r}, then invite the site under another name."
        raise VitrailError(title, [Problem(where, what, hint)])
    for other, entry in who.sites.items():
        if other != site and entry["fingerprint"] == mark:
            what = f"{other!r} already has this key."
            raise VitrailError(title, [Problem(where, what, "Each site makes its own kit; kits must not be copied.")])
    card = None
    if who.study.parties:
        card = party_keys.check_card(paper.get("card"), site, who.authority_fingerprint, key, where)
    return PendingRequest(site, book["identity"], mark, key, card, place)


def approve(folder: Path, request: Path) -> Approval:
    """Sign a site's request. Only its key is taken from it: the names are ours."""
    asked, who = read_request(folder, request), load_coordinator(folder)
    if asked.place:
        who = replace(who, sites=pseudonym.renamed(who.sites, asked.place, asked.site))
        invitation_of(folder, asked.place).unlink(missing_ok=True)  # the name is chosen
    signed = StudyAuthority(folder).sign(asked.key, asked.identity, "site", [asked.identity])
    entry = {**who.sites[asked.site], "fingerprint": asked.fingerprint, "approved": True, "certificate": signed}
    if asked.card:
        entry["card"] = {**asked.card, "certificate": signed}
    _write_approvals(replace(who, sites={**who.sites, asked.site: entry}))
    return Approval(approval_of(folder, asked.site), asked.site, asked.fingerprint)


def _write_approvals(who: Coordinator) -> None:
    """The book, and everybody's approval with the participants, or the parties' cards, as they are known now."""
    sites, participants, pem = who.sites, who.participants, StudyAuthority(who.folder).pem
    # a run goes on with the list that was complete last
    roster: Mapping[str, str] = who.roster if participants.missing else participants.roster
    content = {"study": who.study.name, "address": who.address, "seed": who.seed, "sites": sites, "roster": roster}
    write_atomically(who.folder / "coordinator.json", to_text({"format": PAPER_FORMAT, **content}), private=True)
    given = {name: site["card"] for name, site in sites.items() if "card" in site and not site["removed"]}
    more = {"cards": given} if who.study.parties else participants.plain()
    for name, site in sites.items():
        if "certificate" in site and not site["removed"]:
            own = {"format": PAPER_FORMAT, "site": name, "certificate": site["certificate"], "authority": pem}
            write_atomically(approval_of(who.folder, name), to_text(own | more), private=True)


def remove(folder: Path, site: str) -> None:
    """Shut a site out for good. Certificates cannot be called back: its name is refused at the door from now on."""
    who = load_coordinator(folder)
    if site not in who.sites:
        what = f"there is no site {site!r} in this study."
        raise VitrailError("no site was removed", [Problem(str(folder), what, nearest(site, who.sites))])
    _write_approvals(replace(who, sites={**who.sites, site: {**who.sites[site], "removed": True}}))
    invitation_of(folder, site).unlink(missing_ok=True)
    approval_of(folder, site).unlink(missing_ok=True)


def load_coordinator(folder: Path) -> Coordinator:
    folder = Path(folder)
    book = read_paper(folder / "coordinator.json", BOOK, "a coordinator's folder", "Make it with `vitrail invite`.")
    available = {
        name: str(site[pseudonym.KNOWN_TO]) for name, site in book["sites"].items() if pseudonym.KNOWN_TO in site
    }
    given = book["seed"], book["address"], book["sites"], ParticipantList(book.get("roster", {}), available)
    return Coordinator(folder, Study.load(folder / "study.toml", kept=True), *given)


# the site


def request(invitation: Path, kit: Path | None = None, home: Path | None = None, chosen: str = "") -> EnrolmentRequest:
    """Make this site's key and a request for its certificate. Again, with a newer invitation: the key stays.
    `chosen`: with an open invitation, the name under which this site takes part."""
    invitation = Path(invitation)
    paper = read_paper(invitation, INVITATION, "an invitation", "Ask the coordinator to send it again.")
    authority = check_signature(paper, invitation)
    check_agreement(paper, invitation)
    before = _chosen(Path(kit)) if kit else ""
    chosen = pseudonym.chosen_name(paper, chosen, before)
    site = chosen or paper["site"]
    name = site_folder(site)
    kit = Path(kit or invitation.parent / f"{name}.kit").absolute()
    problems = []
    if kit.exists() and not (kit / "invitation.json").exists() and (not kit.is_dir() or any(kit.iterdir())):
        problems.append(Problem(str(kit), "this folder exists, but is not a kit.", "Choose another --kit."))
    elif (kit / LEFT).exists():
        when = (kit / LEFT).read_text(encoding="utf-8").strip()
        hint = "To take part again, ask the coordinator to invite this site under another name."
        problems.append(Problem(str(kit), f"this site left the study with this kit on {when}.", hint))
    elif (kit / "invitation.json").exists():
        old = load_kit(kit)
        if (old.site, old.authority_fingerprint) != (site, authority):
            what = f"it is the kit of {old.site!r} for the study {old.study.name!r} of another site or authority."
            problems.append(Problem(str(kit), what, "Choose another --kit."))
        elif home and home.absolute() != old.home:
            problems.append(Problem("--home", f"this kit already has the home {old.home}.", "Omit --home."))
        home = old.home
    home = Path(home or kit.parent / f"{name}.home").absolute()
    if home.resolve().is_relative_to(kit.resolve()):
        hint = "Choose a --home outside the kit: your own files must not be in the folder in which FLARE works."
        problems.append(Problem(str(home), "the home is inside the kit.", hint))
    if problems:
        raise VitrailError("no request was written", problems)
    private_folder(kit)
    private_folder(home)
    key = own_key(kit / "key.pem")
    write_atomically(kit / "home.txt", f"{home}\n", private=True)
    retained = (*INVITATION, SIGNATURE, *(k for k in pseudonym.OPTIONAL if k in paper))
    write_atomically(kit / "invitation.json", to_text({k: paper[k] for k in retained}), private=True)
    if chosen:
        write_atomically(kit / pseudonym.CHOSEN, f"{chosen}\n", private=True)
    own = load_kit(kit)
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509_name(own.identity)).sign(key, hashes.SHA256())
    answer: dict[str, Any] = {
        "format": PAPER_FORMAT, "site": site, "identity": own.identity,
        "csr": csr.public_bytes(Encoding.PEM).decode(), "study": own.study.name, "authority": authority,
    }  # fmt: skip
    if chosen:
        proof = pseudonym.proof_of(paper[pseudonym.TICKET], authority, site, answer["csr"])
        answer |= {"invitation": paper["site"], "proof": proof}
    if own.study.parties:
        answer["card"] = party_keys.make_card(kit, site, authority)
    file = kit.parent / f"{name}.request"
    write_atomically(file, to_text(answer), private=True)
    return EnrolmentRequest(kit, file, fingerprint_key(key.public_key()), authority)


def accept(kit: Path, approval: Path) -> Kit:
    """Put the certificate into the kit, if it is for this kit's own key and from the authority that invited."""
    own, approval = load_kit(kit), Path(approval)
    paper = read_paper(approval, APPROVAL, "an approval", "Ask the coordinator to send it again.")
    if paper["site"] != own.site:
        what = f"it is for {paper['site']!r}, but this kit belongs to {own.site!r}."
        problem = Problem(str(approval), what, "Use the approval for this site.")
        raise VitrailError("the approval was not accepted", [problem])
    check_certificate(own, paper["certificate"], approval, "the approval was not accepted")
    if own.study.parties:
        given = party_keys.read_cards(paper.get("cards"), own.study.parties, own.authority, approval)
        party_keys.check_own(given[own.site], own.folder, approval)
        write_atomically(own.folder / party_keys.CARDS, to_text(given), private=True)
    else:
        participants = read_participants(paper, own.site, own.fingerprint, str(approval))
        pseudonym.check_listed(own.invitation, own.site, participants.roster.pseudonyms, str(approval))
        write_atomically(own.folder / FILE, to_text(participants.plain()), private=True)
    write_atomically(own.folder / "certificate.pem", paper["certificate"], private=True)
    return load_kit(kit)


def check_certificate(own: Kit, pem: str, where: Path, title: str) -> None:
    """It must be from the authority that invited, for this kit's own key, and valid today."""
    signed, now = read_certificate(pem, where), datetime.datetime.now(datetime.UTC)
    what = hint = ""
    if not is_issued(signed, own.authority):
        what = "the authority of this kit's invitation did not sign it."
        hint = f"Compare the authority's fingerprint by phone: it is {own.authority_fingerprint}."
    elif fingerprint_key(signed.public_key()) != own.fingerprint or signed.subject != x509_name(own.identity, "site"):
        what = "it is for a different key than the key of this kit."
        hint = f"Send the request of {own.folder} to the coordinator again."
    elif not signed.not_valid_before_utc <= now <= signed.not_valid_after_utc:
        what = f"it is valid from {signed.not_valid_before_utc:%Y-%m-%d} to {signed.not_valid_after_utc:%Y-%m-%d}"
        what, hint = f"{what}; today is {now:%Y-%m-%d}.", "Check this machine's clock, or ask for a new approval."
    if what:
        raise VitrailError(title, [Problem(str(where), what, hint)])


def load_kit(kit: Path) -> Kit:
    kit = Path(kit).absolute()
    file = kit / "invitation.json"
    paper = read_paper(file, INVITATION, "a site's kit", "Make one with `vitrail request INVITATION`.")
    read_authority(paper["authority"], file)
    study, home = study_of(paper, file), kit / "home.txt"
    for path in (home, *([] if (kit / LEFT).exists() else [kit / "key.pem"])):
        if not path.exists():
            hint = "Restore it from a copy, or make a new kit with `vitrail request`."
            raise VitrailError("the kit is incomplete", [Problem(str(path), "the file is missing.", hint)])
    where, approved = Path(home.read_text(encoding="utf-8").rstrip("\n")), (kit / "certificate.pem").exists()
    site, identity, sites = paper["site"], paper["identity"], paper["sites"]
    if chosen := _chosen(kit):
        sites = [chosen if name == site else name for name in sites]
        site, identity = chosen, identity_of(chosen)
    given = identity, study, paper["seed"], sites, paper["address"], where, approved, paper
    return Kit(kit, site, *given, load_participants(kit))


def _chosen(kit: Path) -> str:
    """The name that a site chose for itself; "" where the coordinator wrote it."""
    place = kit / pseudonym.CHOSEN
    return place.read_text(encoding="utf-8").rstrip("\n") if place.exists() else ""
