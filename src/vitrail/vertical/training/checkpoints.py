"""What a side keeps while it trains: its state after some steps, in a folder of its own.

FOLDER/NAME/step-00000040.safetensors       the last two, so that a kill between sides leaves one in common
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import safetensors
import safetensors.torch

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import Params
from vitrail.storage.atomic_files import private_folder, write_atomically

FILES = "step-*.safetensors"


class TrainedSide(Protocol):
    name: str

    def state(self) -> Params: ...

    def load(self, state: Params) -> None: ...


def keep_state(side: TrainedSide, folder: Path, step: int) -> None:
    own = private_folder(folder / side.name)
    write_tensors(own / f"step-{step:08d}.safetensors", side.state())
    for old in sorted(own.glob(FILES))[:-2]:
        old.unlink()


def kept_steps(folder: Path, name: str) -> list[int]:
    return [int(file.stem.removeprefix("step-")) for file in sorted((folder / name).glob(FILES))]


def load_state(side: TrainedSide, folder: Path, step: int) -> None:
    side.load(read_tensors(folder / side.name / f"step-{step:08d}.safetensors", side.state()))


def write_tensors(path: Path, named: Params) -> None:
    """A file of one party's own."""
    whole = {k: v.detach().contiguous().clone() for k, v in named.items()}
    write_atomically(path, safetensors.torch.save(whole), private=True)


def read_tensors(path: Path, like: Params | None = None) -> Params:
    """What `write_tensors` wrote; of the names and shapes of `like`, where it is given."""
    try:
        named: Params = safetensors.torch.load(path.read_bytes())
    except (OSError, ValueError, safetensors.SafetensorError):
        named = {}
    shapes = [{k: v.shape for k, v in some.items()} for some in (named, named if like is None else like)]
    if not named or shapes[0] != shapes[1]:
        what = (
            "it is incomplete, damaged, or belongs to another training."
            if path.exists()
            else "the file does not exist."
        )
        hint = "Remove it, and training continues from the state before it; or restore it from a copy."
        raise VitrailError("a checkpoint cannot be read", [Problem(str(path), what, hint)])
    return named
