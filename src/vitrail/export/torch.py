"""A site's model as torch's own file (torch.export): cleaned rows in, answers out. The step from text to the place of a
level is not in it; what the places mean is in the file's vitrail.json."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.tables import clean
from vitrail.export.onnx import CLOSE, difference, trial_rows
from vitrail.export.program import trace_model
from vitrail.runs.result import Model
from vitrail.storage.atomic_files import write_atomically

ABOUT = "vitrail.json"


def write_torch(mine: Model, path: Path, about: dict[str, Any]) -> float:
    """Write the file; the largest difference between what torch reads back from it and our own model."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about torch
        torch.export.save(trace_model(mine).traced, file, extra_files={ABOUT: json.dumps(about, ensure_ascii=False)})
        file.seek(0)
        read = torch.export.load(file).module()
    frame = trial_rows(mine)
    with torch.no_grad():
        outputs = read(given_rows(mine, frame))
    theirs = np.column_stack([np.asarray(t.double()).reshape(len(frame), -1) for t in outputs])
    off = difference(mine.predict(frame).to_numpy(np.float64), theirs)
    if not off <= CLOSE:
        what = f"its answers differ from the model's by up to {off:.2g}; at most {CLOSE:g} is allowed."
        raise VitrailError("nothing was written", [Problem(str(path), what, "Write a .vitrail file instead.")])
    write_atomically(path, file.getvalue())
    return off


def given_rows(mine: Model, frame: Any) -> torch.Tensor:
    """Raw rows as such a file takes them."""
    rows = clean(frame, mine.study, need_target=False)
    if mine.study.images:
        return torch.from_numpy(mine.encoder.matrix(rows))
    return torch.from_numpy(rows[list(mine.study.features)].to_numpy(np.float64, copy=True))
