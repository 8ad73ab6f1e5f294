"""`vitrail verify`: is a run folder, or a site's outbox, as it was written, and who signed that?"""

from __future__ import annotations

import json
import re
from pathlib import Path

from cryptography import x509

from vitrail.core.errors import Problem, VitrailError, printable
from vitrail.core.text import several
from vitrail.deploy.audit.notices import COMPARED, DIFFER
from vitrail.deploy.audit.outbox import LOG as OUTBOX_LOG
from vitrail.deploy.identity.certificates import (
    COORDINATOR,
    fingerprint_key,
    is_issued,
    is_signed,
    read_authority,
    read_certificate,
    x509_name,
)
from vitrail.deploy.identity.signing import CERTIFICATE, OUTBOX, SIGNED, signed_text, signs_run
from vitrail.runs.integrity import FILES, SIGNATURE, Verification, digests_in, verify_folder
from vitrail.storage.atomic_files import PART
from vitrail.storage.hash_chain import Link, digest_of_file, read_chain
from vitrail.storage.untrusted_files import LONGEST_TEXT, read_text

DEPLOYED = "deployed.json"  # in the folder of every run between machines


def verify(place: Path, authority: Path | None = None) -> Verification:
    """A run folder; or a site's kit, home or outbox. `authority`: its certificate, or an invitation that holds it."""
    issuer = None if authority is None else _authority(authority)
    if (place / "invitation.json").exists():
        from vitrail.deploy.identity.enrolment import load_kit

        kit = load_kit(place)
        return verify_outbox(kit.home / "outbox", issuer or kit.authority)
    for folder in (place, place / "outbox"):
        if (folder / OUTBOX_LOG).exists():
            return verify_outbox(folder, issuer)
    return verify_run(place, issuer)


def verify_run(path: Path, authority: x509.Certificate | None = None) -> Verification:
    state = verify_folder(path)
    wrong, notes = list(state.wrong), list(state.notes)
    beside = path.resolve().parent.parent / "authority" / "cert.pem"  # where the coordinator keeps its runs
    if authority is None and beside.exists():
        authority = _authority(beside)
    closed = not notes
    if (path / SIGNATURE).exists():
        problems, remarks = _signature(path, state.links, authority)
        wrong += problems
        notes += remarks
    elif (path / DEPLOYED).exists() and closed:
        wrong.append(Problem(SIGNATURE, "the signature is missing, although runs between machines are signed."))
    elif closed:
        notes.append(
            "The run is not signed, because it ran on one machine. Anyone who can write to the folder can "
            "also rewrite every hash. Only a note of the last hash, made earlier, would reveal that."
        )
    return Verification(wrong, notes, state.links, state.files)


def _signature(path: Path, links: list[Link], authority: x509.Certificate | None) -> tuple[list[Problem], list[str]]:
    where = path / SIGNATURE
    try:
        statement = json.loads(read_text(where))
        issuer = read_authority(statement["authority"], where)
        certificate = read_certificate(statement["certificate"], where)
        line, mark = int(statement["line"]), str(statement["mark"])
        good = signs_run(certificate, statement)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, VitrailError):
        return [Problem(SIGNATURE, "the signature is damaged, or not one of Vitrail's.")], []
    wrong = []
    if not good:
        wrong.append(Problem(SIGNATURE, "the signature does not match the statement that it claims to sign."))
    if not is_issued(certificate, issuer) or certificate.subject != x509_name(COORDINATOR, COORDINATOR):
        wrong.append(Problem(SIGNATURE, "the certificate is not that of the coordinator."))
    if authority is not None and fingerprint_key(authority.public_key()) != fingerprint_key(issuer.public_key()):
        wrong.append(
            Problem(SIGNATURE, "the signature is from the coordinator of another study, which has another authority.")
        )
    if not any(link.number == line and link.digest == mark for link in links):
        what = f"line {line} of the log is not the one that was signed: the line was changed, or the log was cut off."
        wrong.append(Problem(SIGNATURE, what))
        return wrong, []
    then, today = digests_in(links[:line]), digests_in(links)
    late = [name for name in today if then.get(name) != today[name] and any(FILES in x.entry for x in links[line:])]
    wrong += [Problem(name, "the file was written after the run was signed.") for name in late]
    if wrong:
        return wrong, []
    who = f"Signed by the study's coordinator on {str(statement.get('time'))[:19]}"
    if authority is None:
        mark = fingerprint_key(issuer.public_key())
        return [], [
            f"{who}, provided that the authority's fingerprint is {mark}: compare it by phone, or give --authority."
        ]
    return [], [f"{who}, whose certificate is from this study's authority."]


