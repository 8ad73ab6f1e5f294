"""Files of weights that a user has: where they lie on this machine, and what tensors they hold.

Files are never shipped and never sent; what sites agree on names the sha256 (storage/tensor_files.py reads them).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import Params

FOLDER = "VITRAIL_WEIGHTS"  # a variable of the environment: where files of weights lie, on this machine
NAMED = 6  # tensors that a message names; of more it says how many
WRONG = "these are not the network's weights"


class Weights(NamedTuple):
    params: Params
    sha256: str


def find(file: str) -> Path:
    """Where it is on this machine: as it is named, or by its name in the folder of VITRAIL_WEIGHTS."""
    path = Path(file).expanduser()
    there = [path, *([Path(os.environ[FOLDER]) / path.name] if os.environ.get(FOLDER) else [])]
    for place in there:
        if place.is_file():
            return place
    hint = f"Name the file that you have, or set {FOLDER} to its folder. Every site needs the same one."
    raise VitrailError(
        "the network's weights were not found", [Problem("network.weights", f"there is no file {file}.", hint)]
    )


def misfits(held: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], ignored: tuple[str, ...]) -> list[str]:
    """In words, all that keeps these tensors from being the wanted ones; `ignored`: beginnings and ends of names that
    may be there beside them."""
    there = {k: held[k] for k in wanted if k in held}
    kinds = {
        "missing": [k for k in wanted if k not in held],
        "of another shape": [
            f"{k} {list(v.shape)} in place of {list(wanted[k])}" for k, v in there.items() if v.shape != wanted[k]
        ],
        "no floating-point numbers": [k for k, v in there.items() if not v.is_floating_point()],
        "not finite": [k for k, v in there.items() if v.is_floating_point() and not bool(v.isfinite().all())],
        "of no layer of this network": [
            k for k in held if k not in wanted and not k.startswith(ignored) and not k.endswith(ignored)
        ],
    }
    return [_said(names, what) for what, names in kinds.items() if names]


def _said(names: list[str], what: str) -> str:
    """
    >>> _said(["a", "b"], "missing"), _said([str(i) for i in range(9)], "missing")
    ('2 tensors are missing: a, b.', '9 tensors are missing: 0, 1, 2, 3, 4, 5 and 3 more.')
    """
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    count = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return f"{count} {what}: {', '.join(names[:NAMED])}{more}."
