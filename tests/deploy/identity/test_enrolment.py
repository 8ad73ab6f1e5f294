"""Enrolment: keys stay where they were made, and only the right site gets a certificate. What is refused:
test_enrolment_refused.py."""

from __future__ import annotations

import base64
import datetime
import json
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store
from typer.testing import CliRunner

from tests.support.deploy.enrolment import SITES, ask, certificate, enrolled, named, numbers_of, refused
from vitrail.cli import coordinator, site
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import find_coordinator, invitation_of, only_coordinator
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.transport.flare import workspace as kits
from vitrail.deploy.transport.ipc import SCHEME
from vitrail.study.model import Study


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(packaged("heart_disease.toml"), tmp_path / "heart.toml")
    return tmp_path


@pytest.fixture
def folder(place: Path) -> Path:
    return enrolment.invite(place / "heart.toml", SITES, "127.0.0.1:18002")


def test_an_identity_is_plain_and_no_other_sites() -> None:
    names = ["Basel", "basel", "Bâsel", "Basel ", "日本", "", "a" * 300, "coordinator", "lead@coordinator"]
    found = [enrolment.identity_of(n) for n in names]
    assert len(set(found)) == len(names)
    for one in found:
        assert len(one) <= 64
        assert set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert one not in (enrolment.COORDINATOR, enrolment.LEAD)