def verify_outbox(folder: Path, authority: x509.Certificate | None = None) -> Verification:
    """Whether each message that left is there as it left, each line of the log in its place and signed by the site."""
    try:
        text = (folder / OUTBOX_LOG).read_bytes()
    except OSError:
        what = "no message has been sent yet, or the log was removed."
        raise VitrailError("there is nothing to verify", [Problem(str(folder / OUTBOX_LOG), what)]) from None
    links, broken = read_chain(text)
    wrong = [Problem(f"{OUTBOX_LOG}, line {n}", f"{what}.") for n, what in broken.items()]
    problems, notes = _signed_lines(folder, links, authority)
    wrong += problems + [Problem(f"{OUTBOX_LOG}, line {x.number}", text) for x, text in _noted(links, DIFFER)]
    notes += [text for _, text in _noted(links, COMPARED)]
    left = {x.entry["number"]: x for x in links if isinstance(x.entry.get("number"), int)}
    last, well = max(left, default=0), 0
    if lost := sorted(set(range(1, last + 1)) - left.keys()):
        many = f"message {lost[0]}" if len(lost) == 1 else f"messages {lost[0]} to {lost[-1]}"
        wrong.append(Problem(OUTBOX_LOG, f"the lines for {many} are missing."))
    oldest = left[last].entry.get("oldest") or 1 if left else 1
    for number, link in sorted(left.items()):
        file = folder / f"{number:06d}.safetensors"
        if file.is_file() and digest_of_file(file) != link.entry.get("sha256"):
            wrong.append(Problem(file.name, "this file is not what was sent: it was changed."))
        elif not file.is_file() and number >= oldest:
            wrong.append(Problem(file.name, "the file is missing."))
        well += file.is_file()
    if oldest > 1:
        notes.append(f"For messages 1 to {oldest - 1} only the hash was stored (join --keep).")
    expected = {OUTBOX_LOG, CERTIFICATE, *(f"{n:06d}.safetensors" for n in left)}
    for file in sorted(f for f in folder.iterdir() if f.name not in expected):
        if file.name.removesuffix(PART) == f"{last + 1:06d}.safetensors":
            notes.append(f"{file.name} is incomplete because the site was stopped; it was not sent.")
        else:
            wrong.append(Problem(file.name, "this file was added: the log has no line for it."))
    if len(text) > text.rfind(b"\n") + 1:
        notes.append("The last line is incomplete because the site was stopped; its message was not sent.")
    notes.append("If somebody noted the last hash, compare it: only it shows whether lines were removed at the end.")
    return Verification(wrong, notes, links, well)


def _noted(links: list[Link], kind: str) -> list[tuple[Link, str]]:
    """What the site was told of the models that others scored, in lines of that kind."""
    noted = [
        (x, x.entry["words"]) for x in links if x.entry.get("kind") == kind and isinstance(x.entry.get("words"), dict)
    ]
    return [(x, printable(str(words.get("text", "")))) for x, words in noted]


def _signed_lines(
    folder: Path, links: list[Link], authority: x509.Certificate | None
) -> tuple[list[Problem], list[str]]:
    out = [x for x in links if x.entry.get("direction") == "out"]
    if not (folder / CERTIFICATE).exists():
        if not any(SIGNED in x.entry for x in out):
            return [
                Problem(OUTBOX_LOG, "no line is signed: an earlier release wrote this log, or somebody rewrote it.")
            ], []
        return [Problem(CERTIFICATE, "the certificate is missing, so signatures cannot be checked.")], []
    certificate = read_certificate((folder / CERTIFICATE).read_text(encoding="utf-8"), folder / CERTIFICATE)
    name = certificate.subject.rfc4514_string()
    who = re.sub(r"[^ -~]", "?", name)
    bad = [
        x.number
        for x in out
        if not is_signed(certificate, OUTBOX, signed_text(x.entry, str(x.entry.get("before", ""))), x.entry.get(SIGNED))
    ]
    wrong = []
    if bad:
        lines = several(len(bad), "line")
        what = f"{lines} about sent messages lack the site's signature, the first of them line {bad[0]}."
        wrong.append(Problem(OUTBOX_LOG, what))
    if authority is not None and not is_issued(certificate, authority):
        wrong.append(Problem(CERTIFICATE, "this study's authority did not issue this certificate."))
    if wrong:
        return wrong, []
    mark = fingerprint_key(certificate.public_key())
    sure = (
        "whose certificate was issued by this study's authority"
        if authority is not None
        else "compare the key by phone"
    )
    return [], [f"Signed by {who}, key {mark}: {sure}."]


def _authority(file: Path) -> x509.Certificate:
    try:
        text = read_text(file, LONGEST_TEXT)
        pem = json.loads(text)["authority"] if text.lstrip().startswith("{") else text
        if not isinstance(pem, str):
            raise ValueError
    except (OSError, ValueError, KeyError, RecursionError) as error:
        what = (
            f"cannot read it as a certificate or an invitation: {getattr(error, 'strerror', None) or 'it is neither'}."
        )
        raise VitrailError("the authority cannot be read", [Problem(str(file), what)]) from None
    return read_authority(pem, file)
