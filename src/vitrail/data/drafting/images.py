"""Draft a study of pictures from what sites hold: size, channels and bits are guesses, to be read by a person.

Pictures of one size, if it is no larger than a small network likes, are taken as they are; others are brought to a
common size that keeps their usual shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.image_files import (
    ENDINGS,
    FILES,
    ImageRequest,
    entries,
    find_pictures,
    picture_columns,
    site_name,
    site_places,
)
from vitrail.data.readers.images import TOLD, MisfitError, in_threads, pixels_of
from vitrail.data.readers.source import ENDING

LOOKED_AT = 500  # of all sites together, spread evenly
LARGEST, SMALLEST = 64, 16  # pixels a side of what a draft proposes; `cnn` needs as many
NETWORK = {"kind": "cnn"}
TRAINING = {"optimiser": "adam", "lr": 0.001, "batch": 32, "total": "mean"}


def holds_pictures(path: Path) -> bool:
    """An npz file, a Parquet file with a column of them, or a folder with pictures below and no tables beside."""
    ending = path.suffix.lower()
    try:
        if path.is_dir():
            inside = [p for p in entries(path) if not (p.is_dir() and p.is_symlink())]
            tables = any(match and not match["parquet"] for match in (ENDING.search(p.name) for p in inside))
            return not tables and any(map(holds_pictures, inside))
        if ending in (".parquet", ".pq"):
            import pyarrow.parquet as pq

            return bool(picture_columns(pq.read_schema(path)))
    except Exception:  # who reads it will say why not
        return False
    return ending == ".npz" or ending in ENDINGS


def read_picture_drafts(paths: list[Path], target: str, site_column: str) -> dict[str, pd.DataFrame]:
    """Sites to draft from: a folder or file for each, or a folder of them, or one folder of classes."""
    if len(paths) == 1 and paths[0].is_dir() and _holds_sites(paths[0]):
        paths = site_places(paths[0])
    names = [site_name(p) for p in paths]
    if len(set(names)) < len(names):
        names = [str(p) for p in paths]
    wanted, sites, problems = ImageRequest("picture", target, site_column), dict[str, pd.DataFrame](), list[Problem]()
    for name, path in zip(names, paths, strict=True):
        try:
            sites[name] = find_pictures(path, wanted)
        except VitrailError as error:
            problems += error.problems
    if problems:
        raise VitrailError("cannot draft a study", problems)
    return sites


def _holds_sites(path: Path) -> bool:
    """Whether a folder's folders are sites: no picture lies right in them, as it would if they were classes."""
    inside = entries(path)
    if any(p.suffix.lower() in FILES for p in inside):
        return True
    below = [q for p in inside if p.is_dir() for q in entries(p)]
    return bool(below) and not any(q.suffix.lower() in ENDINGS for q in below)


def picture_column(sites: Mapping[str, pd.DataFrame]) -> str | None:
    """The first column whose cells are pictures."""
    for frame in sites.values():
        for name, column in frame.items():
            if column.dtype == object and len(some := column.dropna()) and _is_like_a_picture(some.iloc[0]):
                return str(name).strip()
    return None


def _is_like_a_picture(cell: Any) -> bool:
    if isinstance(cell, np.ndarray):
        return cell.ndim > 1 or (cell.dtype == object and cell.size > 0 and not np.isscalar(cell.flat[0]))
    rows = isinstance(cell, list | tuple) and len(cell) > 0 and isinstance(cell[0], list | tuple | np.ndarray)
    encoded = isinstance(cell, bytes | bytearray | Path | MisfitError) or (isinstance(cell, dict) and "bytes" in cell)
    return rows or encoded or (hasattr(cell, "mode") and hasattr(cell, "convert"))


def draft_pictures(sites: Mapping[str, pd.DataFrame], column: str) -> dict[str, Any]:
    """What a study file says of them, less the target."""
    cells = [(f"{s}, {name}", cell) for s, f in sites.items() if column in f for name, cell in f[column].items()]
    spread = np.linspace(0, len(cells) - 1, min(len(cells), LOOKED_AT)).astype(int)
    looks = in_threads(_look, [cells[i][1] for i in spread])
    good = [look for look in looks if not isinstance(look, MisfitError)]
    if not good:
        bad = [(cells[i][0], look) for i, look in zip(spread, looks, strict=True)]
        problems = [Problem(where, f"{look.what}.", look.hint) for where, look in bad[:TOLD]]
        raise VitrailError("cannot draft a study: no picture can be read", problems)
    sizes, colour, flat, highest = zip(*good, strict=True)
    size, resized = _choose_size(np.array(sizes))
    mixed = any(colour) and any(flat)
    bits = next(bits for bits in (8, 10, 12, 14, 16) if max(highest) < 1 << bits or bits == 16)
    images = {"size": size, "channels": 3 if any(colour) else 1, "column": column, "bits": bits}
    images["fit"] = "resize" if resized or mixed else "exact"
    words = _describe(np.array(sizes), len(cells), len(looks), len(looks) - len(good), images, mixed)
    return {"images": images, "network": NETWORK, "training": TRAINING, "features": {}, "description": words}


def _look(cell: Any) -> Any:
    """Height and width, whether there is colour in it, whether it has no channels, its highest value."""
    try:
        pixels = pixels_of(cell)
    except MisfitError as error:
        return error.with_traceback(None)
    flat = pixels.ndim == 2
    return pixels.shape[:2], not flat and not (pixels == pixels[:, :, :1]).all(), flat, int(pixels.max())


def _choose_size(sizes: Any) -> tuple[tuple[int, int], bool]:
    """Height and width, and whether pictures have to be brought to it."""
    first = (int(sizes[0][0]), int(sizes[0][1]))
    if (sizes == sizes[0]).all() and max(first) <= LARGEST and min(first) >= SMALLEST:
        return first, False
    shape = float(np.median(sizes[:, 0] / sizes[:, 1]))  # height over width
    longer = int(np.clip(np.median(sizes.max(1)), SMALLEST, LARGEST))
    height, width = longer * min(1.0, shape), longer * min(1.0, 1 / shape)
    return (max(SMALLEST, 4 * round(height / 4)), max(SMALLEST, 4 * round(width / 4))), True


def _describe(sizes: Any, cells: int, looked: int, broken: int, images: Mapping[str, Any], mixed: bool) -> str:
    kinds = len({tuple(s) for s in sizes.tolist()})
    ordered = sizes[np.argsort(sizes.prod(1))].tolist()
    low, high = (" x ".join(map(str, size)) for size in (ordered[0], ordered[-1]))
    words = f"Drafted from {cells} pictures" + f", of which {looked} were looked at" * (looked < cells)
    words += f": all {low} pixels (height x width)" if kinds == 1 else f": {kinds} sizes, from {low} to {high} pixels"
    words += ", some grey and some in colour" if mixed else f", {'in colour' if images['channels'] == 3 else 'grey'}"
    words += f", {images['bits']} bits. "
    words += f"{broken} could not be read: vitrail check names them. " * bool(broken)
    to = " x ".join(map(str, images["size"]))
    if images["fit"] == "resize":
        words += f"Each is resized to {to}; a larger size shows more detail, and costs time and bytes."
    else:
        words += "They are taken as they are."
    return words
