"""A site's model as one safe file: safetensors and JSON, nothing that could run. `vitrail predict` reads it without the
run folder. A file of which any byte was changed is refused; that is no signature: whoever makes a new file can make its
mark too."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load, save

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import Encoder
from vitrail.export.description import FORMAT
from vitrail.runs.result import Model
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.untrusted_files import LONGEST_MODEL, read_regular
from vitrail.study.model import Study

ENDING = ".vitrail"
MARK, NO_MARK = "sha256", "0" * 64


class SafeFile(NamedTuple):
    """What such a file holds."""

    site: str
    run: str
    model: Model
    about: dict[str, Any]


def write_safe(mine: Model, path: Path, about: dict[str, Any]) -> float:
    """Write the file, and look whether it reads back as it is."""
    if weights := mine.study.network.weights:
        what = f"a part of the network is read from {weights!r}, so the model's own numbers do not contain it."
        raise VitrailError(
            "cannot export", [Problem(str(path), what, "Write .onnx or .pt2, which contain the whole network.")]
        )
    content = {
        "about": about,
        "study": mine.study.to_toml(),
        "method": {"name": methods.name_of(mine.method), "settings": methods.settings(mine.method)},
        "seed": mine.seed,
        **mine.encoder.plain,
    }
    words = {"vitrail": json.dumps(content, ensure_ascii=False, sort_keys=True), MARK: NO_MARK}
    raw = save({k: v.detach().cpu().contiguous() for k, v in mine.tensors.items()}, words)
    raw = raw.replace(NO_MARK.encode(), hashlib.sha256(raw).hexdigest().encode(), 1)
    _read(path, raw)
    write_atomically(path, raw)
    return 0.0


def read_safe(path: Path) -> SafeFile:
    """The model in that file, or in words why not."""
    try:
        raw = read_regular(path, LONGEST_MODEL)
    except OSError as error:
        raise _refused(path, f"the file cannot be read: {error.strerror}.") from None
    return _read(path, raw)


def _read(path: Path, raw: bytes) -> SafeFile:
    try:
        size = int.from_bytes(raw[:8], "little")
        words = json.loads(raw[8 : 8 + size])["__metadata__"]
        mark, content = words[MARK], json.loads(words["vitrail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _refused(path, f"expected a {ENDING} file, got something else.") from None
    if hashlib.sha256(raw.replace(str(mark).encode(), NO_MARK.encode(), 1)).hexdigest() != mark:
        raise _refused(path, "the file is damaged: bytes of it were changed, or it was cut short.")
    try:
        about = content["about"]
        if about["format"] != FORMAT:
            raise _refused(
                path, f"its format is {about['format']!r}, but this version of Vitrail reads format {FORMAT}."
            )
        study = Study.parse(tomllib.loads(content["study"]), f"the study in {path}")
        if study.network.weights:
            raise _refused(
                path, "its network refers to a file on the machine that wrote it; a .vitrail file must not do that."
            )
        method = methods.build(content["method"]["name"], content["method"]["settings"])
        encoder = Encoder.of(study, content)
        model = Model(study, method, int(content["seed"]), load(raw), encoder)
        model.models()  # tensors of another network are told now
        return SafeFile(str(about["site"]), str(about["run"]), model, about)
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError, RecursionError) as error:
        raise _refused(path, f"its content is not what Vitrail writes ({type(error).__name__}).") from None


def _refused(path: Path, what: str) -> VitrailError:
    return VitrailError("cannot read the model", [Problem(str(path), what, "Export the model again: vitrail export.")])
