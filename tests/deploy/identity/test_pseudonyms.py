"""Participants whose name the coordinator alone can resolve, or nobody: no paper, form or message contains it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.deploy.enrolment import change, refused
from tests.support.deploy.federation import Here
from tests.support.deploy.forms import line_of
from tests.support.small import opposed_tables
from vitrail.cli import app
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.consent.form import site_form
from vitrail.deploy.consent.second_server import second_server_form
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of, folder_of, invitation_of
from vitrail.deploy.identity.documents import identity_of
from vitrail.deploy.identity.participants import ParticipantList
from vitrail.deploy.identity.pseudonyms import check_named_only
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.site.process import SiteProcess
from vitrail.deploy.site.site import Site
from vitrail.deploy.transport.flare.workspace import build_coordinator, build_site
from vitrail.engine.resource_usage import StatedPower
from vitrail.report.pages.builder import write_report
from vitrail.runs.folder import Folder
from vitrail.study.model import Study

SECRET, RUN = "Sankt Blasien", "0123456789abcdef"
OTHERS = ("north", "south", "west")
TABLES = opposed_tables(dict.fromkeys((*OTHERS, "own"), 45))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    study = Study.infer({n: TABLES[n] for n in TABLES}, target="sick")
    masked = study.with_changes(training={"rounds": 2}, protect={"sum": "masked"}, network={"hidden": [4]})
    masked.save(tmp_path / "study.toml")
    return tmp_path


def traces(name: str) -> list[bytes]:
    """A name as bytes could hold it: as it is, as JSON and certificates write it, and what stands for it."""
    return [name.encode(), name.lower().encode(), identity_of(name).encode(), name.split()[-1].lower().encode()]


def holds(data: bytes, name: str) -> bool:
    return any(trace in data.lower() or trace in data for trace in traces(name))


def files_of(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]


def invite(place: Path, kind: str) -> tuple[Path, str, str]:
    """The coordinator's folder, the name under which the secret site takes part, and that of its invitation."""
    address = "127.0.0.1:18002"
    if kind == "coordinator":
        return (
            enrolment.invite(place / "study.toml", OTHERS, address, pseudonyms={SECRET: "site-7"}),
            "site-7",
            "site-7",
        )
    if kind == "nobody":
        return enrolment.invite(place / "study.toml", OTHERS, address, unnamed=1), "Falcon", "unnamed 1"
    return enrolment.invite(place / "study.toml", (*OTHERS, SECRET), address), SECRET, SECRET


def enrol(place: Path, kind: str) -> tuple[Path, str, dict[str, enrolment.Kit]]:
    """All have asked and are approved. The secret site works in a folder that has its real name."""
    folder, name, invited = invite(place, kind)
    made = {}
    for site, invitation in {**dict.fromkeys(OTHERS, ""), name: invited}.items():
        where = place / (SECRET if site == name else site)
        where.mkdir()
        chosen = name if kind == "nobody" and site == name else ""
        made[site] = enrolment.request(
            Path(shutil.copy(invitation_of(folder, invitation or site), where)), chosen=chosen
        )
        assert made[site].kit.name == f"{site}.kit"
        enrolment.approve(folder, made[site].file)
    return folder, name, {site: enrolment.accept(one.kit, approval_of(folder, site)) for site, one in made.items()}


class Wire(Here):
    """Sites at their doors, each with its outbox; keeps every byte that a site or the coordinator gets."""

    def __init__(self, kits: dict[str, enrolment.Kit], agreed: Agreement, secret: str) -> None:
        self.doors, self.reached = dict[str, SiteProcess](), dict.fromkeys(kits, b"")
        self.answers = dict.fromkeys(kits, b"")
        for name, kit in kits.items():
            frame, power = TABLES["own" if name == secret else name], StatedPower(8.0, 120.0)
            site = Site(name, frame, agreed, kit.home, True, SiteIdentity.of(kit), power=power)
            self.doors[name] = SiteProcess(kit, site, lambda text: None)
        super().__init__({})

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        answers = {}
        for name, question in questions.items():
            asked = question.pack()
            self.reached[name] += asked
            said = self.doors[name].answer(asked)
            self.answers[name] += said
            answers[name] = unpack(said)
        return Responses(answers, {})

    def present(self) -> set[str]:
        return set(self.doors)


