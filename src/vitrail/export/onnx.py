"""A site's model as ONNX, with everything inside: raw columns in, shares of classes or a number out.

One input for each of the study's columns, named as there: numbers as float64 (NaN where missing), categories as text
("" where missing). A text that is none of the study's spellings gets no answer (NaN); `vitrail predict` refuses it.
Before a file is called written, onnxruntime reads it and must give what our own model gives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.cells import MISSING_WORDS, as_levels
from vitrail.data.schema import Feature
from vitrail.export.onnx_graph import OPSET, Graph, convert, onnx_kind
from vitrail.export.program import Program, trace_model
from vitrail.runs.result import Model
from vitrail.storage.atomic_files import write_atomically

ML, ML_OPSET, IR = "ai.onnx.ml", 3, 10
CLOSE = 1e-5  # by how much its answers may be other than ours
PICTURE = "picture"


def need_onnx() -> None:
    """Both packages, or in words what to install."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        what, hint = "the packages onnx and onnxruntime are not installed.", "pip install 'vitrail[export]'"
        raise VitrailError("cannot export to ONNX", [Problem("--to", what, hint)]) from None


def write_onnx(mine: Model, path: Path, about: dict[str, Any]) -> float:
    """Write the file; the largest difference between its answers and ours, on rows that try every spelling."""
    need_onnx()
    made = build_onnx(mine, trace_model(mine), about)
    raw = made.SerializeToString()
    off = compare(mine, raw)
    if not off <= CLOSE:
        what = f"onnxruntime's answers differ from the model's by up to {off:.2g}; at most {CLOSE:g} is allowed."
        hint = (
            "For models whose answers depend on the last digits, such as prototypes, write a .pt2 or "
            ".vitrail file instead."
        )
        raise VitrailError("nothing was written", [Problem(str(path), what, hint)])
    write_atomically(path, raw)
    return off


def build_onnx(mine: Model, program: Program, about: dict[str, Any]) -> Any:
    """The whole file, as onnx's own object."""
    import onnx
    from onnx import TensorProto, helper

    study, graph, inputs = mine.study, Graph(), []
    if study.images:
        name = PICTURE
        inputs.append(helper.make_tensor_value_info(name, TensorProto.UINT8, ["rows", *study.images.shape]))
        rows = name
    else:
        columns = []
        for name, feature in study.features.items():
            kind = TensorProto.DOUBLE if feature.kind == "numeric" else TensorProto.STRING
            inputs.append(helper.make_tensor_value_info(name, kind, ["rows"]))
            column = name if feature.kind == "numeric" else _place(graph, name, feature)
            columns.append(graph.add("Reshape", column, graph.whole(-1, 1)))
        rows = graph.add("Concat", *columns, axis=1)
    answers = convert(program.traced, graph, rows)
    names = outputs(mine)
    for answer, name in zip(answers, names, strict=True):
        graph.nodes.append(helper.make_node("Identity", [answer], [name], name=f"/end/{name}"))
    width = len(study.target.levels) or 1
    shapes: list[list[str | int | None]] = [["rows", width], ["rows"]]
    kinds = [onnx_kind(kind) for kind in program.kinds]
    value_infos = [helper.make_tensor_value_info(n, k, s) for n, k, s in zip(names, kinds, shapes, strict=False)]
    whole = helper.make_graph(graph.nodes, "vitrail", inputs, value_infos, list(graph.constants.values()))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
    model = helper.make_model(whole, opset_imports=opsets, producer_name="vitrail", ir_version=IR)
    helper.set_model_props(model, {"vitrail": json.dumps(about, ensure_ascii=False)})
    onnx.checker.check_model(model)
    return model


def outputs(mine: Model) -> list[str]:
    """answers and unsure; no column has their names."""
    names = ["answers", mine.unsure] if mine.note else ["answers"]
    taken = set(mine.study.features)
    for i, name in enumerate(names):
        while name in taken:
            name += "_"
        names[i] = name
        taken.add(name)
    return names


