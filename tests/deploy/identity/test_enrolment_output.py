"""What the enrolment commands print: each line must be true for who reads it, and name the command that comes next."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.deploy import talking
from tests.support.small import opposed_tables
from vitrail.cli import app
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import invitation_of
from vitrail.study.model import Study


def printed(*command: Any, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(part) for part in command])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def request(folder: Path, site: str, place: Path) -> str:
    """What `vitrail request` prints, where the invitation came to `place`."""
    place.mkdir(exist_ok=True)
    return printed("request", shutil.copy(invitation_of(folder, site), place))


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coordinator's folder of a study with a second server."""
    place = tmp_path_factory.mktemp("second")
    sites = dict.fromkeys(("a", "b", "c", "d", "e"), 40)
    guarded = {"sum": "two servers", "second": "registry", "clip": 1.0}
    Study.infer(opposed_tables(sites), "sick", protect=guarded).save(place / "study.toml")
    return enrolment.invite(place / "study.toml", list(sites), "localhost:8102")


def test_the_second_server_is_sent_to_serve(two_servers: Path, tmp_path: Path) -> None:
    words = request(two_servers, "registry", tmp_path / "registry")
    assert "with 5 sites and registry, the second server" in words
    approved = printed("approve", tmp_path / "registry" / "registry.request", "--study", two_servers, "--yes")
    assert "Not approved yet: a, b, c, d and e" in approved
    assert "join" not in approved
    for site in ("a", "b", "c", "d", "e"):
        request(two_servers, site, tmp_path / site)
        approved = printed("approve", tmp_path / site / f"{site}.request", "--study", two_servers, "--yes")
    assert "vitrail join KIT --approval FILE takes it; registry: vitrail serve KIT --second --approval FILE" in approved


def test_a_party_is_given_no_hash_before_there_are_keys(tmp_path: Path) -> None:
    """The hash in a party's invitation is never the one that it accepts: the keys of all parties go into that one."""
    talking.study().save(tmp_path / "study.toml")
    folder = enrolment.invite(tmp_path / "study.toml", [], "localhost:8102")
    words = request(folder, "lab", tmp_path / "lab")
    early = enrolment.load_kit(tmp_path / "lab" / "lab.kit").invitation["agreement"]
    assert early not in words
    assert "with 3 parties" in words
    assert "The consent form and its hash are shown when you join" in words
    assert early not in printed("doctor", tmp_path / "lab" / "lab.kit", code=1)
    approved = printed("approve", tmp_path / "lab" / "lab.request", "--study", folder, "--yes")
    assert "Not approved yet: clinic and insurer" in approved


def test_who_left_is_told_so(two_servers: Path, tmp_path: Path) -> None:
    request(two_servers, "b", tmp_path / "b")
    kit = tmp_path / "b" / "b.kit"
    assert "vitrail remove 'b'" in printed("leave", kit, "--yes")
    assert "left 'study' with this kit on" in printed("leave", kit, "--yes")
    with pytest.raises(enrolment.VitrailError, match="this site left the study with this kit on"):
        enrolment.request(tmp_path / "b" / "b.invitation")
    assert not (kit / "key.pem").exists()


def test_help_of_join_has_whole_sentences() -> None:
    words = printed("join", "--help")
    assert "()" not in words
    assert "If the study has" in words


def test_doctor_of_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "no.kit")])
    assert "there is no such file or folder" in str(done.exception)