@pytest.mark.parametrize("kind", ["coordinator", "nobody", "own name"])
def test_no_byte_that_others_receive_holds_the_name(place: Path, kind: str) -> None:
    """Papers, messages, form, run folder and page, of a whole masked study with a screening. The same search finds the
    name where the site takes part under it."""
    folder, name, kits = enrol(place, kind)
    who = enrolment.load_coordinator(folder)
    agreed = Agreement.of(who.study, who.seed, who.roster)
    wire, run = Wire(kits, agreed, name), Folder(place / "run", resume=False, about=".lock")
    try:
        done = conduct(SiteRequests(wire, agreed, sorted(kits), RUN, 4, 5.0), run, resume=False)
    finally:
        run.close()
    write_report(done, place / "run" / "report.html")
    build_coordinator(folder)
    for kit in kits.values():
        build_site(kit.folder)
    mine = place / SECRET
    received = {f"to {site}": data for site, data in wire.reached.items() if site != name}
    received |= {f"from {name}": wire.answers[name]}  # a coordinator may pass on what it gets
    received |= {f"form of {site}": site_form(agreed, site, list(agreed.roster), True).text.encode() for site in OTHERS}
    kept = [f for part in (place / "run", *(place / n for n in OTHERS), folder) for f in files_of(part)]
    received |= {str(f.relative_to(place)): f.read_bytes() + f.name.encode() for f in kept if mine not in f.parents}
    if kind == "coordinator":  # which knows the name, and hands these two out to nobody
        book = received.pop("study.coordinator/coordinator.json")
        assert holds(book, SECRET)
    found = sorted(where for where, data in received.items() if holds(data, SECRET))
    assert len(received) > 60
    if kind == "own name":
        assert {f"to {site}" for site in OTHERS} <= set(found), "the control: keys and lists in messages"
        assert {f"from {SECRET}", "run/report.html", "run/entered.json"} <= set(found)
        assert {f"form of {site}" for site in OTHERS} <= set(found)
        assert [f for f in found if f.endswith("north.invitation")], "the control: the papers"
        assert [f for f in found if f.endswith("participants.json")]
    else:
        assert not found
        assert all(holds(wire.reached[site], name) for site in OTHERS), "they know the pseudonym"
        assert f"{name}" in (place / "run" / "report.html").read_text()
        assert done.info["pseudonyms"] == [name]
    assert {n: used["grid"] for n, used in done.info["footprints"].items()} == dict.fromkeys(kits, 120.0)
    page = (place / "run" / "report.html").read_text()
    assert "at 120 g/kWh" in page
    assert ("takes part under a pseudonym" in line_of(re.sub("<.*?>", "", page))) == (kind != "own name")
    assert Outbox(kits[name].home).entries()


def test_everybody_accepts_who_is_a_pseudonym(place: Path) -> None:
    folder, name, kits = enrol(place, "coordinator")
    north = kits["north"]
    assert north.participants.roster.pseudonyms == {"site-7": "coordinator"}
    plain = ParticipantList(dict(north.participants.roster), {})
    hashes = {Agreement.of(north.study, north.seed, r).hash for r in (north.participants.roster, plain)}
    other = ParticipantList(plain, {"site-7": "nobody"})
    assert len(hashes | {Agreement.of(north.study, north.seed, other).hash}) == 3, "it is part of what is accepted"
    approval = Path(shutil.copy(approval_of(folder, "north"), place / "north.approval"))
    for said, why in (({"east": "nobody"}, "who can resolve"), ({"south": "me"}, "who can resolve"), ([], "resolve")):
        refused("list of participants was refused", enrolment.accept, north.folder, change(approval, pseudonyms=said))
        assert why
    # the pseudonymous site itself finds out that the others are told otherwise
    own = Path(shutil.copy(approval_of(folder, name), place / "own.approval"))
    for said in ({}, {"site-7": "nobody"}):
        told = refused(
            "list of participants was refused", enrolment.accept, kits[name].folder, change(own, pseudonyms=said)
        )
        assert "invited under a pseudonym that the coordinator can resolve" in str(told)
    change(approval, pseudonyms={"north": "nobody", "site-7": "coordinator"})
    assert "invited by its own name" in str(refused("refused", enrolment.accept, north.folder, approval))
    told = refused("named participants only", check_named_only, "north", north.participants.roster.pseudonyms)
    assert "site-7 takes part under a pseudonym" in str(told)
    check_named_only("site-7", north.participants.roster.pseudonyms)  # itself


