"""Files of tensors that a user has from elsewhere: safetensors, or a state dict of torch, read with weights_only=True.

Nothing in such a file is ever run.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError

CANNOT_READ = "cannot read the network's weights"


def tensors_in(path: Path, hint: str) -> tuple[dict[str, Tensor], str]:
    """All tensors of the file by name, and its sha256. `hint`: what to do if it is no such file."""
    with path.open("rb") as stream:
        mark = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(8)
        is_safe = stream.read(1) == b"{"  # where the description of a safetensors file begins
    try:
        held = _safe(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        what = f"it is no state dict of torch and no safetensors file ({type(error).__name__})."
        raise VitrailError(CANNOT_READ, [Problem(str(path), what, hint)]) from None
    if not isinstance(held, Mapping) or not all(isinstance(k, str) for k in held):
        what = f"expected tensors by their names, got a {type(held).__name__}."
        raise VitrailError(CANNOT_READ, [Problem(str(path), what, hint)])
    return {k: v for k, v in held.items() if isinstance(v, Tensor)}, mark


def _safe(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError  # a machine that only computes may not have it
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
