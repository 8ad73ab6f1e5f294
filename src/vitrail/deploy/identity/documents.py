"""What travels between a coordinator and a site before a study, and what each keeps of it: files that are read as if
somebody had changed them on the way."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.vertical.agreement import agreed_hash
from vitrail.runs.folder import site_folder
from vitrail.storage.untrusted_files import LONGEST_TEXT, read_text
from vitrail.study.limits import text_problem
from vitrail.study.model import Study

PAPER_FORMAT = 1  # of every file here
METHOD = "method"  # in an invitation's versions: package and version that bring the method, where it is none of ours
LONGEST = 200  # characters of a file name
MOST_SITES = 10_000  # of a study

INVITATION = {
    "format": int, "study": str, "seed": int, "sites": list, "site": str, "identity": str, "address": str,
    "authority": str, "agreement": str, "versions": dict,
}  # fmt: skip
REQUEST = {"format": int, "site": str, "identity": str, "csr": str, "study": str, "authority": str}
APPROVAL = {"format": int, "site": str, "certificate": str, "authority": str}
BOOK = {"format": int, "study": str, "address": str, "seed": int, "sites": dict}


@dataclass(frozen=True)
class EnrolmentRequest:
    kit: Path
    file: Path
    fingerprint: str
    authority_fingerprint: str


@dataclass(frozen=True)
class Approval:
    file: Path
    site: str
    fingerprint: str


@dataclass(frozen=True)
class PendingRequest:
    """A request that may be approved, if the fingerprint is the site's."""

    site: str
    identity: str
    fingerprint: str
    key: rsa.RSAPublicKey
    card: dict[str, str] | None = None  # of a party
    place: str = ""  # the open invitation that it answers, where it has a name of its own choice


def identity_of(name: str) -> str:
    """A site's name in certificates: letters any machine can write, and no two sites the same.

    >>> identity_of("Hôpital St. Mary")
    'hopital-st-mary-ca9a58'
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-") or "site"
    return f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def to_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_paper(path: Path, keys: Mapping[str, type], kind: str, hint: str) -> dict[str, Any]:
    """One of our files, with everything it must hold and of these types."""
    problem = ""
    paper: Any = None
    try:
        paper = json.loads(read_text(path, LONGEST_TEXT))
    except OSError as error:
        problem = f"{error.strerror}".lower()
    except (ValueError, RecursionError):
        problem = "it is not a Vitrail file of the expected kind"
    if not problem and (not isinstance(paper, dict) or "format" not in paper):
        problem = "it is not a Vitrail file of the expected kind"
    elif not problem and paper["format"] != PAPER_FORMAT:
        problem = f"it has format {paper['format']!r}, but this version of Vitrail reads format {PAPER_FORMAT}"
        hint = "Use the same version of Vitrail on both machines."
    elif not problem:
        wrong = [k for k, kind_ in keys.items() if type(paper.get(k)) is not kind_]
        problem = f"fields are missing or of the wrong type: {', '.join(wrong)}" if wrong else ""
    if problem:
        raise VitrailError(f"cannot read {kind}", [Problem(str(path), f"expected {kind}, but {problem}.", hint)])
    return dict(paper)


def study_of(invitation: Mapping[str, Any], where: Path) -> Study:
    names = invitation["sites"]
    if len(names) > MOST_SITES or not 0 <= invitation["seed"] < 2**63 or list(name_problems([invitation["site"]], {})):
        what = f"expected at most {MOST_SITES} sites, a seed below 2^63 and a short name of this site."
        raise VitrailError(
            "cannot read an invitation", [Problem(str(where), what, "Ask the coordinator for another invitation.")]
        )
    if (
        not all(isinstance(n, str) for n in names)
        or invitation["site"] not in names
        or identity_of(invitation["site"]) != invitation["identity"]
    ):
        what, hint = (
            "it is addressed to a site that is not in its list of sites.",
            "Ask the coordinator to send it again.",
        )
        raise VitrailError("cannot read an invitation", [Problem(str(where), what, hint)])
    if problems := list(address_problems(invitation["address"], str(where))):
        raise VitrailError("cannot read an invitation", problems)
    try:
        if why := text_problem(invitation["study"]):
            raise ValueError(why)
        content = tomllib.loads(invitation["study"])
        if foreign := _foreign_method(content, invitation, where):
            raise VitrailError("the study's method is not installed here", [foreign])
        return Study.parse(content, f"the study in {where}")
    except (ValueError, RecursionError) as error:
        what, hint = f"its study cannot be read as TOML: {error}.", "Ask the coordinator to send it again."
        raise VitrailError("cannot read an invitation", [Problem(str(where), what, hint)]) from None


def _foreign_method(content: Mapping[str, Any], invitation: Mapping[str, Any], where: Path) -> Problem | None:
    """Where another package brings the method, which one, if this site has none or another version of it."""
    method = content.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    theirs, here = invitation["versions"].get(METHOD), methods.origin(str(name))
    ours = " ".join(here) if here else ""
    if not isinstance(theirs, str) or theirs == ours:
        return None
    what = f"the method {name!r} needs the package {theirs}, but this machine has {ours or 'none that provides it'}."
    return Problem(str(where), what, "Install that version here if your institution trusts it, and try again.")


def check_agreement(invitation: Mapping[str, Any], where: Path) -> None:
    """What an invitation says is worked out here, not believed."""
    agreed = agreed_hash(study_of(invitation, where), invitation["seed"], len(invitation["sites"]))
    if agreed != invitation["agreement"]:
        what = f"its study leads to the agreement {agreed}, but the invitation names {invitation['agreement']}."
        hint = "Use the same version of Vitrail on both machines, or ask for a new invitation."
        raise VitrailError("the invitation contradicts itself", [Problem(str(where), what, hint)])


def name_problems(sites: Iterable[str], enrolled: Mapping[str, Mapping[str, Any]]) -> Iterable[Problem]:
    folded = {name.casefold(): name for name in enrolled}
    for name in (given.strip() for given in sites):
        if not name or not name.isprintable() or len(site_folder(name)) > LONGEST:
            yield Problem("--site", f"{name!r} cannot be a site's name.", "Use a short name of visible characters.")
            continue
        if name in enrolled and enrolled[name]["removed"]:
            what = f"{name!r} was removed from the study for good."
            yield Problem("--site", what, "To readmit the site, invite it under another name.")
        if (other := folded.get(name.casefold())) is not None and (other != name or name not in enrolled):
            yield Problem("--site", f"{name!r} and {other!r} look alike.", "Give them names that differ visibly.")
        if any(entry["identity"] == identity_of(name) and n != name for n, entry in enrolled.items()):
            yield Problem("--site", f"{name!r} has the same short name as another site.", "Change the name slightly.")
        folded.setdefault(name.casefold(), name)


def address_problems(address: str, where: str = "--address") -> Iterable[Problem]:
    host, _, port = address.rpartition(":")
    hint = "Write HOST:PORT, an address that the sites can reach, for example study.hospital.org:8002."
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 2**16:
        yield Problem(where, f"{address[:60]!r} has no host or no port from 1 to 65535.", hint)
    elif ":" in host:
        yield Problem(where, f"{address[:60]!r}: FLARE accepts neither such an address nor an IPv6 address.", hint)
    elif host == "0.0.0.0" or not re.fullmatch(
        r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*", host
    ):
        yield Problem(where, f"sites cannot connect to {host[:60]!r}.", hint)
