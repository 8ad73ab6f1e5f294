"""A site's model as a file answers as the model does, whatever the network and the method; and says so before it is
written."""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.export import onnx as onnx_file
from vitrail.export import safe_file
from vitrail.export import torch as torch_file
from vitrail.export.description import describe
from vitrail.export.onnx import build_onnx, difference, run_onnx, spellings, trial_rows, write_onnx
from vitrail.export.program import Program, trace_model
from vitrail.export.safe_file import read_safe, write_safe
from vitrail.export.torch import ABOUT, given_rows, write_torch
from vitrail.export.writer import export_model
from vitrail.runs.result import Model

WORDS = ("never", "Once", "often, or more")
FEATURES = {
    "age in years": {"kind": "numeric", "missing": (-9, 999)},
    "answers": {"kind": "numeric"},  # as the file's own output would be called
    "smokes": {"kind": "binary", "categories": ("no", "yes")},
    "grade": {"kind": "categorical", "categories": (1, 2, 3), "missing": ("unknown",)},
    "visits": {"kind": "categorical", "categories": WORDS},
}


def make_frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, rows)
    sick = np.where(age + rng.normal(0, 8, rows) > 60, "sick", "well")
    frame = pd.DataFrame({"age in years": age, "answers": rng.normal(1e6, 3, rows), "outcome": sick})
    for name, of in FEATURES.items():
        if "categories" in of:
            frame[name] = rng.choice([str(c) for c in of["categories"]], rows)
    return frame


@cache
def site_model(method: str = "ifedavg", loss: str = "evidence", number: bool = False) -> Model:
    sites = {name: make_frame(40, i) for i, name in enumerate(("north", "south"))}
    target = {"column": "outcome", "classes": ("well", "sick"), "positive": "sick"}
    if number:
        target = {"column": "outcome", "kind": "number", "center": 100.0, "scale": 20.0}
        sites = {k: f.assign(outcome=f["age in years"] * 2) for k, f in sites.items()}
    training = {"rounds": 2, **({} if number else {"loss": loss})}
    given = {"target": target, "features": FEATURES, "training": training, "network": {"hidden": (5,)}}
    study = vt.Study.parse({**given, "screen": {"ask": False}})
    return vt.federate(study, sites, method=vt.methods.build(method, {})).model_of("north")


@pytest.fixture(autouse=True, scope="module")
def calm_torch() -> None:
    """Torch traces slowly while somebody reads its log, as pytest does."""
    logging.getLogger("torch").setLevel(logging.WARNING)
    logging.getLogger("torch.__trace").setLevel(logging.WARNING)


@cache
def traced(method: str = "ifedavg", loss: str = "evidence", number: bool = False) -> Program:
    return trace_model(site_model(method, loss, number))


@cache
def written(method: str = "ifedavg", loss: str = "evidence", number: bool = False) -> bytes:
    mine = site_model(method, loss, number)
    return build_onnx(mine, traced(method, loss, number), describe(mine, "north", "run")).SerializeToString()


def answers(raw: bytes, frame: pd.DataFrame, mine: Model) -> np.ndarray:
    return np.column_stack([np.asarray(t, float).reshape(len(frame), -1) for t in run_onnx(raw, frame, mine.study)])


def texts(name: str) -> st.SearchStrategy[str]:
    known = list(spellings(site_model().study.features[name]))
    return st.sampled_from(known) | st.text(max_size=6)


ROW = st.fixed_dictionaries(
    {
        "age in years": st.floats(-1e6, 1e6) | st.sampled_from([np.nan, -9.0, 999.0, np.inf]),
        "answers": st.floats(width=32, allow_infinity=False) | st.just(np.nan),
        **{name: st.deferred(lambda name=name: texts(name)) for name in ("smokes", "grade", "visits")},
    }
)


