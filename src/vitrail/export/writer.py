"""Which format a file has, by its ending; and that nothing is written over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.errors import Problem, VitrailError
from vitrail.export.description import describe
from vitrail.runs.result import Model


class ExportedFile(NamedTuple):
    path: Path
    off: float  # the largest difference between its answers and ours


def export_model(mine: Model, site: str, run: str, path: Path, option: str = "--to") -> ExportedFile:
    """One site's model as the file that the ending of `path` asks for; checked before it is written.

    `mine` is the model as `Run.model_of` gives it, `site` and `run` are what the file says of where it comes from;
    `option` is the one that an error about the path names.
    """
    check_new(path, option)
    return ExportedFile(path, FORMATS[path.suffix.lower()](mine, path, describe(mine, site, run)))


def check_new(path: Path, option: str) -> None:
    """Whether a model can be written there."""
    if path.suffix.lower() not in FORMATS:
        what = f"expected a file that ends in {', '.join(FORMATS)}, got {path.name!r}."
        raise VitrailError("cannot export", [Problem(option, what, "Give one of these endings.")])
    if path.exists() or not path.parent.is_dir():
        what = "it exists already." if path.exists() else "its folder does not exist."
        raise VitrailError("nothing was overwritten", [Problem(str(path), what, f"Choose another {option}.")])


def _onnx(mine: Model, path: Path, about: dict[str, Any]) -> float:
    from vitrail.export.onnx import write_onnx

    return write_onnx(mine, path, about)


def _torch(mine: Model, path: Path, about: dict[str, Any]) -> float:
    from vitrail.export.torch import write_torch

    return write_torch(mine, path, about)


def _safe(mine: Model, path: Path, about: dict[str, Any]) -> float:
    from vitrail.export.safe_file import write_safe

    return write_safe(mine, path, about)


FORMATS: dict[str, Callable[[Model, Path, dict[str, Any]], float]] = {".onnx": _onnx, ".pt2": _torch, ".vitrail": _safe}