def form_text(site: str, pseudonyms: dict[str, str], sites: int = 4, **protect: Any) -> str:
    names = [*OTHERS, *(f"more-{i}" for i in range(sites - 4)), "site-7"]
    second = ["registry"] if protect.get("sum") == "two servers" else []
    marks = {
        n: " ".join(hashlib.sha256(n.encode()).hexdigest()[i : i + 4] for i in range(0, 32, 4)) for n in names + second
    }
    study = Study.infer(TABLES, target="sick", protect={"sum": "masked", **protect})
    agreed = Agreement.of(study, None, ParticipantList(marks, pseudonyms))
    if site in second:
        return line_of(second_server_form(agreed, site, marks[site]).text)
    return line_of(site_form(agreed, site, list(agreed.roster), True).text)


def test_forms_say_how_many_are_pseudonyms_and_what_that_takes_away() -> None:
    one = form_text("north", {"site-7": "coordinator"})
    assert "1 of the 4 participants takes part under a pseudonym. The coordinator alone knows who site-7 is." in one
    assert "it would need 1 named site more" in one
    assert "site-7 site, a pseudonym" in one
    assert "1 of these 4 names is a pseudonym" in one
    assert "vitrail join --named-only" in one
    two = form_text("north", {"site-7": "nobody", "west": "coordinator"})
    assert "Nobody knows who site-7 is; the coordinator knows a key" in two
    assert "IT WOULD NEED NOBODY ELSE to read the single report" in two, "2 accomplices of 4 sites are enough"
    assert "it would need 2 named sites more" in form_text("north", {"site-7": "nobody", "west": "nobody"}, sites=6)
    assert "(a pseudonym)" in form_text(
        "registry", {"site-7": "nobody"}, sum="two servers", clip=1.0, second="registry"
    )
    own = form_text("site-7", {"site-7": "nobody"})
    assert '"site-7" is a pseudonym of this site. Nobody else knows whose it is' in own
    assert "does not hide: the network address" in own
    assert "You cannot call a pseudonym" not in own
    assert "pseudonym" not in form_text("north", {})


def test_an_open_invitation_enrols_once_who_holds_it(place: Path) -> None:
    folder, _, _ = invite(place, "nobody")
    paper = json.loads(invitation_of(folder, "unnamed 1").read_text())
    assert re.fullmatch(r"[0-9a-f]{64}", paper["ticket"])
    assert "ticket" not in invitation_of(folder, "north").read_text()
    assert paper["ticket"] not in invitation_of(folder, "north").read_text()
    where = place / "away"
    where.mkdir()
    invitation = Path(shutil.copy(invitation_of(folder, "unnamed 1"), where))
    for name, why in (("", "Write --as NAME"), ("north", "taken"), ("NORTH", "look alike"), ("unnamed 2", "taken")):
        assert why in str(refused("no request was written", enrolment.request, invitation, None, None, name))
    made = enrolment.request(invitation, chosen="Falcon")
    assert enrolment.load_kit(made.kit).site == "Falcon"
    assert enrolment.request(invitation, made.kit).fingerprint == made.fingerprint, "again: the same name and key"
    assert "was made for the name" in str(
        refused("no request", enrolment.request, invitation, made.kit, None, "Kestrel")
    )
    # a request whose name or key somebody changed on the way, or that was written without the invitation
    other = json.loads(enrolment.request(invitation, place / "other.kit", place / "o.home", "Falcon").file.read_text())
    for said in ({"site": "Eagle", "identity": identity_of("Eagle")}, {"csr": other["csr"]}, {"proof": "00" * 32}):
        forged = change(Path(shutil.copy(made.file, place / "forged.request")), **said)
        assert "does not prove" in str(refused("request was not approved", enrolment.approve, folder, forged))
    made = enrolment.request(invitation, made.kit)
    done = enrolment.approve(folder, made.file)
    assert done.site == "Falcon"
    assert list(enrolment.load_coordinator(folder).sites) == [*OTHERS, "Falcon"]
    assert not invitation_of(folder, "unnamed 1").exists()
    late = enrolment.request(invitation, place / "late.kit", place / "late.home", "Kestrel")
    assert "was not invited" in str(refused("request was not approved", enrolment.approve, folder, late.file))
    assert enrolment.approve(folder, made.file).fingerprint == done.fingerprint, "the same key, once more"
    # a new address: the invitation has the name now, and the kit takes it
    enrolment.invite(place / "study.toml", [], "127.0.0.1:18003")
    again = enrolment.request(Path(shutil.copy(invitation_of(folder, "Falcon"), where)), made.kit)
    assert enrolment.load_kit(again.kit).address == "127.0.0.1:18003"
    assert again.fingerprint == made.fingerprint


