"""What an earlier release wrote is read by this one, and what a later one writes is told, not misread.

`kept/VERSION` was written by that release: a study, a run, one site's rows and what its model said of them.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import BaseModel

import vitrail as vt
from vitrail.report.pages.builder import write_report
from vitrail.runs.integrity import seal_again, verify_folder
from vitrail.storage import format_versions
from vitrail.study.model import Study

KEPT = Path(__file__).parent / "kept"
RELEASES = sorted(p for p in KEPT.iterdir() if p.is_dir())


@pytest.mark.parametrize("kept", RELEASES, ids=lambda p: p.name)
def test_a_run_of_a_release_before_is_read(kept: Path, tmp_path: Path) -> None:
    run = vt.Run.load(kept / "run")
    rows, said = pd.read_csv(kept / "Lyon.csv"), pd.read_csv(kept / "lyon.csv")
    assert (run.predict("Lyon", rows)["yes"] - said["yes"]).abs().max() < 1e-6
    assert verify_folder(kept / "run").wrong == []
    assert "Lyon" in write_report(run, tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("kept", RELEASES, ids=lambda p: p.name)
def test_a_study_of_a_release_before_is_read(kept: Path) -> None:
    study = Study.load(kept / "study.toml")
    again = Study.parse(tomllib.loads(study.to_toml()))
    assert again == study
    assert f'format = "{format_versions.STUDY}"' in study.to_toml()


@pytest.mark.parametrize(("said", "told"), [("2.0", "reads 1."), ("new", "two numbers"), (True, "two numbers")])
def test_a_study_of_another_kind_is_told(said: object, told: str) -> None:
    with pytest.raises(vt.VitrailError, match="cannot be read") as caught:
        Study.parse({"format": said, "whatever": 1})
    assert told in str(caught.value)


def test_a_newer_study_is_read_where_it_says_nothing_new(tmp_path: Path) -> None:
    text = (KEPT / "0.1.0" / "study.toml").read_text()
    newer = f'format = "{format_versions.STUDY.split(".")[0]}.999"\n'
    (tmp_path / "s.toml").write_text(newer + text)
    assert Study.load(tmp_path / "s.toml") == Study.parse(tomllib.loads(text))
    (tmp_path / "s.toml").write_text(newer + "of_tomorrow = 1\n" + text)
    with pytest.raises(vt.VitrailError, match="newer than the formats that this Vitrail reads") as caught:
        Study.load(tmp_path / "s.toml")
    assert "of_tomorrow" in str(caught.value)


def test_a_run_of_another_kind_is_told(tmp_path: Path) -> None:
    shutil.copytree(KEPT / "0.1.0" / "run", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "format": "2.0"}))
    seal_again(tmp_path / "run", "changed")
    with pytest.raises(vt.VitrailError, match=r"run folder of format 2\.0"):
        vt.Run.load(tmp_path / "run")


def keys_of(model: Any, before: str = "") -> list[str]:
    """Every key of the study file, from the types."""
    out = []
    for name, field in model.model_fields.items():
        inner = [a for a in _types(field.annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
        out += [f"{before}{name}", *(k for m in inner for k in keys_of(m, f"{before}{name}."))]
    return out


def _types(annotation: Any) -> list[Any]:
    return [annotation, *(t for a in getattr(annotation, "__args__", ()) for t in _types(a))]


def test_a_new_key_is_a_new_format() -> None:
    """After a key was added, raise the second number of formats.STUDY (the first where one went or means otherwise) and
    write `python tests/test_kept.py`'s output to kept/study_keys.json."""
    known = json.loads((KEPT / "study_keys.json").read_text())
    assert known == {"format": format_versions.STUDY, "keys": sorted(keys_of(Study))}


if __name__ == "__main__":
    print(json.dumps({"format": format_versions.STUDY, "keys": sorted(keys_of(Study))}, indent=1))
