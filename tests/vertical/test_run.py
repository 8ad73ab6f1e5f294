"""Studies with parties from the file to the run folder and back, by the verbs a person uses; laws of these runs."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.vertical.companies import files, killed, people, start, vitrail
from vitrail.vertical.run import VerticalRun
from vitrail.vertical.tables import read_parties
from vitrail.vertical.training.host import answer_scores


def test_a_guests_columns_are_worth_something_and_it_is_said(finished: Path) -> None:
    told = (finished / "told.txt").read_text()
    assert told.index("410 in common (clinic 440, lab 430)") < told.index("host alone")
    assert "The guests’ columns help clinic" in told
    scores = pd.read_csv(finished / "run" / "scores.csv").set_index(["model", "metric"])
    assert list(dict.fromkeys(scores.index.get_level_values(0))) == ["host alone", "together", "lab away", "majority"]
    gain = scores.loc[("together", "auc")]
    assert gain.gain_low > 0.03, gain
    assert gain.low < gain.value < gain.high
    assert scores.loc[("together", "log_loss")].gain > 0, "less is better, and a gain is above 0"
    assert abs(scores.loc[("lab away", "auc")].gain) < 0.05
    page = (finished / "run" / "report.html").read_text()
    for words in ("with lab", "yes: gains", "what crossed", "Which of a few levels", "135 held-out rows"):
        assert words.casefold() in page.casefold(), words


def test_each_partys_own_is_its_own(finished: Path) -> None:
    held = files(finished / "run")
    private = [p for p in (finished / "run" / "parties").rglob("*") if p.is_file()]
    assert len(private) >= 7
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path
    for name, content in held.items():
        for secret in (b"crp_of_lab", b"ward_of_lab"):
            assert secret not in content, f"a guest's names are in {name}"
        if not name.startswith("parties/clinic/"):
            assert b"CH-" not in content, f"patients are in {name}"
    assert not any("step-" in name for name in held)
    assert str(finished).encode() not in held["run.json"], "nor where tables are"
    read = VerticalRun.load(finished / "run")
    answered = read.ledger[(read.ledger.message == "Levels") & (read.ledger.stage == "training")].rows
    assert int(answered.sum()) == 21 * len(read.terms.train), "20 epochs and once more"
    assert read.left()["lab"] == {"training": 19, "after": 400 - read.scored}


def test_predict_says_when_a_guest_was_away(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    frame = people()["clinic"].iloc[[50, 60, 70]].drop(columns="sick")
    frame.to_csv(new, index=False)
    code, told = vitrail("predict", run, new)
    assert code == 0
    assert "lab: 3 rows in common, known from before" in told
    with_lab = VerticalRun.load(run).predict(frame).table
    code, told = vitrail("predict", run, new, "--without", "lab", "--out", tmp_path / "said.csv")
    assert code == 0
    assert "Without lab: the median of its answers" in told
    said = pd.read_csv(tmp_path / "said.csv")
    assert said.lab.tolist() == ["reference"] * 3
    assert with_lab.lab.tolist() == ["answer"] * 3
    assert np.allclose(said.no + said.yes, 1)
    assert not np.allclose(said.yes, with_lab.yes)
    assert vitrail("predict", run, new, "--without", "lab", "--out", tmp_path / "said.csv")[0] == 2, "not overwritten"
    assert "Did you mean 'lab'?" in vitrail("predict", run, new, "--without", "labb")[1]
    assert "expected a table with the columns of clinic" in vitrail("predict", run)[1]


def test_the_id_is_needed_only_where_somebody_is_asked(run: Path, tmp_path: Path) -> None:
    people()["clinic"][["age", "sex"]][:4].to_csv(tmp_path / "new.csv", index=False)
    assert "expected one such column of ids" in vitrail("predict", run, tmp_path / "new.csv")[1]
    assert vitrail("predict", run, tmp_path / "new.csv", "--without", "lab")[0] == 0
    pd.DataFrame({"patient": ["", "CH-1"], "age": 1, "sex": "f"}).to_csv(tmp_path / "new.csv", index=False)
    assert "row 2: the id is missing" in vitrail("predict", run, tmp_path / "new.csv")[1]


def test_a_new_patient_is_looked_up_blindly_and_counted(run: Path, tmp_path: Path) -> None:
    """20 people are at the laboratory and not at the clinic; a stranger is at neither."""
    theirs = people()["lab"].pid.tolist()[-20:]
    frame = pd.DataFrame({"patient": [*theirs[:3], "CH-99999"], "age": 60, "sex": "f"})
    frame.to_csv(tmp_path / "new.csv", index=False)
    verb = ("predict", run, tmp_path / "new.csv")
    before = files(run)
    code, told = vitrail(*verb)
    assert (code, "4 of 4 rows belong to people who are not in the match" in told, "--blind" in told) == (2, True, True)
    assert files(run) == before, "nothing crossed"
    left = VerticalRun.load(run).left()["lab"]["after"]
    code, told = vitrail(*verb, "--blind")
    assert code == 0
    assert "4 looked up blindly (a table of 430 encrypted answers" in told
    assert "it does not have 1 of them" in told
    rows = [line.split(",") for line in told.splitlines() if line[0].isdigit()]
    assert [row[-1] for row in rows] == ["answer"] * 3 + ["reference"]
    read = VerticalRun.load(run)
    assert read.left()["lab"]["after"] == left - 4
    asked = read.ledger[read.ledger.message == "Asked"].iloc[0]
    assert (asked.stage, asked.messages) == ("afterwards", 4)
    # the same number as by place: noise hangs on the patient
    tables = read_parties(run.parent / "parties", read.study)
    sides = read.at_hand(tables)
    guest = sides.guests["lab"]
    place = torch.tensor([5])
    person = read.model.people[5]
    row = guest.rows.whole.iloc[[guest.rows.people.index(person)]]
    assert torch.equal(
        answer_scores(guest.guest.tell(guest.features(row), [person])), read.model.guest_answers["lab"][place]
    )


def test_somebody_who_came_after_the_match_is_looked_up_in_todays_table(run: Path, tmp_path: Path) -> None:
    lab = people()["lab"]
    row = {"pid": "CH-99999", "crp_of_lab": 3.0, "ward_of_lab": "b"}
    pd.concat([lab[::-1], pd.DataFrame([row])]).to_csv(tmp_path / "lab.csv", index=False)
    pd.DataFrame({"patient": ["CH-99999"], "age": 60, "sex": "f"}).to_csv(tmp_path / "new.csv", index=False)
    verb = ("predict", run, tmp_path / "new.csv")
    code, told = vitrail(*verb, "--today", f"lab={tmp_path / 'lab.csv'}")
    assert code == 0, told
    assert "1 looked up blindly (a table of 431" in told
    high = VerticalRun.load(run).predict(pd.read_csv(tmp_path / "new.csv"), without=["lab"]).table.yes[0]
    assert float(next(line for line in told.splitlines() if line.startswith("2,")).split(",")[2]) > high + 0.1
    for wrong, words in (("lab", "GUEST=FILE"), (f"labb={tmp_path / 'lab.csv'}", "Did you mean 'lab'?")):
        assert words in vitrail(*verb, "--today", wrong)[1]
    lab.assign(pid=lab.pid.iloc[0]).to_csv(tmp_path / "lab.csv", index=False)
    assert "share their id" in vitrail(*verb, "--today", f"lab={tmp_path / 'lab.csv'}")[1]


def test_explain_at_the_host_and_at_the_guest(run: Path, tmp_path: Path) -> None:
    one = people()["clinic"].patient[100]
    page = tmp_path / "host.html"
    code, told = vitrail("explain", run, "--rows", 200, "--id", one, "--out", page)
    assert code == 0, told
    assert f"Row {one}" in told
    assert "lab: its columns, unseen here" in told
    text = page.read_text()
    assert "This stays at clinic" in text
    assert "crp_of_lab" not in text
    assert "hatch" in text
    read = VerticalRun.load(run)
    tables = read_parties(run.parent / "parties", read.study)
    e = read.explain(150, tables)
    odds = read.predict(people()["clinic"].set_index("patient", drop=False).loc[list(e.rows)]).table.yes
    assert np.allclose(e.total, np.log(odds / (1 - odds)), atol=1e-4), "values sum to f(x) - f(off)"
    assert e.united == ("lab",)
    assert e.importance()[0]["feature"] == "lab"
    page = tmp_path / "guest.html"
    assert vitrail("explain", run, "--party", "lab", "--out", page)[0] == 0
    assert "This stays at lab" in page.read_text()
    own = read.explain_guest("lab", 50)
    assert own.importance()[0]["feature"] == "crp_of_lab"
    assert "no party 'labb'" in vitrail("explain", run, "--party", "labb")[1]
    assert "--id CH-x: this person is not in the match" in vitrail("explain", run, "--id", "CH-x")[1]
    assert "--site: it is for sites" in vitrail("explain", run, "--site", "a")[1]
    assert vitrail("report", run)[0] == 0


def test_every_column_is_explained_in_a_simulation_if_that_is_asked_for(run: Path, tmp_path: Path) -> None:
    read = VerticalRun.load(run)
    tables = read_parties(run.parent / "parties", read.study)
    united, both = read.explain(40, tables), read.explain(40, tables, whole=True)
    assert united.whole is None
    assert np.array_equal(both.values, united.values), "the united values are the same"
    assert both.whole is not None
    of_all, hidden = both.whole.explanation, both.whole.owners
    assert of_all.feature_names[: len(united.feature_names) - 1] == united.feature_names[:-1]
    assert "lab: crp_of_lab" in of_all.feature_names
    assert set(hidden) == {"", "lab"}
    sides = read.at_hand(tables)
    guest, places = sides.guests["lab"], read.choose(40, 1)
    answers = {"lab": guest.guest.scores(guest.guest.columns[places])}
    z = read.model.scores(sides.host.host.columns[places], answers)
    assert np.allclose(of_all.total, (z[:, 1] - z[:, 0]).numpy(), atol=1e-4), "of answers before rounding and noise"
    page = tmp_path / "host.html"
    assert "crp_of_lab" not in vitrail("explain", run, "--rows", 40, "--out", page)[1] + page.read_text()
    code, told = vitrail("explain", run, "--rows", 40, "--whole", "--out", tmp_path / "whole.html")
    assert code == 0, told
    assert "lab: crp_of_lab: " in told
    text = (tmp_path / "whole.html").read_text()
    assert "With every column at hand" in text
    assert "lab: crp_of_lab" in text
    assert "before rounding and noise" in text
    assert "--whole: lab knows its own columns alone" in vitrail("explain", run, "--party", "lab", "--whole")[1]
    read.info["here"] = ["clinic"]  # as it is between machines
    with pytest.raises(vt.VitrailError, match="on other machines"):
        read.explain(40, tables, whole=True)


def test_neighbours_are_explained_by_every_column_too(place: Path) -> None:
    study = vt.Study.load(place / "study.toml").with_changes(method={"name": "vertical_knn"})
    run = vt.together(study, read_parties(place / "parties", study))
    values = []
    for outcome in ("yes", "no"):
        e = run.explain(5, outcome=outcome, whole=True)
        assert e.whole is not None
        of_all = e.whole.explanation
        assert np.allclose(of_all.total, e.total, atol=1e-9), "the same vote"
        assert np.allclose(of_all.base_values, e.base_values, atol=1e-9)
        assert "lab: crp_of_lab" in of_all.feature_names
        values.append(of_all.values)
    assert np.allclose(values[0], -values[1])


def test_two_answers_of_a_guest_for_a_row_and_none_twice(place: Path) -> None:
    """With no epoch of its own at the end the host has heard nothing that was said with the last weights."""
    study = vt.Study.parse(
        {**vt.Study.load(place / "study.toml").model_dump(), "method": {"name": "split", "alone": 0}}
    )
    told = vt.together(study, read_parties(place / "parties", study))
    known, off = told.scored, 1

    def answers() -> int:
        rows = told.ledger[told.ledger.stage.isin(["scoring", "afterwards"]) & (told.ledger.message == "Levels")].rows
        return int(rows.sum())

    assert answers() == known + off
    ids = [told.model.people[i] for i in told.terms.train[:30].tolist()]
    told.explain(ids)
    assert answers() == known + off + 30, "on, once each; off was said for all"
    told.explain(ids)
    assert answers() == known + off + 30
    told.explain(known)
    assert answers() == known + off + 30, "by lot, those first who cost nothing"


def test_shap_draws_it(finished: Path) -> None:
    shap = pytest.importorskip("shap")
    read = VerticalRun.load(finished / "run")
    drawn = read.explain(40, read_parties(finished / "parties", read.study)).for_shap()
    assert isinstance(drawn, shap.Explanation)
    assert drawn.feature_names == ["age", "sex", "lab"]


@pytest.mark.parametrize("method", ["split", "vertical_knn"])
def test_the_other_methods_run_too(place: Path, method: str) -> None:
    code, told = start(place, "--method", method)
    assert code == 0, told
    if method == "vertical_knn":
        assert "Distances give the guest's columns away" in told
        assert "Distances give the guest’s" in (place / "run/report.html").read_text().replace("&#39;", "’")
    people()["clinic"][40:43].to_csv(place / "new.csv", index=False)
    code, told = vitrail("predict", place / "run", place / "new.csv", "--data", place / "parties")
    assert code == 0, told
    assert told.count("answer") == 3
    assert vitrail("explain", place / "run", "--rows", 20, "--out", place / "e.html")[0] == 0
    assert start(place)[0] == 2, "nothing is overwritten"


def test_neighbours_are_those_of_the_joined_table(place: Path) -> None:
    sklearn = pytest.importorskip("sklearn.neighbors")
    study = vt.Study.load(place / "study.toml").with_changes(method={"name": "vertical_knn", "k": 7})
    told = vt.together(study, read_parties(place / "parties", study))
    sides = told.sides
    assert sides is not None
    assert sides.knn is not None
    x = torch.cat([sides.knn.columns, *(g.columns for g in sides.knn.guests)], 1).numpy()
    y, train, test = sides.knn.y.numpy(), told.terms.train.numpy(), told.terms.test
    central = sklearn.KNeighborsClassifier(7).fit(x[train], y[train])
    assert np.allclose(central.predict_proba(x[test.numpy()])[:, 1], sides.knn.predict(test).numpy())


def test_numbers_and_three_classes(place: Path) -> None:
    tables = people()
    raw = vt.Study.load(place / "study.toml").model_dump()
    for kind in ("number", "classes"):
        target: dict[str, Any] = {"column": "sick", "kind": kind}
        outcome = tables["lab"].set_index("pid").crp_of_lab.reindex(tables["clinic"].patient).fillna(0).to_numpy()
        if kind == "classes":
            target["classes"], outcome = (
                ["low", "mid", "high"],
                np.array(["low", "mid", "high"])[np.digitize(outcome, [-0.5, 0.5])],
            )
        parties = {**raw["parties"], "lab": {**raw["parties"]["lab"], "answer": 2 if kind == "classes" else 1}}
        given = {**raw, "target": target, "metrics": (), "parties": parties}
        told = vt.together(vt.Study.parse(given), {**tables, "clinic": tables["clinic"].assign(sick=outcome)})
        scores = told.scores[told.scores.metric == ("accuracy" if kind == "classes" else "r2")].set_index("model")
        assert scores.gain_low["together"] > 0.1, scores
    with pytest.raises(vt.VitrailError, match=r"parties\.lab\.answer: .* 2 numbers for 3 classes, got 1"):
        vt.together(
            vt.Study.parse({**given, "parties": raw["parties"]}),
            {**tables, "clinic": tables["clinic"].assign(sick=outcome)},
        )


def test_two_guests(place: Path) -> None:
    raw, tables = vt.Study.load(place / "study.toml").model_dump(), people()
    lab = tables["lab"]
    parts = {"lab": lab[["pid", "crp_of_lab"]], "ward": lab[["pid", "ward_of_lab"]][::-1]}
    given = {**raw, "parties": {**raw["parties"], "ward": raw["parties"]["lab"]}}
    told = vt.together(vt.Study.parse(given), {"clinic": tables["clinic"], **parts})
    scores = told.scores[told.scores.metric == "auc"].set_index("model").value
    assert list(scores.index) == ["host alone", "together", "lab away", "ward away", "majority"]
    assert scores["together"] > scores["ward away"] - 0.02 > scores["lab away"]
    assert told.explain(20).united == ("lab", "ward")
    away = told.predict(tables["clinic"][40:45], without=["ward"])
    assert away.table.lab.tolist() == ["answer"] * 5
    assert away.table.ward.tolist() == ["reference"] * 5


# laws


def test_the_order_of_rows_changes_nothing(place: Path) -> None:
    study = vt.Study.load(place / "study.toml")
    tables = people()
    mixed = {p: f.sample(frac=1, random_state=3) for p, f in tables.items()}
    one, other = vt.together(study, tables), vt.together(study, mixed)
    pd.testing.assert_frame_equal(one.scores, other.scores)
    new = tables["clinic"][100:110]
    pd.testing.assert_frame_equal(one.predict(new).table, other.predict(new).table)


def test_a_run_that_was_stopped_ends_as_one_in_one_go(place: Path) -> None:
    study = vt.Study.load(place / "study.toml")
    tables = read_parties(place / "parties", study)
    whole = vt.together(study, tables, out=place / "whole")
    with pytest.raises(KeyboardInterrupt):
        vt.together(study, tables, out=place / "run", progress=killed(9))
    with pytest.raises(vt.VitrailError, match="not finished"):
        VerticalRun.load(place / "run")
    assert "the folder is not empty" in start(place)[1]
    code, told = start(place, "--resume")
    assert code == 0, told
    again = VerticalRun.load(place / "run")
    pd.testing.assert_frame_equal(again.scores, whole.scores)
    assert torch.equal(again.model.guest_answers["lab"], whole.model.guest_answers["lab"])
    assert again.ledger.bytes.sum() > whole.ledger.bytes.sum(), (
        "the step that was repeated crossed twice, and is counted"
    )
    before = files(place / "run")
    assert start(place, "--resume")[0] == 0, "a finished run is shown again"
    after = files(place / "run")
    assert {k: v for k, v in after.items() if k != "report.html"} == {
        k: v for k, v in before.items() if k != "report.html"
    }
    assert "a different study or seed" in start(place, "--resume", "--seed", 5)[1]


def test_a_run_that_was_stopped_before_its_first_checkpoint(place: Path) -> None:
    study = vt.Study.load(place / "study.toml")
    with pytest.raises(KeyboardInterrupt):
        vt.together(study, read_parties(place / "parties", study), out=place / "run", progress=killed(1))
    assert start(place, "--resume")[0] == 0
    ledger = VerticalRun.load(place / "run").ledger
    assert set(ledger.stage) == {"match", "training", "scoring"}
    asked = ledger[(ledger.stage == "training") & (ledger.message == "Levels")].messages
    assert int(asked.sum()) == 22, "20 epochs, once more, and the first that was repeated"


def test_rows_without_an_outcome_weigh_nothing(place: Path) -> None:
    """They are in common all the same; what stands beside them changes nothing."""
    study, tables = vt.Study.load(place / "study.toml"), people()
    host = tables["clinic"].assign(sick=[None if i % 5 == 0 else v for i, v in enumerate(tables["clinic"].sick)])
    told = vt.together(study, {**tables, "clinic": host})
    assert told.match.common == 410
    assert told.scores[told.scores.model == "together"].gain.iloc[0] > 0.1
    sides = told.sides
    assert sides is not None
    lost = sides.host.host.w[:, 0] == 0
    assert 70 < int(lost.sum()) < 90
    assert not bool(torch.isnan(sides.host.host.params["weight"]).any())


def test_a_broken_checkpoint_is_told_in_words(place: Path) -> None:
    study = vt.Study.load(place / "study.toml")
    with pytest.raises(KeyboardInterrupt):
        vt.together(study, read_parties(place / "parties", study), out=place / "run", progress=killed(9))
    last = sorted((place / "run/parties/lab").glob("step-*"))[-1]
    whole = last.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"{}"):
        last.write_bytes(broken)
        code, told = start(place, "--resume")
        assert code == 2
        assert str(last) in told
        assert "incomplete, damaged, or belongs to another training" in told
    last.unlink()
    assert start(place, "--resume")[0] == 0, "from the state before"
