"""Studies with parties, their files, and the two verbs: what is valid goes round, what is not is named."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import vitrail as vt
from tests.support.vertical.parties import guest_table, host_table, names, study
from vitrail.cli import app
from vitrail.vertical.tables import OWN, check_party, described, read_parties

STUDY = """\
name = "two companies"
[target]
column = "sick"
classes = ["no", "yes"]
positive = "yes"
[features.age]
kind = "numeric"
[parties.hospital]
role = "host"
id = "patient"
[parties.lab]
role = "guest"
id = "pid"
"""


def load(tmp_path: Path, text: str) -> vt.Study:
    (tmp_path / "study.toml").write_text(text)
    return vt.Study.load(tmp_path / "study.toml")


def test_defaults_and_a_round_trip(tmp_path: Path) -> None:
    agreed = load(tmp_path, STUDY)
    lab = agreed.parties["lab"]
    assert (agreed.host, agreed.guests) == ("hospital", ["lab"])
    assert (lab.answer, lab.bits, lab.ration.training, lab.ration.after) == (1, 3, 20, 1000)
    assert agreed.match is not None
    assert (agreed.match.form, agreed.match.at_least, agreed.match.ratio) == ("trimmed", 100, 2)
    assert agreed.method["name"] in vt.methods.PARTIES
    more = STUDY + 'answer = 3\nbits = 0\nration = { training = 8, after = 50 }\n[match]\nform = "digits"\nratio = 20\n'
    for given in (agreed, load(tmp_path, more)):
        assert vt.Study.parse(tomllib.loads(given.to_toml())) == given
        assert given.with_changes(match={"at_least": 7}).match == given.match.model_copy(update={"at_least": 7})  # type: ignore[union-attr]


def test_a_study_of_sites_is_as_it_was() -> None:
    plain = vt.Study.parse({"target": {"column": "y", "classes": [0, 1]}, "features": {"x": {"kind": "numeric"}}})
    assert (plain.host, plain.guests, plain.match) == ("", [], None)
    assert "part" not in plain.to_toml()
    assert "[match]" not in plain.to_toml()
    assert plain.method["name"] == vt.methods.DEFAULT


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('role = "guest"', 'role = "host"', ["expected one host", "got 2", "there is no guest"]),
        ('role = "host"', 'role = "guest"', ["expected one host", "got 0"]),
        ('role = "host"', 'role = "owner"', [":9 parties.hospital.role", "'host' or 'guest'", "expected one host"]),
        ('id = "patient"', 'id = "age"', ["the id of hospital is also a feature"]),
        ('id = "patient"', 'id = "sick"', ["the id is the target"]),
        ('id = "patient"', 'id = ""', [":10 parties.hospital.id", "expected a column's name"]),
        ('id = "patient"', 'id = "patient"\nbits = 4', ["only a guest has the key bits"]),
        ('id = "pid"', "", [":11 parties.lab.id", "'id' is missing"]),
        ('id = "pid"', 'id = "pid"\nbits = 9', ["parties.lab.bits", "at most 8"]),
        ('id = "pid"', 'id = "pid"\nbitz = 1', [":14 parties.lab.bitz", "Did you mean 'bits'?"]),
        ('id = "pid"', 'id = "pid"\nration = { afte = 3 }', ["parties.lab.ration.afte", "Did you mean 'after'?"]),
        ('id = "pid"', 'id = "pid"\nration = { after = -3 }', ["parties.lab.ration.after", "at least 0"]),
        ('id = "pid"', 'id = "pid"\n[match]\nform = "loose"', [":15 match.form", "'folded'"]),
        ('id = "pid"', 'id = "pid"\n[match]\nat_least = 0', ["match.at_least", "at least 1"]),
        ('id = "pid"', 'id = "pid"\n[match]\nratio = 0.5', ["match.ratio", "at least 1"]),
        ('id = "pid"', 'id = "pid"\n[match]\natleast = 5', ["match.atleast", "Did you mean 'at_least'?"]),
        ('id = "pid"', 'id = "pid"\n[method]\nname = "scaffold"', ["scaffold is for sites", "split"]),
        ('id = "pid"', 'id = "pid"\n[method]\nname = "splt"', ["there is no method 'splt'", "Did you mean 'split'?"]),
        ('id = "pid"', 'id = "pid"\n[method]\nname = "vertical_knn"\nk = 0', ["method.k", "whole number >= 1"]),
        ('id = "pid"', 'id = "pid"\n[method]\nname = "split"\nepoch = 3', ["method.epoch", "Did you mean 'epochs'?"]),
        ('id = "pid"', 'id = "pid"\n[method]\nname = "split"\nhidden = [0]', ["method.hidden", "a list, each a whole"]),
        ('id = "pid"', 'id = "pid"\n[method]\nname = "split"\nlr = 0', ["expected a number > 0, got 0"]),
        (
            'id = "pid"',
            'id = "pid"\n[training]\nrounds = 3',
            ["training.rounds", "this key is not used", "epochs, alone"],
        ),
        ('id = "pid"', 'id = "pid"\n[network]\nhidden = [8]', ["network.hidden", "this key is not used"]),
        ("[parties.lab]", '[parties."la/b"]', ["also a file name"]),
        ("[parties.lab]", "[parties]\nlab = 3\n[parties.lap]", ["parties.lab", "expected a section"]),
        ("[target]", 'site_column = "s"\n[target]', ["has no site column"]),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, words: list[str], tmp_path: Path) -> None:
    assert STUDY.count(old) == 1
    with pytest.raises(vt.VitrailError) as caught:
        load(tmp_path, STUDY.replace(old, new))
    for word in words:
        assert word in str(caught.value)


def test_methods_of_parties_are_for_parties_and_match_too(tmp_path: Path) -> None:
    alone = STUDY[: STUDY.index("[parties")]
    with pytest.raises(vt.VitrailError, match="split is for parties with columns of the same people"):
        load(tmp_path, alone + '[method]\nname = "split"\n')
    with pytest.raises(vt.VitrailError, match="there are no parties to match"):
        load(tmp_path, alone + "[match]\nat_least = 3\n")


def vitrail(*words: object) -> tuple[int, str]:
    """Exit code and output of a verb, in this process."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, [*map(str, words)])
    if isinstance(done.exception, vt.VitrailError):
        return 2, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "parties").mkdir()
    host_table(names(0, 300)).to_csv(tmp_path / "parties" / "hospital.csv", index=False)
    guest_table(names(100, 400)).to_csv(tmp_path / "parties" / "lab.csv", index=False)
    return tmp_path


