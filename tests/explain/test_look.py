"""Phase C: a site's own rows behind its marks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import vitrail as vt
from vitrail.explain.look import look
from vitrail.runs.fit import ShiftFinding


def finding(feature: str, kind: str) -> ShiftFinding:
    return ShiftFinding("hungarian", feature, kind, 1.0, 0.99, f"hungarian, {feature}: something")


def test_missing_in_one_class_is_named() -> None:
    """Budapest measured the slope of the ECG in most of the sick and few of the healthy: the data's own fault."""
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    text = look(vt.datasets.heart_disease()["hungarian"], study, [finding("slope", "recoded")])
    assert "Most likely: missing in one class more than in the other" in text
    assert "84 % missing" in text
    assert "31 % missing" in text


def test_disguised_missing_is_named_and_drawn() -> None:
    study = vt.Study.infer(vt.datasets.heart_disease(), "disease")
    features = {k: v.model_dump() for k, v in study.features.items()}
    features["chol"] = {"kind": "numeric", "range": (80.0, 700.0), "unit": "mg/dL"}
    study = study.with_changes(features=features)
    text = look(vt.datasets.heart_disease()["va"], study, [finding("chol", "shifted")])
    assert "Most likely: missing values coded as a number" in text
    assert "mg/dL" in text
    assert "█" in text


def test_label_shares_and_silence() -> None:
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    frame = vt.datasets.heart_disease()["cleveland"]
    share = 100 * np.mean(frame.disease == 1)
    text = look(frame, study, [finding("(label)", "swapped label")])
    assert f"1 {share:.0f} %" in text
    assert "is yes written as no?" in text
    assert "fits as well as chance allows" in look(frame, study, [])


def test_look_on_the_command_line(tmp_path) -> None:
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml")).with_changes(training={"rounds": 5})
    vt.federate(study, vt.datasets.heart_disease(), method="ifedavg", out=tmp_path / "run")
    vt.datasets.heart_disease()["cleveland"].to_csv(tmp_path / "ours.csv", index=False)
    words = [sys.executable, "-m", "vitrail.cli", "look", tmp_path / "run", "--data", tmp_path / "ours.csv", "--site"]
    done = subprocess.run([*words, "cleveland"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "This stays at cleveland." in done.stdout
    wrong = subprocess.run([*words, "clevland"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "Did you mean 'cleveland'" in wrong.stderr
