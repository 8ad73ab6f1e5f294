"""A frozen backbone: its maps are computed once for each picture, kept, and stand in for pictures in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.stripes import stripes
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.nets import ProtoNet
from vitrail.nets.efficientnet import EfficientNet, _layers
from vitrail.runs.setup import resolve


def drawn(place: Path, seed: int) -> Path:
    """A file of weights as the real one, of numbers drawn here."""
    g, held = torch.Generator().manual_seed(seed), {}
    blank = EfficientNet(3, "").state_dict()
    for ours, (theirs, norm) in _layers().items():
        w = blank[f"{ours}.weight"]
        held[f"{theirs}.weight"] = torch.randn(w.shape, generator=g) * (2 / w[0].numel()) ** 0.5
        held |= {f"{norm}.{k}": torch.ones(len(w)) for k in ("weight", "running_var")}
        held |= {f"{norm}.{k}": torch.zeros(len(w)) for k in ("bias", "running_mean")}
    torch.save(held, place)
    return place


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> vt.Study:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return vt.Study.parse(
        {
            "name": "frozen",
            "seeds": (1,),
            "target": {"column": "finding", "classes": ("plain", "stripes"), "positive": "stripes"},
            "images": {"size": (32, 32), "fit": "resize"},
            "split": {"at_least": 0},
            "network": {
                "kind": "prototypes",
                "weights": str(drawn(tmp_path / "some.pth", 1)),
                "frozen": True,
                "latent": 8,
            },
            "training": {"rounds": 2, "batch": 8},
            "method": {"name": "indisco", "warm": 1, "share": "all"},
        }
    )


SITES = stripes({"east": 12, "north": 16, "south": 12})


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "vitrail" / "features").iterdir())


def test_maps_are_computed_once_and_give_the_same(
    study: vt.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = vt.federate(study, SITES)
    files = kept(tmp_path)
    assert len(files) == 3, "one for each site"
    assert all("features." not in k for model in one.models.values() for k in model), "nothing of it is trained or sent"

    def never(net: ProtoNet, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr(ProtoNet, "features_of", never)
        again = vt.federate(study, SITES)
        other_split = vt.federate(study, SITES, seed=7)
        turned = vt.federate(study, {k: v.iloc[::-1] for k, v in SITES.items()}, seed=7)
    assert kept(tmp_path) == files
    pd.testing.assert_frame_equal(one.history, again.history)
    assert not one.history.value.equals(other_split.history.value)
    assert len(turned.history) == len(one.history)
    files[0].write_bytes(b"half a file")
    pd.testing.assert_frame_equal(vt.federate(study, SITES).history, one.history)


def test_other_weights_and_other_pictures_are_not_taken_for_these(study: vt.Study, tmp_path: Path) -> None:
    vt.federate(study, SITES)
    vt.federate(study.with_changes(network={"weights": str(drawn(tmp_path / "other.pth", 2))}), SITES)
    assert len(kept(tmp_path)) == 6
    changed = SITES["east"].copy()
    changed["picture"] = [np.where(np.arange(16) == 3, 9, p).astype(np.uint8) for p in changed.picture]
    vt.federate(study, {**SITES, "east": changed})
    assert len(kept(tmp_path)) == 7


def test_predictions_are_made_of_pictures(study: vt.Study) -> None:
    """What the run scored by maps of half precision, it says again of the pictures themselves."""
    run = vt.federate(study, SITES)
    frame = SITES["north"]
    said = run.predict("north", frame)
    assert said[["plain", "stripes"]].to_numpy().sum(1) == pytest.approx(1.0, abs=1e-6)
    assert len(said) == len(frame)


def test_what_is_agreed_on_names_the_file_and_does_not_hold_it(study: vt.Study, tmp_path: Path) -> None:
    resolved, _ = resolve(study, "indisco", None)
    one = Agreement.of(resolved, 1, 3)
    form = contract_text(one, "east", list(SITES), publishes=True)
    said = "".join(form.split())
    assert one.weights in said
    assert len(one.weights) == 64
    before = one.hash
    drawn(tmp_path / "some.pth", 2)  # another file under the same name
    other = Agreement.of(resolved, 1, 3)
    assert other.hash != before
    assert other.weights != one.weights
    assert not any(line.name.startswith("change/features") for line in one.lines)


def test_augmenting_what_is_frozen_is_refused(study: vt.Study) -> None:
    with pytest.raises(vt.VitrailError, match="augmented anew"):
        study.with_changes(images={"augment": ("flip",)})