def test_match_counts_and_places_come_with_a_flag(place: Path) -> None:
    verb = ("match", place / "study.toml", "--data", place / "parties", "--out", place / "match")
    code, told = vitrail(*verb)
    assert code == 0
    assert "200 in common (hospital 300, lab 300)" in told
    assert "can put guesses into its own list" in told
    assert not (place / "match").exists()
    code, told = vitrail(*verb, "--places")
    assert code == 0
    found = vt.Match.load(place / "match")
    taken = found.take(read_parties(place / "parties", vt.Study.load(place / "study.toml")))
    assert taken["hospital"].patient.tolist() == taken["lab"].pid.tolist()
    assert found.common == 200
    before = (place / "match" / "lab.json").read_bytes()
    code, told = vitrail(*verb, "--places")
    assert (code, "exists already" in told) == (2, True)
    assert (place / "match" / "lab.json").read_bytes() == before  # nothing written is lost
    guest_table(names(100, 400), seed=9).to_csv(place / "parties" / "lab.csv", index=False)
    with pytest.raises(vt.VitrailError, match=r"lab\.csv: the table of lab has changed since the match"):
        found.take(read_parties(place / "parties", vt.Study.load(place / "study.toml")))


def test_parties_that_are_not_there_or_too_many_or_strangers(place: Path) -> None:
    folder, verb = place / "parties", ("match", place / "study.toml", "--data")
    (folder / "lab.csv").rename(folder / "labs.csv")
    (folder / "hospital.tsv").write_text("patient\tsick\nA\tno\n")
    code, told = vitrail(*verb, folder)
    assert code == 2
    assert "no party 'labs'. Did you mean 'lab'?" in told
    assert "expected one table of lab, got 0" in told
    assert "expected one table of hospital, got 2" in told
    assert "expected a folder" in vitrail(*verb, folder / "labs.csv")[1]