def _place(graph: Graph, column: str, feature: Feature) -> str:
    """The place of each text among the levels: NaN where it is missing, infinite where it is none."""
    from torch import float64

    codes = spellings(feature)
    attributes = {"keys_strings": list(codes), "values_floats": list(codes.values()), "default_float": float("inf")}
    return graph.cast(graph.add("LabelEncoder", column, domain=ML, **attributes), float64)


def spellings(feature: Feature) -> dict[str, float]:
    """The texts that a file may hold for a category, each as our own reading takes it: the place of its level, or NaN
    where it says that nothing is known."""
    words = [*feature.levels, *MISSING_WORDS, *(str(code) for code in feature.missing), "true", "false"]
    tried = [t for w in words for t in (w, w.lower(), w.upper(), w.title(), w.capitalize(), f"{w}.0", f"{w},0")]
    tried = list(dict.fromkeys(t for t in tried if "\0" not in t))
    values, wrong = as_levels(pd.Series(tried, dtype=object), feature.levels, feature.missing)
    return {t: v for t, v, bad in zip(tried, values.tolist(), wrong.tolist(), strict=True) if not bad}


def run_onnx(raw: bytes, frame: pd.DataFrame, study: Any) -> list[NDArray[Any]]:
    """What onnxruntime answers for rows, given as a program elsewhere would give them: raw, column by column."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, fed(frame, study)))


def fed(frame: pd.DataFrame, study: Any) -> dict[str, NDArray[Any]]:
    """Raw columns as the file takes them; a column of numbers holds numbers."""
    if study.images:
        return {PICTURE: np.stack(list(frame[study.images.column]))}
    out = {}
    for name, feature in study.features.items():
        if feature.kind == "numeric":
            out[name] = frame[name].to_numpy(np.float64)
        else:
            out[name] = np.array(["" if v is None or v != v else str(v) for v in frame[name]], dtype=object)
    return out


def compare(mine: Model, raw: bytes) -> float:
    """The largest difference on trial rows; infinite where one gives no answer and the other does."""
    frame = trial_rows(mine)
    ours = mine.predict(frame)
    theirs = np.column_stack(
        [np.asarray(t, np.float64).reshape(len(frame), -1) for t in run_onnx(raw, frame, mine.study)]
    )
    return difference(ours.to_numpy(np.float64), theirs)


def difference(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """Relative where numbers are large; infinite where one is a number and the other is none."""
    if ours.shape != theirs.shape or (np.isfinite(ours) != np.isfinite(theirs)).any():
        return float("inf")
    off = np.abs(ours - theirs) / np.maximum(1.0, np.abs(ours))
    return float(np.nanmax(off, initial=0.0))


def trial_rows(mine: Model, count: int = 64) -> pd.DataFrame:
    """Made-up rows, drawn: numbers near and far from the site's own, every level, missing values; or pictures."""
    rng, study = np.random.default_rng(38), mine.study
    if study.images:
        pixels = rng.integers(0, 256, (8, *study.images.shape), dtype=np.uint8)
        return pd.DataFrame({study.images.column: list(pixels)}, dtype=object)
    frame = {}
    for name, feature in study.features.items():
        if feature.kind == "numeric":
            mean, sd = mine.encoder.mean.get(name, 0.0), mine.encoder.sd.get(name, 1.0)
            column = mean + sd * rng.standard_normal(count) * rng.choice([1.0, 10.0], count)
            column[rng.random(count) < 0.1] = np.nan
            codes = [c for c in feature.missing if isinstance(c, int | float)]
            column[: len(codes[:count])] = codes[:count]
            frame[name] = column.astype(object)
        else:
            texts: Sequence[str] = list(spellings(feature))
            frame[name] = np.array([*texts[:count], *rng.choice(texts, max(0, count - len(texts)))], dtype=object)
            rng.shuffle(frame[name])
    return pd.DataFrame(frame)
