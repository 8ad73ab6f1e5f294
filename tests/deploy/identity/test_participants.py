"""Who takes part is part of what is accepted; and a sum under masks is of more than two thirds of them, in one list."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from tests.support.deploy.enrolment import ask, change, refused
from tests.support.deploy.masked_runs import NAMES, KilledError, Masked, agreement, asked_of
from tests.support.deploy.proofs import authority, roster
from tests.support.scripts import load_script
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.process import serve
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of, folder_of, invitation_of
from vitrail.deploy.identity.documents import identity_of
from vitrail.deploy.protocol.agreement import FORMAT, Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.secure_sum.shared import SCALE, SCREENING, SumName, single_sums, terms_of
from vitrail.deploy.site.process import agree, form_of
from vitrail.deploy.vertical.agreement import agreed_hash
from vitrail.study.model import Study

sybil = load_script("attack_sybil")


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Study.load(packaged("heart_disease.toml")).with_changes(protect={"sum": "masked"}).save(tmp_path / "heart.toml")
    heart_disease()["va"].to_csv(tmp_path / "va.csv", index=False)
    return tmp_path


@pytest.fixture
def folder(place: Path) -> Path:
    return enrolment.invite(place / "heart.toml", NAMES, "127.0.0.1:18002")


def hash_of(kit: enrolment.Kit) -> str:
    return agreed_hash(kit.study, kit.seed, kit.participants.roster)


def approve(folder: Path, place: Path, *sites: str) -> None:
    for site in sites:
        enrolment.approve(folder, ask(folder, site, place / "sites").file)


def take(folder: Path, place: Path, site: str) -> enrolment.Kit:
    return enrolment.accept(place / "sites" / f"{site}.kit", approval_of(folder, site))


# enrolment


def test_a_site_joins_when_the_list_is_complete(folder: Path, place: Path) -> None:
    approve(folder, place, "va", "cleveland")
    early = take(folder, place, "va")
    told = refused("list of participants is not complete", agree, early, place / "va.csv", "", True)
    assert "hungarian and switzerland were invited but not approved yet" in str(told)
    with pytest.raises(VitrailError, match="hungarian and switzerland are not approved yet"):
        serve(enrolment.load_coordinator(folder), None, 60.0, lambda event, told: None)
    approve(folder, place, "hungarian")
    assert "switzerland was invited" in str(refused("not complete", agree, take(folder, place, "va"), place, "", True))
    approve(folder, place, "switzerland")
    kits = [take(folder, place, site) for site in NAMES]
    assert {hash_of(kit) for kit in kits} == {
        agreed_hash(kits[0].study, kits[0].seed, enrolment.load_coordinator(folder).roster)
    }
    assert hash_of(kits[0]) != kits[0].invitation["agreement"], "the invitation's is nobody's to accept"
    va = kits[NAMES.index("va")]
    agreed, _, _ = agree(va, place / "va.csv", form_of(va).hash, True)
    assert agreed.roster == {kit.site: kit.fingerprint for kit in kits}


def test_commands_say_who_is_missing_and_what_is_accepted(place: Path) -> None:
    def do(*words: object) -> str:
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    study = place / "heart.toml"
    invited = do("invite", study, "--site", "va", "--site", "bern", "--site", "genf", "--address", "127.0.0.1:18002")
    folder = folder_of(study)
    asked = {site: do("request", invitation_of(folder, site)) for site in ("va", "bern", "genf")}
    said = "\n".join([invited, *asked.values()])
    assert json.loads(invitation_of(folder, "va").read_text())["agreement"] not in said
    assert "known once everybody who was invited has been approved" in asked["va"]
    requests = {site: folder / "invitations" / f"{site}.request" for site in asked}
    assert "Not approved yet: bern and genf." in do("approve", requests["va"], "--study", study, "--yes")
    assert "Not approved yet: genf." in do("approve", requests["bern"], "--study", study, "--yes")
    last, who = do("approve", requests["genf"], "--study", study, "--yes"), enrolment.load_coordinator(folder)
    assert f"Every form names the agreement {agreed_hash(who.study, who.seed, who.roster)}" in last
    assert all(f"{site} {mark}" in last for site, mark in who.roster.items())
    assert len(who.roster) == 3


def test_the_hash_covers_names_and_keys() -> None:
    agreed, known = agreement(rounds=1), roster(NAMES)
    study, seed = agreed.study, agreed.seed
    swapped = {**known, "va": known["cleveland"][::-1].replace(" ", "0")}
    longer, other = {**known, "Bern": "0000"}, {("Bern" if n == "va" else n): mark for n, mark in known.items()}
    found = [Agreement.of(study, seed, given).hash for given in (4, known, swapped, longer, other)]
    assert len(set(found)) == len(found)
    assert Agreement.of(study, seed, dict(reversed(known.items()))).hash == found[1], "in any order"


def test_a_site_that_is_added_needs_everybodys_consent(folder: Path, place: Path) -> None:
    approve(folder, place, *NAMES)
    kit = take(folder, place, "va")
    agree(kit, place / "va.csv", form_of(kit).hash, True)
    agree(kit, place / "va.csv", "", True)  # accepted once, it is not asked again
    before = enrolment.load_coordinator(folder).roster
    enrolment.invite(place / "heart.toml", ["Bern"], "")
    assert enrolment.load_coordinator(folder).roster == before, "a run goes on with the list that was complete last"
    approve(folder, place, "Bern")
    assert set(enrolment.load_coordinator(folder).roster) == {*NAMES, "Bern"}
    with pytest.raises(VitrailError, match="nobody agreed"):
        agree(take(folder, place, "va"), place / "va.csv", "", True)
    with pytest.raises(VitrailError, match="not the form that was accepted"):
        agree(enrolment.load_kit(kit.folder), place / "va.csv", form_of(kit).hash, True)


def test_who_is_removed_keeps_its_place_once_a_run_has_begun(folder: Path, place: Path) -> None:
    approve(folder, place, *NAMES)
    whole = enrolment.load_coordinator(folder).roster
    (folder / enrolment.CURRENT).write_text("{}")
    enrolment.remove(folder, "va")
    assert enrolment.load_coordinator(folder).roster == whole
    (folder / enrolment.CURRENT).unlink()  # before any run it is another list, which all accept anew
    enrolment.remove(folder, "va")
    left = enrolment.load_coordinator(folder).roster
    assert set(left) == set(NAMES) - {"va"}
    assert json.loads(approval_of(folder, "cleveland").read_text())["roster"] == left
    enrolment.remove(folder, "cleveland")
    with pytest.raises(VitrailError, match="this protection is not possible here"):
        serve(enrolment.load_coordinator(folder), None, 60.0, lambda event, told: None)


def test_approvals_whose_list_is_refused(folder: Path, place: Path) -> None:
    approve(folder, place, *NAMES)
    file = Path(shutil.copy(approval_of(folder, "va"), place / "va.approval"))
    kit, said = place / "sites" / "va.kit", json.loads(file.read_text())["roster"]
    for given, why in (
        (None, "does not name the participants"),
        ({**said, "va": said["cleveland"]}, "but this kit has the key"),
        ({**said, "hungarian": said["cleveland"]}, "same key"),
        ({**said, "hungarian": 3}, "expected the names and fingerprints"),
        (["va"], "expected the names and fingerprints"),
    ):
        assert why in str(
            refused("list of participants was refused", enrolment.accept, kit, change(file, roster=given))
        )
    assert not enrolment.load_kit(kit).approved


def test_the_form_names_all_keys_and_who_would_have_to_collude() -> None:
    agreed = agreement(rounds=1)
    known = Agreement.of(agreed.study, agreed.seed, roster(NAMES))
    form = contract_text(known, "va", NAMES, True)
    for name, mark in known.roster.items():
        assert f"{name} {'this site' if name == 'va' else 'site'} {mark}" in " ".join(form.split())
    flat = " ".join(form.split())
    assert "Each reads out its own fingerprint, and all read out the same agreement" in flat
    assert "only of 3 sites or more, which is more than two thirds of the 4 that accepted the agreement" in flat
    assert "the coordinator and 2 of the 3 other sites would have to work together" in flat
    assert "may change at most 12 times in a run" in flat


def test_an_older_coordinator_is_told_so(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=1))
    words = {"run": "0" * 16, "format": FORMAT - 1, "agreement": way.agreed.hash}
    with pytest.raises(VitrailError, match=rf"format {FORMAT - 1}, this site's {FORMAT}.*same version"):
        way.sites["va"].answer(Message("hello", words))


# one list in a round


def begun(root: Path, at: str, sites: int = 4) -> Masked:
    """A study whose coordinator was killed when it would ask for `at` in the second round."""
    way = Masked(root, agreement(rounds=3))

    def killed(name: str, asked: Message) -> bool:
        if asked.words.get("round") == 1 and asked.words.get("leg", asked.kind) == at:
            raise KilledError
        return False

    way.away = killed
    with pytest.raises(KilledError):
        way.conduct(quorum=4)
    return way


def test_a_list_below_two_thirds_is_refused(tmp_path: Path) -> None:
    """Of six who accepted, at every leg; and the common scale, screening and second server ask the same of a list."""
    tables, study = heart_disease(), sybil.study_of()
    six = Agreement.of(study, None, roster([*NAMES, *sybil.INVENTED]))
    assert six.fewest == 5
    way = Masked(tmp_path, six, tables | {n: tables["va"].head(40) for n in sybil.INVENTED})
    way.away = lambda name, asked: asked.words.get("leg") == "keys" and stop()
    with pytest.raises(KilledError):
        way.conduct(quorum=6)
    run, place = "0123456789abcdef", six.stages[0].stage.turns(0)[0]
    ring = {n: said.words for n, asked, said in way.said if asked.words.get("leg") == "ring"}
    words = {"run": run, "leg": "keys", **SumName.of_round((0, 0, place))._asdict()}
    for length in (3, 4):
        names = sorted(way.sites)[-length:]
        near = {n: ring[n] for n in names if n != "va"}
        with pytest.raises(VitrailError, match=f"the sum would be over {length} sites, but at least 5 are required"):
            way.sites["va"].answer(Message("mask", {**words, "names": names, "ring": near}))
    names = sorted(set(way.sites) - {"cleveland"})
    near = {n: ring[n] for n in names if n != "va"}
    assert way.sites["va"].answer(Message("mask", {**words, "names": names, "ring": near})).words["key"], "the control"
    summing = Agreement.of(study.with_changes(standardise="global", screen={"ask": True}), None, six.roster)
    least = {purpose: terms_of(summing, run, SumName(purpose)).least for purpose in single_sums(summing)}
    assert least == {SCALE: 5, SCREENING: 5}


def stop() -> bool:
    raise KilledError


def test_another_list_for_another_site_in_one_round(tmp_path: Path) -> None:
    """va reports to a list of all, the others to one without it: nobody opens the one or the other."""
    way = begun(tmp_path, "round")
    kept = json.loads((tmp_path / "run" / "sums.json").read_text())["sums"][""]
    asked, others = {}, [n for n in NAMES if n != "va"]
    first = asked_of(way, "round", 0)
    for name in NAMES:
        members = NAMES if name == "va" else others
        near = {n: {k: v for k, v in kept["drawn"][n].items() if k != "sealed"} for n in members if n != name}
        words = {**first[name].words, "round": 1, "sum": {"roster": sorted(members), "drawn": near}}
        asked[name] = Message("round", words | {"score": []}, first[name].tensors)
    said = {n: way.sites[n].answer(unpack(m.pack())) for n, m in asked.items()}
    lists = {n: m.words["list"] for n, m in said.items()}

    def open_(name: str, members: list[str], signed: dict[str, str]) -> Message:
        sealed = {n: kept["drawn"][n]["sealed"][name] for n in members if n != name}
        words = {"purpose": "round"} | {k: asked[name].words[k] for k in ("run", "stage", "round", "place")}
        told = {n: v for n, v in signed.items() if n in members and n != name}
        more = {"leg": "open", "said": members, "lists": told, "sealed": sealed, "next": {}}
        return way.sites[name].answer(Message("mask", words | more))

    with pytest.raises(VitrailError, match="did not sign this"):
        open_("va", NAMES, lists)
    with pytest.raises(VitrailError, match="of 3 in the sum"):
        open_("cleveland", NAMES, lists)
    forged = Ed25519PrivateKey.generate().sign(b"the list").hex()
    with pytest.raises(VitrailError, match="did not sign this"):
        open_("cleveland", others, {**lists, "hungarian": forged})
    replayed = {
        n: m.words["list"] for n, asked_, m in way.said if asked_.kind == "round" and asked_.words["round"] == 0
    }
    with pytest.raises(VitrailError, match="did not sign this"):
        open_("cleveland", others, {**lists, "hungarian": replayed["hungarian"]})
    with pytest.raises(VitrailError, match="did not sign the list"):
        open_("cleveland", others, {})
    assert open_("cleveland", others, lists).words["shares"], "the control: what three signed is opened"


def test_a_site_that_does_not_sign_is_left_out(tmp_path: Path) -> None:
    """Or one that lies would keep every sum closed."""
    way, real = Masked(tmp_path, agreement(rounds=2)), Masked.ask

    def ask_(self: Masked, questions: dict[str, Message], deadline: float) -> Any:
        heard = real(self, questions, deadline)
        said = heard.answers.get("va")
        if said is not None and said.kind == "round":
            heard.answers["va"] = said._replace(words={**said.words, "list": "00" * 64})
        return heard

    way.ask = ask_.__get__(way)  # type: ignore[method-assign]
    way.conduct(quorum=3)
    assert any(event == "trouble" and "did not sign the list" in told["what"] for event, told in way.events)
    opened = {n for n, asked, _ in way.said if asked.words.get("leg") == "open" and asked.words["purpose"] == "round"}
    assert opened == set(NAMES) - {"va"}
    assert not [told for event, told in way.events if event == "sum not opened"]


def test_a_certificate_in_another_name_opens_nothing(tmp_path: Path) -> None:
    """The coordinator gives itself a certificate in the name of hungarian, from the first word on."""
    way = Masked(tmp_path, agreement(rounds=2))
    key, who = rsa.generate_private_key(public_exponent=65537, key_size=2048), identity_of("hungarian")
    proof = way.sites["hungarian"].proof
    assert proof is not None
    way.sites["hungarian"].proof = replace(
        proof, key=key, certificate=authority().sign(key.public_key(), who, "site", [who])
    )
    way.through_doors()
    with pytest.raises(VitrailError, match="cannot go on"):
        way.conduct(quorum=4)
    told = [d["what"] for event, d in way.events if event == "trouble"]
    assert any("this site accepted it with the key" in what for what in told)
