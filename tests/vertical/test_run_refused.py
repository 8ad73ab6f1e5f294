"""What parties cannot do is said in words, before anything crosses, and nothing that was written is lost."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.vertical.companies import STUDY, files, people, start, vitrail
from vitrail.vertical.run import VerticalRun
from vitrail.vertical.training.dialogue import Dialogue


def spoil(place: Path, party: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(people()[party]).to_csv(place / "parties" / f"{party}.csv", index=False)


def with_id(frame: pd.DataFrame, row: int, text: str) -> pd.DataFrame:
    return frame.assign(pid=[text if i == row else one for i, one in enumerate(frame.pid)])


@pytest.mark.parametrize(
    ("party", "change", "words"),
    [
        ("lab", lambda f: f.rename(columns={"pid": "pidd"}), ["expected one column of ids", "Did you mean 'pidd'?"]),
        ("lab", lambda f: with_id(f, 7, f.pid.iloc[3]), ["column pid, rows 5, 9", "share their id"]),
        ("lab", lambda f: with_id(f, 7, f" {f.pid.iloc[3]} "), ["share their id with another row"]),
        ("lab", lambda f: with_id(f, 7, ""), ["row 9", "have no id"]),
        ("lab", lambda f: f.assign(sick="no"), ["only the host has the target 'sick'", "Remove the column here"]),
        ("clinic", lambda f: f.drop(columns="sick"), ["the host's table has no target column 'sick'"]),
        ("lab", lambda f: f.assign(pid=[f"X{i}" for i in range(len(f))]), ["fewer than 100", "440 ids", "430 ids"]),
        ("lab", lambda f: f[:20], ["clinic has 440 ids and lab has 20, so one list is more than 2 times as long"]),
        ("lab", lambda f: f[["pid"]], ["at least one column that the model can use"]),
        ("clinic", lambda f: f.assign(sick="yes"), ["expected different outcomes", "have the same"]),
        ("clinic", lambda f: f.assign(sick="maybe"), ["column sick", "expected one of no, yes"]),
        ("clinic", lambda f: f.assign(age="old"), ["column age", "expected numbers"]),
    ],
)  # fmt: skip
def test_bad_tables_are_named_and_nothing_crosses(
    place: Path, party: str, change: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(place, party, change)
    before = files(place)
    monkeypatch.setattr(Dialogue, "turn", lambda *_: pytest.fail("something crossed"))
    code, told = start(place)
    assert code == 2
    for word in words:
        assert word in told, told
    assert files(place) == before, "and leaves nothing behind"


def test_ids_that_are_one_as_spelled(place: Path) -> None:
    (place / "study.toml").write_text(STUDY + '[match]\nform = "folded"\n')
    spoil(place, "lab", lambda f: with_id(f, 7, f.pid.iloc[3].lower().replace("-", " ")))
    assert "in 2 rows different ids become one under form" in start(place)[1]


def test_a_table_that_changed_since_the_match(place: Path, run: Path) -> None:
    verb = ("match", place / "study.toml", "--data", place / "parties", "--places", "--out", place / "match")
    assert vitrail(*verb)[0] == 0
    assert {stat.S_IMODE(p.stat().st_mode) for p in (place / "match").iterdir()} == {0o600}
    assert start(place, "--match", place / "match")[0] == 0
    spoil(place, "lab", lambda f: f.assign(crp_of_lab=f.crp_of_lab + 1))
    again = ("run", place / "study.toml", "--data", place / "parties", "--out", place / "other")
    code, told = vitrail(*again, "--match", place / "match")
    assert (code, "lab.csv: the table of lab has changed since the match" in told) == (2, True)
    shutil.copy(place / "parties/lab.csv", run.parent / "parties/lab.csv")
    code, told = vitrail("explain", run, "--rows", 5)
    assert (code, "the table of lab has changed since the match" in told) == (2, True)


def test_rations(place: Path, run: Path, tmp_path: Path) -> None:
    (place / "study.toml").write_text(STUDY.replace("training = 40", "training = 20"))
    code, told = start(place)
    assert code == 2
    assert "allows 20 questions about each row in training, but 20 epochs and one question more need 21" in told
    (place / "study.toml").write_text(STUDY.replace("after = 400", "after = 4"))
    assert "allows questions about 4 rows after training" in start(place)[1]
    assert not (place / "run").exists(), "what was refused leaves nothing behind"
    (place / "study.toml").write_text(STUDY.replace("after = 400", "after = 60"))
    assert start(place)[0] == 0
    assert VerticalRun.load(place / "run").scored == 30, "half of the ration is left"
    theirs = people()["lab"].pid.tolist()[-20:]
    spent = json.loads((run / "parties/lab/ration.json").read_text())
    (run / "parties/lab/ration.json").write_text(json.dumps({**spent, "answered": 398}))
    pd.DataFrame({"patient": theirs[:3], "age": 60, "sex": "f"}).to_csv(tmp_path / "new.csv", index=False)
    before = files(run)
    code, told = vitrail("predict", run, tmp_path / "new.csv", "--blind")
    assert (code, "it would be asked about 3 rows, but only 2 are left of its ration" in told) == (2, True)
    kept = [k for k in before if k not in ("run.json", "events.jsonl") and not k.endswith("marks.json")]
    assert before.keys() == files(run).keys()
    assert all(files(run)[k] == before[k] for k in kept), "nothing crossed; run.json says what is left, and is sealed"


def test_a_guest_that_says_the_same_of_everybody(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(place, "lab", lambda f: f.assign(crp_of_lab=1.0)[["pid", "crp_of_lab"]])
    (place / "parties/lab.toml").write_text('[features.crp_of_lab]\nkind = "numeric"\n')
    monkeypatch.setattr(Dialogue, "turn", lambda *_: pytest.fail("something crossed"))
    code, told = start(place)
    assert (code, "guest lab: none of its columns varies" in told) == (2, True)


def test_a_guest_that_is_gone(run: Path, tmp_path: Path) -> None:
    pd.DataFrame({"patient": people()["lab"].pid.tolist()[-1:], "age": 60, "sex": "f"}).to_csv(
        tmp_path / "new.csv", index=False
    )
    (run.parent / "parties/lab.csv").unlink()
    assert "expected one table of lab, got 0" in vitrail("predict", run, tmp_path / "new.csv", "--blind")[1]
    shutil.rmtree(run.parent / "parties")
    assert "are there no more" in vitrail("explain", run, "--rows", 5)[1]
    assert vitrail("predict", run, tmp_path / "new.csv", "--without", "lab")[0] == 0, "and prediction goes on"
    (run / "parties/clinic/model.safetensors").write_bytes(b"x")
    assert "cannot be read" in vitrail("predict", run, tmp_path / "new.csv", "--without", "lab")[1]


def test_verbs_of_sites_are_refused(run: Path) -> None:
    table = run.parent / "parties/clinic.csv"
    for words in (
        ("look", run, "--site", "clinic", "--data", table),
        ("contribution", run, "--user", "clinic", "--data", table),
        ("adopt", run, "--site", "x", "--data", table, "--out", run / "x"),
        ("ui", run),
    ):
        assert "it is a run with parties" in vitrail(*words)[1], words
    study = run.parent / "study.toml"
    assert "wire.csv" in vitrail("wire", "split", study)[1]
    assert "vt.together" in vitrail("compare", study, "--data", table.parent, "--out", run / "x")[1]
    assert "vertical_knn" in vitrail("methods")[1]


def test_options_of_sites_are_refused(place: Path) -> None:
    for words in (("--rounds", 3), ("--engine", "looped"), ("--refuse", "a"), ("--keep-updates",)):
        assert f"{words[0]}: it is for sites" in start(place, *words)[1]
    assert "method.k" in start(place, "--set", "k=3")[1]
    assert not (place / "run").exists()
