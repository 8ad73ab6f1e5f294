"""Feature maps of a frozen backbone in place of pictures: computed once for each, kept on disk at half precision.

They lie in this machine's cache (VITRAIL_CACHE, else XDG_CACHE_HOME or ~/.cache, under vitrail/features), readable by
the user alone: a file for each set of pictures and weights, named by a hash of both, whatever the order and the split
of the pictures. What was computed for other pictures or other weights is never taken. Like the pictures they do not
leave the site. Deleting them costs time only.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from vitrail.core.task import Net
from vitrail.data.encoding import SiteData
from vitrail.nets import ProtoNet
from vitrail.storage.atomic_files import private_folder, write_atomically

NAME = "features"


def place() -> Path:
    """The folder of the cache."""
    configured = os.environ.get("VITRAIL_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(configured) if configured else Path.home() / ".cache") / "vitrail" / "features"


def as_rows(data: list[SiteData], net: Net, device: str = "cpu") -> list[SiteData]:
    """The sites' rows as this network trains on them: pictures, or the maps of its frozen backbone."""
    if not isinstance(net, ProtoNet) or net.shape == net.pictures:
        return data
    out = []
    for site in data:
        maps = _maps(np.concatenate([site.train_x, site.test_x]), net, device)
        out.append(site._replace(train_x=maps[: len(site.train_x)], test_x=maps[len(site.train_x) :]))
    return out


def _maps(pictures: NDArray[np.uint8], net: ProtoNet, device: str) -> NDArray[Any]:
    """[picture, channel, h, w] of half precision, from the cache or computed and kept there."""
    marks = [hashlib.blake2b(np.ascontiguousarray(p).data, digest_size=16).digest() for p in pictures]
    ranked = sorted(set(marks))
    about = f"1 {net.sha256} {net.pictures} {net.normalise}".encode()
    file = place() / f"{hashlib.sha256(about + b''.join(ranked)).hexdigest()[:32]}.safetensors"
    first = {mark: i for i, mark in reversed(list(enumerate(marks)))}
    held = _kept(file, (len(ranked), *net.shape))
    if held is None:
        some = torch.from_numpy(np.ascontiguousarray(pictures[[first[mark] for mark in ranked]]))
        held = net.features_of(some.to(device)).half().cpu()
        private_folder(file.parent)
        write_atomically(file, save({NAME: held.contiguous()}), shared=True)
    at = {mark: i for i, mark in enumerate(ranked)}
    return np.asarray(held[[at[mark] for mark in marks]].numpy())


def _kept(file: Path, shape: tuple[int, ...]) -> Tensor | None:
    try:
        held = load_file(file)[NAME]
    except (OSError, KeyError, SafetensorError):  # none, or half a file
        return None
    return held if held.shape == shape and held.dtype == torch.float16 else None
