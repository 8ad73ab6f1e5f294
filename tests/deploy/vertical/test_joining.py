"""A party before it joins: the form that its officer reads, the ration, the yes; and what the doctor finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.support.deploy.enrolment import ask, refused
from tests.support.deploy.talking import study, tables
from vitrail.core.errors import VitrailError
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.consent.party import party_form
from vitrail.deploy.doctor import at_site
from vitrail.deploy.identity import enrolment, party_keys
from vitrail.deploy.identity.certificates import StudyAuthority, own_key
from vitrail.deploy.identity.coordinator_folder import approval_of
from vitrail.deploy.site.model import leave
from vitrail.deploy.vertical.agreement import agreed_hash
from vitrail.deploy.vertical.process import agree_party, form_of_party, pact_of, ration_left


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The coordinator's folder, and where kits and tables are."""
    place = tmp_path_factory.mktemp("parties")
    study().save(place / "study.toml")
    folder = enrolment.invite(place / "study.toml", [], "localhost:8102")
    made = {party: ask(folder, party, place / party) for party in study().parties}
    for request in made.values():
        enrolment.approve(folder, request.file)
    for party, frame in tables(300).items():
        enrolment.accept(made[party].kit, approval_of(folder, party))
        frame.to_csv(place / party / f"{party}.csv", index=False)
    return folder, place


def kit_of(place: Path, party: str) -> enrolment.Kit:
    return enrolment.load_kit(place / party / f"{party}.kit")


def data_of(place: Path, party: str) -> Path:
    return place / party / f"{party}.csv"


def plain(text: str) -> str:
    return " ".join(text.split())


def test_a_guest_reads_what_it_could_tell(enrolled: tuple[Path, Path]) -> None:
    pact = pact_of(kit_of(enrolled[1], "lab"))
    form = plain(party_form(pact, "lab", (9, 900)).text)
    for words in (
        "About each patient at most 9 times",
        "1 number for each patient, rounded to 8 levels, with noise of 1 times their spread",
        "About at most 900 rows in all",
        "The coordinator and clinic together can read your columns as they are",
        "the names of your columns",
        "to which of a few levels your model's numbers for a patient are rounded",
        "holds no key to any of them",
        "in 26 of 100 cases from its own columns, in 30 with answers",
        pact.hash,
        *pact.marks.values(),
    ):
        assert words in form, words
    assert "MORE THAN THE STUDY" not in form
    above = plain(party_form(pact, "lab", (10, 900)).text)
    assert "THIS IS MORE THAN THE STUDY ASKS FOR (in training 9)." in above
    never = form.split("WHAT NEVER LEAVES")[1]
    assert "crp" not in form
    assert "blood" not in form
    assert "the secret of your noise" in never


def test_answers_as_they_are_are_said_in_capitals(enrolled: tuple[Path, Path]) -> None:
    bare = {k: v.model_dump() for k, v in study().parties.items()}
    bare["lab"] |= {"bits": 0, "noise": 0.0}
    pact = pact_of(kit_of(enrolled[1], "lab"))
    form = plain(party_form(type(pact)(study(parties=bare), pact.seed, pact.cards), "lab", (9, 900)).text)
    assert "NOT ROUNDED, WITHOUT NOISE" in form
    assert "can give single columns away exactly" in form


def test_a_host_reads_what_it_could_tell(enrolled: tuple[Path, Path]) -> None:
    form = plain(party_form(pact_of(kit_of(enrolled[1], "clinic")), "clinic", (20, 1000)).text)
    assert "The coordinator and a guest together can read by how much each answer is wrong" in form
    assert "This reveals sick of every row that is trained on" in form
    assert "ration" not in form