def test_check_a_partys_table(place: Path) -> None:
    folder, verb = place / "parties", ("check", place / "study.toml")
    assert vitrail(*verb, folder / "lab.csv", "--party", "lab") == (0, "lab.csv: 300 rows, 0 errors, 0 warnings\n")
    assert vitrail(*verb, folder / "hospital.csv")[0] == 0
    assert "Did you mean 'lab'?" in vitrail(*verb, folder / "lab.csv", "--party", "labb")[1]
    assert (
        "expected only the table of lab, got 2 files"
        in vitrail(*verb, folder / "lab.csv", folder / "hospital.csv", "--party", "lab")[1]
    )
    broken = guest_table([*names(0, 97), "ch-00001", "", "CH-00004"]).assign(sick="no", constant=1)
    broken.to_csv(folder / "lab.csv", index=False)
    code, told = vitrail(*verb, folder / "lab.csv", "--party", "lab", "--json")
    assert code == 1
    found = {f["kind"]: f for f in json.loads(told)["findings"]}
    assert found["empty_id"]["rows"] == [100]  # the header is line 1
    assert found["repeated_id"]["rows"] == [6, 101]
    assert found["case_of_id"]["rows"] == [99]
    assert found["target_at_guest"]["column"] == "sick"


def test_party_is_for_studies_with_parties(place: Path) -> None:
    (place / "study.toml").write_text(STUDY[: STUDY.index("[parties")])
    verb = ("check", place / "study.toml", place / "parties" / "lab.csv", "--party", "lab")
    assert "the study has no parties" in vitrail(*verb)[1]


def test_a_guests_columns_are_looked_at_or_described_at_home(place: Path) -> None:
    agreed, folder = vt.Study.load(place / "study.toml"), place / "parties"
    frames = read_parties(folder, agreed)
    assert described(agreed, "hospital", frames["hospital"]) is agreed
    assert list(described(agreed, "lab", frames["lab"]).features) == ["crp"]
    (folder / "lab.toml").write_text('[features.crp]\nkind = "numeric"\nrange = [0, 0.5]\nunit = "mg/l"\n')
    frames = read_parties(folder, agreed)
    assert frames["lab"].attrs[OWN] == str(folder / "lab.toml")
    assert described(agreed, "lab", frames["lab"]).features["crp"].unit == "mg/l"
    assert any(f.kind == "out_of_range" for f in check_party(frames["lab"], agreed, "lab"))
    for said, words in (
        ('[features.pid]\nkind = "numeric"\n', "the id is among the features"),
        ("[target]\n", "expected only [features.COLUMN] sections, got target"),
        ("x = = 3", "expected TOML"),
        ('[features.crp]\nkind = "numerc"\n', "features.crp.kind"),
        ("[features]\n", "needs at least one column"),
    ):
        (folder / "lab.toml").write_text(said)
        with pytest.raises(vt.VitrailError) as caught:
            described(agreed, "lab", frames["lab"])
        assert words in str(caught.value)
    assert check_party(frames["lab"], agreed, "lab")[0].kind == "own_columns"


def test_the_id_under_another_name_is_found() -> None:
    ids: list[Any] = list(range(1000, 9000, 40))  # they do not count on, and the name tells nothing
    frame = guest_table(ids).assign(marker=ids)
    assert any(f.kind == "id_is_feature" and f.column == "marker" for f in check_party(frame, study(), "lab"))
    assert not any(f.kind == "id_is_feature" for f in check_party(guest_table(ids), study(), "lab"))


def test_a_guest_with_nothing_but_ids_is_told() -> None:
    frame = pd.DataFrame({"pid": names(0, 30)})
    assert any("needs at least one column" in f.text for f in check_party(frame, study(), "lab"))


def test_sites_are_not_parties(tmp_path: Path) -> None:
    with pytest.raises(vt.VitrailError, match=r"no sites\. With parties: .* vt.together"):
        vt.federate(load(tmp_path, STUDY), {"hospital": host_table(names(0, 30))})