def test_an_invitation_that_was_withdrawn_enrols_nobody(place: Path) -> None:
    folder, _, _ = invite(place, "nobody")
    invitation = Path(shutil.copy(invitation_of(folder, "unnamed 1"), place))
    made = enrolment.request(invitation, chosen="Falcon")
    enrolment.remove(folder, "unnamed 1")
    assert "was withdrawn" in str(refused("request was not approved", enrolment.approve, folder, made.file))


@pytest.mark.parametrize(
    ("sites", "pseudonyms", "unnamed", "why"),
    [
        (["north", "unnamed 3"], {}, 0, "kept for open invitations"),
        (["north"], {}, -1, "expected a number from 0"),
        (["north", SECRET], {SECRET: "site-7"}, 0, "invited under its own name"),
        (["north", f"{SECRET} Nord"], {SECRET: "site-7"}, 0, "which the pseudonym is to hide"),
        (["north"], {SECRET: f"not {SECRET}"}, 0, "which the pseudonym is to hide"),
        (["north"], {"dose": "site-7"}, 0, "the study file: it contains 'dose'"),
        (["north", "site-7"], {SECRET: "SITE-7"}, 0, "look alike"),
    ],
)  # fmt: skip
def test_invitations_that_would_tell_are_refused(
    place: Path, sites: list[str], pseudonyms: dict[str, str], unnamed: int, why: str
) -> None:
    given = place / "study.toml", sites, "127.0.0.1:18002", None, pseudonyms, unnamed
    assert why in str(refused("no invitation was written", enrolment.invite, *given))
    assert not folder_of(place / "study.toml").exists()


def test_a_site_that_was_named_cannot_be_hidden_later(place: Path) -> None:
    enrolment.invite(place / "study.toml", [*OTHERS, SECRET], "127.0.0.1:18002")
    given = place / "study.toml", [], "", None, {SECRET: "site-7"}
    assert "in the papers of the others" in str(refused("no invitation", enrolment.invite, *given))


def test_commands_name_the_pseudonym_and_its_owner_only_to_the_coordinator(place: Path) -> None:
    def do(*words: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == code, done.output
        return " ".join(done.output.split())

    study, many = place / "study.toml", [w for n in OTHERS for w in ("--site", n)]
    hidden = "--pseudonym", f"{SECRET}=site-7", "--unnamed", 1
    invited = do("invite", study, *many, *hidden, "--address", "127.0.0.1:18002")
    assert f"a pseudonym; only this folder says that it is {SECRET}" in invited
    assert "open: whoever has this file enrols once" in invited
    folder = folder_of(study)
    asked = do("request", invitation_of(folder, "site-7"))
    assert "site-7 is a pseudonym. Only the coordinator can say whose it is" in asked
    assert "Nobody can say whose it is" in do("request", invitation_of(folder, "unnamed 1"), "--as", "Falcon")
    request = folder / "invitations" / "Falcon.request"
    assert "it chose this name" in do("approve", request, "--study", study, "--yes")
    do("approve", folder / "invitations" / "site-7.request", "--study", study, "--yes")
    for site in OTHERS:
        do("request", invitation_of(folder, site))
        said = do("approve", folder / "invitations" / f"{site}.request", "--study", study, "--yes")
    assert re.search(r"Falcon [0-9a-f ]{39} \(pseudonym\)", said)
    assert SECRET not in said