def test_the_hash_is_what_counts(enrolled: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    kit, data = kit_of(enrolled[1], "lab"), data_of(enrolled[1], "lab")
    mark = form_of_party(kit, (None, 50))[3].hash
    assert mark != form_of_party(kit)[3].hash
    refused("nobody agreed", agree_party, kit, data, "", (None, None))
    refused("this is not the form that was accepted", agree_party, kit, data, "0" * 24, (None, None))
    _, _, ration = agree_party(kit, data, mark, (None, 50))
    assert ration == (9, 50)
    printed = capsys.readouterr().out
    assert "50 rows in all" in plain(printed)
    assert (kit.home / f"consent-{mark}.txt").read_text(encoding="utf-8") in printed
    agree_party(kit, data, "", (None, 50))  # as before
    refused("nobody agreed", agree_party, kit, data, "", (None, 51))  # another ration, another yes
    assert ration_left(kit) == ["Ration: 9 times for each row in training, 50 rows afterwards."]
    host = kit_of(enrolled[1], "clinic")
    refused("a host has no ration", agree_party, host, data_of(enrolled[1], "clinic"), mark, (3, None))
    assert not Outbox(kit.home).entries()


def test_a_party_that_is_swapped_later_is_not_what_was_accepted(enrolled: tuple[Path, Path], tmp_path: Path) -> None:
    """The lab accepted; then the coordinator, who certifies whom it likes, sends it an approval in which the clinic's
    key is its own. The positive control: the right approval again is taken without a word."""
    folder, place = enrolled
    shutil.copytree(place / "lab", tmp_path / "lab")
    kit, data = kit_of(tmp_path, "lab"), data_of(tmp_path, "lab")
    agree_party(kit, data, form_of_party(kit)[3].hash, (None, None))
    right = approval_of(folder, "lab")
    agree_party(enrolment.accept(kit.folder, right), data, "", (None, None))
    key, who = own_key(tmp_path / "key.pem"), enrolment.identity_of("clinic")
    party_keys.sealing_key(tmp_path)
    forged = party_keys.make_card(tmp_path, "clinic", kit.authority_fingerprint)
    forged["certificate"] = StudyAuthority(folder).sign(key.public_key(), who, "site", [who])
    said = json.loads(right.read_text())
    said["cards"]["clinic"] = forged
    (tmp_path / "evil.approval").write_text(json.dumps(said))
    swapped = enrolment.accept(kit.folder, tmp_path / "evil.approval")
    refused("nobody agreed", agree_party, swapped, data, "", (None, None))


def test_distances_do_not_leave() -> None:
    with pytest.raises(VitrailError, match="this method cannot be deployed"):
        agreed_hash(study(method={"name": "vertical_knn"}), 1, 3)


def test_the_doctor_knows_parties(enrolled: tuple[Path, Path], tmp_path: Path) -> None:
    _, place = enrolled
    shutil.copytree(place / "lab", tmp_path / "lab")
    kit, data = kit_of(tmp_path, "lab"), data_of(tmp_path, "lab")
    told = {e.what: e.well for e in at_site(kit, data)}
    assert told["The key for sealed letters is there."]
    assert told["The cards of all 3 parties are present, and the card of this kit matches its key."]
    assert told["The column of ids, 'pid', is there."]
    assert told["The features of this table are described by values in the table; their names do not leave this site."]
    assert [what for what in told if what.startswith("lab.csv was checked against the study: 0 errors")]
    (tmp_path / "lab" / "lab.toml").write_text('[features.crp]\nkind = "numeric"\n')
    assert any("described by lab.toml" in e.what and e.well for e in at_site(kit, data))
    raw = X25519PrivateKey.generate().private_bytes_raw().hex()
    (kit.folder / party_keys.SEALING).write_text(raw)
    assert any("the card of this kit does not match its key" in e.what and not e.well for e in at_site(kit, data))
    (kit.folder / party_keys.SEALING).unlink()
    assert any(e.what == "The key for sealed letters is not there." and not e.well for e in at_site(kit, data))
    (kit.folder / party_keys.CARDS).unlink()
    assert any("not all parties are enrolled yet" in e.what and not e.well for e in at_site(kit, data))
    frame = tables(300)["lab"].rename(columns={"pid": "who"})
    frame.to_csv(data, index=False)
    assert any(e.what == "The column of ids, 'pid', is not there." and not e.well for e in at_site(kit, data))


def test_who_left_has_no_key(enrolled: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(enrolled[1] / "lab", tmp_path / "lab")
    kit = kit_of(tmp_path, "lab")
    assert (kit.folder / party_keys.SEALING).exists()
    leave(kit.folder, tmp_path / "home")
    assert not [f for f in kit.folder.rglob("*") if f.name in (party_keys.SEALING, "key.pem", "certificate.pem")]
