"""The doctor finds what keeps a site from taking part, and says what to do."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.command import vitrail
from tests.support.deploy.federation import Here
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.doctor import at_coordinator, at_site
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of, find_coordinator
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(Path(packaged("heart_disease.toml")).read_text())
    heart_disease()["va"].to_csv(tmp_path / "va.csv", index=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        enrolment.invite(tmp_path / "study.toml", ["va", "cleveland"], f"127.0.0.1:{probe.getsockname()[1]}")
    return tmp_path


def joined(place: Path, whole: bool = True) -> Path:
    folder = find_coordinator(place / "study.toml")
    made = enrolment.request(folder / "invitations" / "va.invitation", place / "va.kit", None)
    other = enrolment.request(folder / "invitations" / "cleveland.invitation", place / "cleveland.kit", None)
    enrolment.approve(folder, made.file)
    if whole:
        enrolment.approve(folder, other.file)
    enrolment.accept(made.kit, approval_of(folder, "va"))
    return made.kit


def wrong(found: list) -> str:
    return "\n".join(f"{f.what} {f.to_do}" for f in found if not f.well)


def test_nobody_listens(place: Path) -> None:
    found = at_site(enrolment.load_kit(joined(place)), place / "va.csv")
    assert "cannot be reached" in wrong(found)
    assert "firewall" in wrong(found)
    assert wrong(found).count("\n") == 0, "all else is fine, warnings in the file too"
    assert any("0 errors" in f.what for f in found)
    assert any("2 participants; the agreement is" in f.what for f in found)


def test_somebody_is_not_approved_yet(place: Path) -> None:
    found = at_site(enrolment.load_kit(joined(place, whole=False)))
    assert "cleveland was invited but not approved yet" in wrong(found)


def test_somebody_else_listens(place: Path) -> None:
    kit = enrolment.load_kit(joined(place))
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print(1, flush=True); "
    code += "c, _ = s.accept(); c.recv(9); c.close()"
    port = kit.address.rpartition(":")[2]
    with subprocess.Popen([sys.executable, "-c", code, port], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        found = at_site(kit)
        other.kill()
    assert "is not this study's coordinator" in wrong(found)


@pytest.mark.parametrize("own", [True, False])
def test_the_coordinators_certificate_is_known_and_no_sites(own: bool, place: Path) -> None:
    """A site's certificate is from the same authority, and is not the coordinator's."""
    kit, folder = enrolment.load_kit(joined(place)), find_coordinator(place / "study.toml")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    keys = (folder / "keys" / "coordinator.crt", folder / "keys" / "coordinator.key")
    context.load_cert_chain(*(keys if own else (kit.folder / "certificate.pem", kit.folder / "key.pem")))
    context.load_verify_locations(folder / "authority" / "cert.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True) as line:
            line.recv(1)

    with socket.create_server(("127.0.0.1", int(kit.address.rpartition(":")[2]))) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        found = at_site(kit)
        thread.join(5)
    told = [f.what for f in found if f.well]
    assert any("It is the coordinator of this study" in what for what in told) == own
    assert any("The coordinator's certificate is valid until" in what for what in told) == own
    assert ("is not this study's coordinator" in wrong(found)) != own


def test_not_approved_and_another_agreement(place: Path) -> None:
    folder = find_coordinator(place / "study.toml")
    made = enrolment.request(folder / "invitations" / "va.invitation", place / "va.kit", None)
    assert "not approved" in wrong(at_site(enrolment.load_kit(made.kit)))
    told = (made.kit / "invitation.json").read_text()
    (made.kit / "invitation.json").write_text(told.replace(json.loads(told)["agreement"], "0" * 24))
    assert "the invitation says 000" in wrong(at_site(enrolment.load_kit(made.kit)))


def test_at_the_coordinator(place: Path) -> None:
    joined(place, whole=False)
    found = at_coordinator(enrolment.load_coordinator(find_coordinator(place / "study.toml")))
    assert "Site cleveland is invited but not approved" in wrong(found)
    assert "va is" not in wrong(found)


def test_exit_code(place: Path) -> None:
    done = vitrail("doctor", joined(place))
    assert done.returncode == 1
    assert "WRONG" in done.stdout
    assert "->" in done.stdout


def test_versions_at_both_ends(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an invitation and a real study wrote down of the other end, against what is here now."""
    kit, who = (
        enrolment.load_kit(joined(place)),
        enrolment.load_coordinator(find_coordinator(place / "study.toml")),
    )
    tables = {n: heart_disease()[n] for n in ("va", "cleveland")}
    agreed = Agreement.of(who.study.with_changes(training={"rounds": 1}), who.seed, len(tables))
    sites = {n: Site(n, table, agreed, place / "homes" / n) for n, table in tables.items()}
    folder = Folder(who.folder / "runs" / "one", resume=False)
    conduct(SiteRequests(Here(sites), agreed, list(sites), "0" * 16, 2, 60.0), folder, resume=False)
    folder.close()
    told = [f.what for f in at_site(kit) + at_coordinator(who)]
    for where in ("the coordinator at the time of the invitation", "va", "cleveland"):
        assert f"Versions at {where}: as here." in told
    monkeypatch.setattr("vitrail.deploy.doctor.versions", lambda: {"vitrail": "9", "torch": "9", "python": "9"})
    assert wrong(at_site(kit)).count("Versions at the coordinator at the time of the invitation: vitrail") == 1
    assert wrong(at_coordinator(who)).count("(here 9)") == 2 * 3


def test_a_certificate_of_another_key_is_seen(place: Path) -> None:
    kit = joined(place)
    assert any(f.well and "Certificate and key match" in f.what for f in at_site(enrolment.load_kit(kit)))
    other = enrolment.load_kit(place / "cleveland.kit")
    enrolment.accept(other.folder, approval_of(find_coordinator(place / "study.toml"), "cleveland"))
    (kit / "certificate.pem").write_bytes((other.folder / "certificate.pem").read_bytes())
    assert "Certificate and key do not match." in wrong(_but_the_line(kit))


def _but_the_line(kit: Path) -> list:
    """A chain that does not fit its key cannot even be loaded for the line to the coordinator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitrail.deploy.doctor._reach", lambda kit, certificate: [])
        return at_site(enrolment.load_kit(kit))


def test_no_certificate_that_the_authority_signs_can_sign_another(place: Path) -> None:
    kit = joined(place)
    authority = x509.load_pem_x509_certificate(
        (find_coordinator(place / "study.toml") / "authority" / "cert.pem").read_bytes()
    )
    own = x509.load_pem_x509_certificate((kit / "certificate.pem").read_bytes())
    limits = [c.extensions.get_extension_for_class(x509.BasicConstraints) for c in (authority, own)]
    assert [(c.value.ca, c.value.path_length, c.critical) for c in limits] == [(True, 0, True), (False, None, True)]