def test_a_site_is_enrolled(folder: Path, place: Path) -> None:
    made = ask(folder, SITES[1], place / "site")
    assert not enrolment.load_kit(made.kit).approved
    asked = enrolment.read_request(folder, made.file)
    assert not enrolment.load_coordinator(folder).sites[SITES[1]]["approved"], "looking approves nothing"
    approval = enrolment.approve(folder, made.file)
    kit = enrolment.accept(made.kit, approval.file)
    assert made.fingerprint == asked.fingerprint == approval.fingerprint == kit.fingerprint
    assert len(made.fingerprint.split()) == 8
    assert all(len(part) == 4 for part in made.fingerprint.split())

    who = enrolment.load_coordinator(folder)
    entry = {"identity": kit.identity, "fingerprint": kit.fingerprint, "approved": True, "removed": False}
    assert who.sites[SITES[1]] == entry | {"certificate": (kit.folder / "certificate.pem").read_text()}
    assert not who.sites[SITES[0]]["approved"]
    assert (who.host, who.port, who.seed) == ("127.0.0.1", 18002, who.study.seeds[0])
    assert made.authority_fingerprint == who.authority_fingerprint == kit.authority_fingerprint
    assert made.authority_fingerprint != made.fingerprint
    assert kit.study == who.study == Study.load(place / "heart.toml")
    assert (kit.site, kit.sites, kit.seed, kit.address) == (SITES[1], SITES, who.seed, who.address)
    assert kit.invitation["agreement"] == Agreement.of(who.study, who.seed, len(SITES)).hash, "before there are keys"
    assert kit.participants == ({SITES[1]: kit.fingerprint}, [SITES[0]])

    signed = certificate(kit.folder / "certificate.pem")
    signed.verify_directly_issued_by(certificate(folder / "authority" / "cert.pem"))
    key = load_pem_private_key((kit.folder / "key.pem").read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    assert key.key_size == 2048
    assert signed.public_key() == key.public_key()
    assert named(signed, NameOID.COMMON_NAME) == [kit.identity]
    assert not named(signed, NameOID.UNSTRUCTURED_NAME), "a site has no role"


def test_certificates_say_who_may_do_what(folder: Path, place: Path) -> None:
    kit = enrolled(folder, "Basel", place / "site")
    root = certificate(folder / "authority" / "cert.pem")
    server, lead = certificate(folder / "keys" / "coordinator.crt"), certificate(folder / "keys" / "lead.crt")
    site = certificate(kit / "certificate.pem")
    assert named(server, NameOID.COMMON_NAME) == ["coordinator"]
    assert named(lead, NameOID.COMMON_NAME) == ["lead@coordinator"]
    assert named(lead, NameOID.UNSTRUCTURED_NAME) == ["lead"]
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert "127.0.0.1" in [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]

    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    for cert, years in ((root, 10), (server, 3), (lead, 3), (site, 3)):
        assert now - 2 * day < cert.not_valid_before_utc <= now - day
        assert abs(cert.not_valid_after_utc - now - years * 365 * day) < day
        signs = cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert signs == (cert is root)
    for cert, serves in ((server, True), (lead, False), (site, False)):
        uses = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (ExtendedKeyUsageOID.SERVER_AUTH in uses) == serves
        PolicyBuilder().store(Store([root])).build_client_verifier().verify(cert, [])


def test_nothing_private_travels(folder: Path, place: Path) -> None:
    made = ask(folder, "Basel", place / "site")
    approval = enrolment.approve(folder, made.file)
    kit = enrolment.accept(made.kit, approval.file)
    private = [kit.folder / "key.pem", folder / "authority" / "key.pem", *folder.glob("keys/*.key")]
    assert len(private) == 4
    secrets = []
    for path in private:
        key = load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        numbers = key.private_numbers()
        secrets += [n.to_bytes((n.bit_length() + 7) // 8) for n in (numbers.p, numbers.q, numbers.d)]
    modulus = numbers_of(kit.folder / "key.pem").n.to_bytes(256)
    for sent in (invitation_of(folder, "Basel"), made.file, approval.file):
        text = sent.read_text()
        assert "PRIVATE" not in text
        assert str(place) not in text, "no path either"
        blocks = re.findall(r"-----BEGIN [A-Z ]+-----([^-]+)-----END", text.replace("\\n", ""))
        raw = b"".join(base64.b64decode(block) for block in blocks)
        assert not any(secret in raw for secret in secrets)
        assert (modulus in raw) == (sent != invitation_of(folder, "Basel")), "the search finds what is there"
    assert "PRIVATE" in private[0].read_text()
    for path in place.rglob("site/*.kit/**/*"):
        assert path == kit.folder / "key.pem" or path.is_dir() or "PRIVATE" not in path.read_text()


def test_files_are_the_owners_only(folder: Path, place: Path) -> None:
    (place / "site").mkdir(mode=0o755)
    kit = enrolment.load_kit(enrolled(folder, "Basel", place / "site"))
    kits.build_coordinator(folder)
    kits.build_site(kit.folder)
    for top in (folder, kit.folder, kit.home):
        for path in (top, *top.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((place / "site").stat().st_mode) == 0o755, "a folder that is not ours is left alone"


def test_the_home_lies_outside_the_kit(folder: Path, place: Path) -> None:
    invitation, kit = invitation_of(folder, "Basel"), place / "my.kit"
    refused("inside the kit", enrolment.request, invitation, kit, kit / "home")
    assert not kit.exists()
    enrolment.request(invitation, kit, place / "mine")
    assert enrolment.load_kit(kit).home == place / "mine"
    refused("this kit already has the home", enrolment.request, invitation, kit, place / "other")


def test_inviting_again_keeps_authority_and_approvals(folder: Path, place: Path) -> None:
    kit = enrolled(folder, "Basel", place / "site")
    before, root = enrolment.load_coordinator(folder), (folder / "authority" / "cert.pem").read_bytes()
    old = (kit / "key.pem").read_bytes(), (kit / "certificate.pem").read_bytes()
    assert enrolment.invite(place / "heart.toml", ["Genf", "Basel"], "study.example.org:8002") == folder
    after = enrolment.load_coordinator(folder)
    assert (folder / "authority" / "cert.pem").read_bytes() == root
    assert list(after.sites) == [*SITES, "Genf"]
    assert {n: after.sites[n] for n in SITES} == before.sites
    assert (after.address, after.seed) == ("study.example.org:8002", before.seed)
    names = certificate(folder / "keys" / "coordinator.crt").extensions
    dns = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert {"study.example.org", "localhost"} <= set(dns)

    again = enrolment.request(invitation_of(folder, "Basel"), kit)
    own = enrolment.load_kit(kit)
    assert own.approved
    assert (own.address, own.sites) == (after.address, list(after.sites))
    assert old == ((kit / "key.pem").read_bytes(), (kit / "certificate.pem").read_bytes())
    assert again.fingerprint == after.sites["Basel"]["fingerprint"]
    assert enrolment.approve(folder, again.file).fingerprint == again.fingerprint, "the same key may be signed anew"
    enrolment.invite(place / "heart.toml", [], "", seed=5)
    assert enrolment.load_coordinator(folder).address == after.address
    assert enrolment.load_coordinator(folder).seed == 5


@pytest.mark.parametrize(
    "address", ["host", "host:", ":8002", "host:0", "host:70000", "host:x", "https://host:80", "[::1]:80", "::1:80",
                "0.0.0.0:80", "ho st:80", "-host:80", "host..org:80", ""],
)  # fmt: skip
def test_an_address_that_no_site_can_call(place: Path, address: str) -> None:
    refused("--address", enrolment.invite, place / "heart.toml", SITES, address)
    assert not (place / "heart.coordinator").exists()


def test_names_that_clash(folder: Path, place: Path) -> None:
    def invite(*sites: str, seed: int | None = None) -> Path:
        return enrolment.invite(place / "heart.toml", sites, "", seed)

    before = (folder / "coordinator.json").read_bytes()
    refused("look alike", invite, "BASEL")
    refused("look alike", invite, "Genf", "Genf")
    error = refused("cannot be a site's name", invite, "", "a\nb", "é" * 100, "genf", "Genf")
    assert len(error.problems) == 4, "all at once"
    refused("--seed", lambda: invite("Genf", seed=-1))
    assert (folder / "coordinator.json").read_bytes() == before
    shutil.rmtree(folder)
    refused("no site is named", enrolment.invite, place / "heart.toml", [], "localhost:1")


def test_a_study_that_changed_since(folder: Path, place: Path) -> None:
    file = place / "heart.toml"
    assert find_coordinator(file) == find_coordinator(folder) == folder
    assert only_coordinator(place) == folder
    study = Study.load(file)
    study.with_changes(training={"rounds": study.training.rounds + 1}).save(file)
    refused("has changed since", find_coordinator, file)
    enrolment.invite(file, [], "")
    assert enrolment.load_coordinator(find_coordinator(file)).study.training.rounds == study.training.rounds + 1
    study.with_changes(name="another").save(file)
    refused("belongs to the study", enrolment.invite, file, [], "")
    refused("coordinator's folder", find_coordinator, place / "none.toml")
    refused("got 0", only_coordinator, place / "nowhere")


def test_rows_of_all_in_one_place_is_no_deployed_study(place: Path) -> None:
    Study.load(place / "heart.toml").with_changes(method={"name": "centralized"}).save(place / "heart.toml")
    refused(
        "would move every site's rows out of the hospital",
        enrolment.invite,
        place / "heart.toml",
        SITES,
        "localhost:80",
    )
    assert not (place / "heart.coordinator").exists()


def test_flares_files_hold_what_the_site_wants(folder: Path, place: Path) -> None:
    kit = enrolled(folder, "Basel", place / "site")
    (kit / "flare" / "local").mkdir(parents=True)
    (kit / "flare" / "local" / "sneaked.json").write_text("{}")
    kits.build_site(kit)
    kits.build_coordinator(folder)

    def read(path: Path) -> Any:
        return json.loads(path.read_text())

    local, own = kit / "flare" / "local", enrolment.load_kit(kit)
    assert {p.name for p in local.iterdir()} == {
        f"{n}.json" for n in ("resources", "authorization", "privacy", "log_config", "comm_config")
    }
    for workspace in (kit / "flare", folder / "flare" / "coordinator"):  # no port for FLARE's own processes
        line = read(workspace / "local" / "comm_config.json")
        assert line["internal"]["scheme"] == SCHEME
        assert line["allow_adhoc_conns"] is False
        assert Path(line["comm_driver_path"]) == workspace / "drivers"
        assert "PrivateLine" in (workspace / "drivers" / "vitrail_line.py").read_text()
    resources = read(local / "resources.json")
    assert resources["class_allow_list"] == ["vitrail.deploy.transport.flare.components.SiteRelay"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    assert not any("log" in c["id"] or "Log" in c["path"] for c in resources["components"])
    permissions = read(local / "authorization.json")["permissions"]
    assert list(permissions) == ["lead"]
    for right in ("byoc", "shell_commands", "operate", "download_job"):
        assert permissions["lead"][right] == "none"
    (scope,) = read(local / "privacy.json")["scopes"]
    assert [f["path"] for f in scope["task_result_filters"]] == ["vitrail.deploy.transport.flare.components.Outgoing"]
    assert read(local / "privacy.json")["default_scope"] == scope["name"]

    client = read(kit / "flare" / "startup" / "fed_client.json")
    (server,) = read(folder / "flare" / "coordinator" / "startup" / "fed_server.json")["servers"]
    admin = read(folder / "flare" / "lead" / "startup" / "fed_admin.json")["admin"]
    assert client["servers"][0]["name"] == server["name"] == admin["project_name"]
    assert server["name"] == "vitrail-" + own.authority_fingerprint.replace(" ", "")[:12]
    assert client["servers"][0]["service"]["target"] == server["service"]["target"] == own.address
    assert client["client"]["fqsn"] == own.identity
    assert client["servers"][0]["identity"] == admin["server_identity"] == "coordinator"
    startup = kit / "flare" / "startup"
    pair = certificate(startup / "client.crt"), load_pem_private_key((startup / "client.key").read_bytes(), None)
    assert pair[0].public_key() == pair[1].public_key()
    text = (folder / "flare" / "coordinator" / "local" / "resources.json").read_text()
    assert json.loads(text)["class_allow_list"] == ["vitrail.deploy.transport.flare.components.Relay"]
    assert str(folder / "flare" / "store") in text
    assert "/tmp/nvflare" not in text
    assert "log_receiver" not in text


def test_the_verbs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    app = typer.Typer()
    for function in (coordinator.invite, site.request, coordinator.approve, coordinator.remove):
        app.command()(function)

    def run(*words: str, answer: str = "", code: int = 0) -> str:
        result = CliRunner().invoke(app, words, input=answer)
        assert result.exit_code == code, result.output
        return result.output

    told = run("invite", "heart.toml", "--site", "Basel", "--site", "Genf", "--address", "localhost:18002")
    folder = place / "heart.coordinator"
    root = enrolment.load_coordinator(folder).authority_fingerprint
    assert root in told
    shutil.copy(invitation_of(folder, "Basel"), "got.invitation")
    told = run("request", "got.invitation")
    own = enrolment.load_kit(place / "Basel.kit")
    assert root in told
    assert own.fingerprint in told
    told = run("approve", "Basel.request", answer="n\n", code=1)
    assert own.fingerprint in told
    assert not enrolment.load_coordinator(folder).sites["Basel"]["approved"]
    run("approve", "Basel.request", answer="y\n")
    assert enrolment.load_coordinator(folder).sites["Basel"]["approved"]
    run("approve", "Basel.request", "--yes", "--study", "heart.toml")
    run("remove", "Basel", answer="n\n", code=1)
    assert not enrolment.load_coordinator(folder).sites["Basel"]["removed"]
    run("remove", "Basel", "--yes")
    assert enrolment.load_coordinator(folder).sites["Basel"]["removed"]
