"""People with several rows or pictures, found where a study does not name them, and read where it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import vitrail as vt
from vitrail.data.drafting.features import infer_table, read_drafts
from vitrail.data.persons import persons_of
from vitrail.data.readers.tables import clean, read_sites
from vitrail.quality.checks.table import find_faults


def longitudinal(seed: int = 0, people: int = 50) -> pd.DataFrame:
    r = np.random.default_rng(seed)
    whose = np.repeat(np.arange(people), r.integers(2, 6, people))
    frame = pd.DataFrame({"sex": r.integers(0, 2, people)[whose], "age": r.integers(30, 80, people)[whose]})
    for name in ("hb", "crp", "sodium", "bmi"):
        frame[name] = (r.normal(10, 2, people)[whose] + 0.02 * r.normal(size=len(whose))).round(3)
    return frame.assign(died=r.integers(0, 2, people)[whose], who=whose)


@pytest.mark.parametrize("name", ["patient_id", "subject", "case_no", "export"])
def test_init_takes_ids_that_repeat_for_persons(name: str) -> None:
    sites = {}
    for k in range(2):
        frame = longitudinal(k)
        sites[f"s{k}"] = frame.drop(columns="who").assign(**{name: 10_000 + frame.who})
    draft = infer_table(sites, "died")
    assert draft.content["person"] == name
    assert name not in draft.content["features"]
    assert any(f"{name} repeats" in note and "person" in note for note in draft.notes)
    study = vt.Study.parse(draft.content)
    assert not [f for f in find_faults(sites["s0"], study) if f.column == name]
    without = vt.Study.parse({k: v for k, v in draft.content.items() if k != "person"})
    found = [f for f in find_faults(sites["s0"], without) if f.kind == "repeated_persons"]
    assert [f.column for f in found] == [name]
    assert f'person = "{name}"' in found[0].hint


def test_a_ward_of_few_rows_does_not_hide_ids_that_repeat() -> None:
    """With one site of 8 rows among the others, the patient's number was drafted as a feature."""
    sites = {}
    for k, people in enumerate((50, 50, 3)):
        frame = longitudinal(k, people)
        sites[f"s{k}"] = frame.drop(columns="who").assign(subject_id=10_000 + frame.who)
    assert len(sites["s2"]) < 20
    draft = infer_table(sites, "died")
    assert draft.content["person"] == "subject_id"
    assert "subject_id" not in draft.content["features"]


@pytest.mark.parametrize("name", ["patient_id", "mrn", "case_no", "encounter_id", "Fallnummer"])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.06, 0.5])
def test_ids_are_no_features_however_often_they_repeat(name: str, share: float) -> None:
    """Between all different and often the same there was a gap: a number of which one in thirty came twice was drafted
    as a feature."""
    sites, come_back = {}, 0
    for k in range(3):
        r = np.random.default_rng(k)
        who = np.where(r.random(300) < share, r.integers(0, 300, 300), np.arange(300))
        come_back += int(pd.Series(who).duplicated(keep=False).sum())
        frame = pd.DataFrame({"age": r.integers(20, 90, 300)[who], "hb": r.normal(13, 2, 300).round(1)})
        sites[f"s{k}"] = frame.assign(died=r.integers(0, 2, 300), **{name: 10_000 + 7 * who})
    draft = infer_table(sites, "died")
    assert set(draft.content["features"]) == {"age", "hb"}
    if name in ("patient_id", "mrn"):  # the name says whose it is: then a few rows are enough
        assert ("person" in draft.content) == (come_back > 0)


def test_check_notices_visits_that_are_nearly_the_same() -> None:
    frame = longitudinal().drop(columns="who")
    study = vt.Study.parse(infer_table({"a": frame, "b": frame}, "died").content)
    assert any(f.kind == "nearly_same_rows" for f in find_faults(frame, study))
    alone = frame.groupby(["sex", "age", "died"], as_index=False).first()[frame.columns]
    assert not any(f.kind == "nearly_same_rows" for f in find_faults(alone, study))


def test_independent_rows_are_not_taken_for_visits() -> None:
    """Of 60 tables with one row for each patient, of numbers, codes and counts, none is told to have persons."""
    told = 0
    for seed in range(60):
        r = np.random.default_rng(seed)
        n = 200
        frame = pd.DataFrame({"age": r.integers(20, 90, n), "sex": r.integers(0, 2, n), "ward": r.integers(0, 5, n)})
        frame = frame.assign(
            weight=r.integers(45, 120, n), grams=r.integers(2000, 4500, n), hb=r.normal(13, 2, n).round(1)
        )
        frame = frame.assign(
            num_children=r.integers(0, 5, n), zip_code=r.integers(1000, 1100, n), y=r.integers(0, 2, n)
        )
        draft = infer_table({"a": frame, "b": frame.sample(frac=1, random_state=seed)}, "y")
        assert "num_children" in draft.content["features"]
        kinds = {f.kind for f in find_faults(frame, vt.Study.parse(draft.content))}
        told += "person" in draft.content or bool(kinds & {"repeated_persons", "nearly_same_rows"})
    assert told == 0


def write_pictures(root: Path, index: bool = False) -> None:
    r = np.random.default_rng(0)
    for site in ("north", "south"):
        lines = ["file,patient"]
        for person in range(12):
            folder = root / site / ("ill" if person % 2 else "well")
            folder.mkdir(parents=True, exist_ok=True)
            for shot in range(3):
                name = f"{person}{shot}.png" if index else f"p{person:02d}_{shot}.png"
                Image.fromarray(r.integers(0, 255, (16, 16), np.uint8)).save(folder / name)
                lines.append(f"{folder.name}/{name},p{person}")
        if index:
            (root / site / "index.csv").write_text("\n".join(lines))


@pytest.mark.parametrize("index", [False, True])
def test_pictures_of_one_person_stay_together(tmp_path: Path, index: bool) -> None:
    write_pictures(tmp_path, index)
    given: dict[str, Any] = {"person": "patient"} if index else {}
    images = {"size": [16, 16]} | ({} if index else {"person": r"(p[0-9]+)_"})
    target = {"column": "finding", "classes": ["well", "ill"]}
    study = vt.Study.parse({"target": target, "images": images, "training": {"rounds": 1}, **given})
    sites = read_sites(tmp_path, study)
    run = vt.federate(study, sites, "fedavg", seed=1)
    assert set(run.sizes.train_persons + run.sizes.test_persons) == {12}
    held = run.held_out()
    people = held.row.str.extract(r"/p?(\d+)(?:_\d)?\.png")[0].str.slice(0, 2 if not index else None)
    people = people.str[:-1] if index else people
    assert (held.assign(person=people).groupby(["site", "person"]).size() == 3).all()
    assert not [f for f in find_faults(sites["north"], study) if f.kind in ("extra_column", "passed_over")]


def test_init_drafts_whose_pictures_they_are(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    draft = infer_table(read_drafts([tmp_path], "finding"), "finding")
    study = vt.Study.parse(draft.content)
    assert study.person_column
    assert "the 72 pictures show 24 people" in draft.notes[-1]
    rows = clean(read_sites(tmp_path, study)["north"], study)
    whose = persons_of(rows, study)
    assert whose is not None
    assert len(set(whose)) == 12