@given(st.lists(ROW, min_size=1, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_onnx_answers_as_we_do_or_not_at_all(rows) -> None:
    """Never another answer than ours: of a row that we refuse, and of a spelling that it does not know, none."""
    mine, frame = site_model(), pd.DataFrame(rows).astype(object)
    theirs = answers(written(), frame, mine)
    words = [name for name, of in FEATURES.items() if "categories" in of]
    known = frame[words].apply(lambda c: c.isin(list(spellings(mine.study.features[c.name]))))
    fits = known.all(axis=1).to_numpy() & np.isfinite(frame["age in years"].astype(float).fillna(0.0)).to_numpy()
    assert np.isnan(theirs[~fits]).all()
    if fits.any():  # a row that we would refuse is refused here, and the test fails
        assert difference(mine.predict(frame[fits]).to_numpy(float), theirs[fits]) <= 1e-5


@pytest.mark.parametrize("name", [name for name, of in FEATURES.items() if "categories" in of])
def test_spellings_are_those_of_our_own_reading(name) -> None:
    feature = site_model().study.features[name]
    told = spellings(feature)
    assert {told[level] for level in feature.levels} == {float(i) for i in range(len(feature.levels))}
    assert np.isnan([told[word] for word in ("", "NA", "?")]).all()
    assert "no such level" not in told


def test_onnx_holds_every_kind_of_model(tmp_path) -> None:
    """A mix of scores, of a number, is compared with ours as it is written; with all other methods it was tried."""
    for method, loss, number in (("agreed_mix", "likelihood", True),):
        mine = site_model(method, loss, number)
        assert write_onnx(mine, tmp_path / f"{method}.onnx", describe(mine, "north", "run")) <= 1e-5
        assert answers((tmp_path / f"{method}.onnx").read_bytes(), trial_rows(mine), mine).std() > 0


def test_the_time_to_an_event_leaves_as_it_is_predicted(tmp_path) -> None:
    """The risk first, then every end; and a table of numbers alone, without codes."""
    rng = np.random.default_rng(1)
    sites = {n: pd.DataFrame({"x": rng.normal(size=40), "days": rng.uniform(1, 90, 40)}) for n in ("north", "south")}
    sites = {n: f.assign(died=(f.x > 0).astype(int)) for n, f in sites.items()}
    target = {"column": "died", "kind": "time", "time": "days", "event": "died", "horizon": 60.0, "intervals": 3}
    small = {"network": {"kind": "linear"}, "training": {"rounds": 1}}
    study = vt.Study.parse({"target": target, "features": {"x": {"kind": "numeric"}}, **small})
    mine = vt.federate(study, sites, method="fedavg").model_of("north")
    about = describe(mine, "north", "run")
    assert about["ends"] == [20.0, 40.0, 60.0]
    assert write_onnx(mine, tmp_path / "m.onnx", about) <= 1e-5
    assert write_torch(mine, tmp_path / "m.pt2", about) <= 1e-5


def test_onnx_is_refused_where_it_answers_otherwise(tmp_path, monkeypatch) -> None:
    wrong = site_model()
    scale = {**wrong.encoder.mean, "age in years": wrong.encoder.mean["age in years"] + 0.01}
    other = wrong._replace(encoder=type(wrong.encoder)(wrong.study, scale, wrong.encoder.sd))
    monkeypatch.setattr(onnx_file, "trace_model", lambda _: traced())
    with pytest.raises(VitrailError, match="differ from the model's"):
        write_onnx(other, tmp_path / "model.onnx", {})
    assert not list(tmp_path.iterdir())


def test_a_step_that_has_no_onnx_is_named(monkeypatch) -> None:
    from vitrail.export import onnx_graph

    monkeypatch.delitem(onnx_graph.TABLE, "tanh.default")
    mine = site_model()
    with pytest.raises(VitrailError, match=r"cannot be written as ONNX: aten\.tanh\.default"):
        build_onnx(mine, traced(), {})


def test_torch_reads_it_back(tmp_path, monkeypatch) -> None:
    mine, file = site_model(), tmp_path / "model.pt2"
    monkeypatch.setattr(torch_file, "trace_model", lambda _: traced())
    assert write_torch(mine, file, describe(mine, "north", "run")) <= 1e-5
    extra = {ABOUT: ""}
    told = torch.export.load(file, extra_files=extra).module()(given_rows(mine, trial_rows(mine)))
    assert told[0].shape == (64, 2)
    assert json.loads(extra[ABOUT])["features"]["visits"]["levels"] == list(WORDS)
    nowhere = torch.tensor([[60.0, 1e6, 2.0, 0.0, 0.0]], dtype=torch.float64)  # smokes has places 0 and 1
    assert torch.export.load(file).module()(nowhere)[0].isnan().all()


def test_a_network_of_pictures() -> None:
    """With its pooling and its normalisation."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (12, 1, 16, 16), dtype=np.uint8)
    frame = pd.DataFrame({"picture": list(pixels), "kind": ["a", "b"] * 6})
    given = {"images": {"size": (16, 16), "normalise": "picture"}, "network": {"kind": "cnn", "width": 2}}
    target = {"column": "kind", "classes": ("a", "b")}
    study = vt.Study.parse({"target": target, **given, "training": {"rounds": 1, "class_weights": "none"}})
    mine = vt.federate(study, {"north": frame, "south": frame}, method=vt.methods.build("fedavg", {})).model_of("north")
    assert onnx_file.compare(mine, build_onnx(mine, trace_model(mine), {}).SerializeToString()) <= 1e-5


def test_the_safe_file_is_the_model(tmp_path) -> None:
    mine, file = site_model(), tmp_path / "model.vitrail"
    export_model(mine, "north", "run 1", file)
    taken = read_safe(file)
    rows = trial_rows(mine)
    pd.testing.assert_frame_equal(taken.model.predict(rows), mine.predict(rows))
    assert (taken.site, taken.run) == ("north", "run 1")
    with pytest.raises(VitrailError, match="exists already"):
        export_model(mine, "north", "run 1", file)


def test_the_safe_file_refuses_changed_bytes(tmp_path) -> None:
    mine, file = site_model(), tmp_path / "model.vitrail"
    write_safe(mine, file, describe(mine, "north", "run"))
    raw = file.read_bytes()
    rng = np.random.default_rng(3)
    for at in [0, 8, 60, len(raw) - 1, *rng.integers(0, len(raw), 40).tolist()]:
        file.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(VitrailError, match="cannot read the model"):
            read_safe(file)
    for other in (b"", raw[:-1], raw + b" ", b"PK" + raw):
        file.write_bytes(other)
        with pytest.raises(VitrailError, match="cannot read the model"):
            read_safe(file)


def test_a_safe_file_that_means_harm_is_refused_in_words(tmp_path) -> None:
    """With a right mark: another study's tensors, a file of this machine as weights, no JSON where JSON is."""
    import hashlib

    from safetensors.torch import load, save

    mine, file = site_model(), tmp_path / "model.vitrail"
    write_safe(mine, file, describe(mine, "north", "run"))
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    said = json.loads(json.loads(raw[8 : 8 + size])["__metadata__"]["vitrail"])

    def sealed(words: object, tensors: dict[str, torch.Tensor]) -> bytes:
        made = save(tensors, {"vitrail": json.dumps(words), safe_file.MARK: safe_file.NO_MARK})
        return made.replace(safe_file.NO_MARK.encode(), hashlib.sha256(made).hexdigest().encode(), 1)

    tensors = load(raw)
    for words, held in (
        (said, {k: v.flatten()[:1] for k, v in tensors.items()}),
        ({**said, "study": said["study"].replace("[network]", '[network]\nweights = "/etc/passwd"')}, tensors),
        ({**said, "method": {"name": "none such", "settings": {}}}, tensors),
        ({**said, "mean": 3}, tensors),
        ([], tensors),
    ):
        file.write_bytes(sealed(words, held))
        with pytest.raises(VitrailError):
            read_safe(file)
    file.write_bytes(sealed(said, tensors))
    assert read_safe(file).site == "north"


def test_other_endings_are_told() -> None:
    with pytest.raises(VitrailError, match=r"ends in \.onnx, \.pt2, \.vitrail"):
        export_model(site_model(), "north", "run", Path("model.pkl"))
