"""Pictures as arrays: decoded, turned upright, brought to what the sites agreed on; uint8 until a batch is made.

A frame of pictures has one row for each, the target's column, and a column whose cells are one of

    an array                  [height, width], [height, width, 1, 3 or 4] or [1 or 3, height, width] of whole numbers
    the bytes of a file       PNG, JPEG, BMP, TIFF or WebP; also {"bytes": ...}, as Parquet files hold them
    the path of such a file, an image of Pillow, or lists of rows

Fitted, every cell is uint8 [channel, height, width], a view into one array of all. A picture is turned the way its
camera was held (EXIF); transparency is left away, as other loaders do; palettes and CMYK become red, green and blue.
"""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.schema import Images

Pixels = NDArray[Any]  # [height, width] or [height, width, 3], uint8 or wider
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")
GREY = [0.299, 0.587, 0.114]  # of red, green and blue
TOLD = 20  # broken pictures are named one by one up to here
MOST_PIXELS = 1 << 26  # of one picture: a larger one is a mistake, or meant to fill the memory
THREADS = 4  # decoders release the interpreter


class MisfitError(Exception):
    """Why one picture cannot be used: its kind, in words, and what to do. In a frame it may stand for the picture."""

    def __init__(self, kind: str, what: str, hint: str) -> None:
        super().__init__(kind, what, hint)
        self.kind, self.what, self.hint = kind, what, hint


def is_dicom(raw: bytes) -> bool:
    return raw[128:132] == b"DICM"


def dicom() -> MisfitError:
    return MisfitError("dicom", "it is DICOM, which is not read", "Export it as PNG, with the window you want to see.")


def decoded(raw: bytes) -> Pixels:
    """The pixels of an encoded picture, upright."""
    if is_dicom(raw):
        raise dicom()
    pillow, _ = _pillow()
    try:
        with pillow.open(io.BytesIO(raw), formats=FORMATS) as picture:
            _require_one(picture)
            if picture.format == "PNG":  # sums over its parts tell every changed byte
                with pillow.open(io.BytesIO(raw), formats=FORMATS) as again:
                    again.verify()
            picture.load()
            return as_array(picture)
    except (MisfitError, VitrailError):
        raise
    except pillow.UnidentifiedImageError:
        raise MisfitError(
            "unreadable", "it is not a PNG, JPEG, BMP, TIFF or WebP file", "Save it as one of these."
        ) from None
    except pillow.DecompressionBombError as error:
        raise MisfitError("too_large", f"it is too large ({_short(error)})", "Make it smaller.") from None
    except Exception as error:  # whatever a decoder makes of broken bytes
        what = f"it cannot be read ({type(error).__name__}: {_short(error)})"
        raise MisfitError("unreadable", what, "It may be cut off or damaged: copy or save it again.") from None


def _short(error: Exception) -> str:
    return str(error).split(" <_io")[0][:80]


def _require_one(picture: Any) -> None:
    """What can be refused before its pixels are unpacked."""
    if picture.width * picture.height > MOST_PIXELS:
        raise MisfitError("too_large", f"it has {picture.width} x {picture.height} pixels", "Make it smaller.")
    frames = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)  # a camera's MPO: others are previews
    if frames > 1:
        raise MisfitError("several", f"it holds {frames} pictures", "Save each as a file of its own.")
    if picture.tile and max(tile[1][3] for tile in picture.tile) < picture.height:
        raise MisfitError("unreadable", "its lower part is missing", "It may be damaged: copy or save it again.")
    if picture.mode[0] != "I" and any(";16" in str(tile[3]) for tile in picture.tile):
        raise MisfitError("wrong_values", "it has 16 bits for each colour", "Save it with 8, or as 16-bit grey.")


def as_array(picture: Any) -> Pixels:
    """A loaded image of Pillow."""
    _, orient = _pillow()
    with suppress(Exception):  # an unreadable note on how the camera was held: shown as it lies, as everywhere
        picture = orient(picture) or picture
    if picture.mode == "F":
        raise MisfitError("wrong_values", "its pixels are fractions", "Save it with 8 or 16 bits a pixel.")
    if picture.mode[0] == "I":
        wide = np.asarray(picture)
        if wide.size and (wide.min() < 0 or wide.max() >= 1 << 16):
            raise MisfitError("wrong_values", "it has more than 16 bits a pixel", "Save it with 8 or 16.")
        return wide.astype(np.uint16)
    return np.asarray(picture.convert("L" if picture.mode in ("1", "L", "LA", "La") else "RGB"))


def pixels_of(cell: Any) -> Pixels:
    """The pixels behind a cell, whatever it holds: [height, width] or [height, width, 3] of whole numbers."""
    if isinstance(cell, MisfitError):
        raise cell
    if isinstance(cell, Path):
        cell = _load(cell)
    if isinstance(cell, dict):
        if cell.get("bytes") is None:
            what = f"its bytes are not in the file, only a path ({str(cell.get('path'))[:60]!r})"
            raise MisfitError("unreadable", what, "Put the pictures themselves into the file.")
        cell = cell["bytes"]
    if isinstance(cell, bytes | bytearray | memoryview):
        return decoded(bytes(cell))
    if hasattr(cell, "mode") and hasattr(cell, "convert"):
        return as_array(cell)
    if isinstance(cell, list | tuple) or (isinstance(cell, np.ndarray) and cell.dtype == object):
        cell = _from_rows(cell)
    if not isinstance(cell, np.ndarray):
        empty = cell is None or cell is pd.NA or (isinstance(cell, float) and cell != cell)
        kind = "nothing" if empty else type(cell).__name__
        raise MisfitError("wrong_shape", f"expected a picture, got {kind}", "Give an array, or the bytes of a PNG.")
    return _from_array(cell)


def _load(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise MisfitError("unreadable", "it is not a regular file", "Put the picture itself there.")
        return path.read_bytes()
    except OSError as error:
        what = f"it cannot be opened ({error.strerror or error})"
        raise MisfitError("unreadable", what, "Check that it exists and can be read.") from None


def _from_rows(rows: Any) -> NDArray[Any]:
    try:
        return np.array([[np.asarray(cell).tolist() for cell in row] for row in rows])
    except (ValueError, TypeError):
        hint = "Write it as rows of equal length."
        raise MisfitError("wrong_shape", "its rows are not equally long lists of numbers", hint) from None


def _from_array(pixels: NDArray[Any]) -> Pixels:
    shape = list(pixels.shape)
    if pixels.ndim == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3, 4):  # a channel first
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3:
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3] if pixels.shape[2] == 4 else pixels
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3) or not pixels.size:
        what = f"expected [height, width] or [height, width, 3], got {shape}"
        raise MisfitError("wrong_shape", what, "Correct it.")
    if pixels.dtype.kind not in "iu":
        hint = "Multiply fractions by 255 and save them as uint8."
        raise MisfitError("wrong_values", f"expected whole numbers, got {pixels.dtype}", hint)
    return pixels


def fit_pixels(pixels: Any, images: Images) -> NDArray[np.uint8]:
    """As agreed, [channel, height, width]; told where that cannot be."""
    pixels = _to_eight(_from_array(np.asarray(pixels)), images.bits)
    exact = images.fit == "exact"
    if images.channels == 1 and pixels.ndim == 3:
        grey = bool((pixels == pixels[:, :, :1]).all())
        if exact and not grey:
            hint = 'Convert it, or agree with all sites on channels = 3 or fit = "resize".'
            raise MisfitError("wrong_colour", "it is in colour, but the study expects grey pictures", hint)
        pixels = pixels[:, :, 0] if grey else np.round(pixels @ GREY).astype(np.uint8)
    if images.channels == 3 and pixels.ndim == 2:
        if exact:
            hint = 'Convert it, or agree with all sites on channels = 1 or fit = "resize".'
            raise MisfitError("wrong_colour", "it is grey, but the study expects colour pictures", hint)
        pixels = np.repeat(pixels[:, :, None], 3, 2)
    if pixels.shape[:2] != images.size:
        if exact:
            got, want = ("{} x {}".format(*size) for size in (pixels.shape[:2], images.size))
            what = f"it is {got} pixels (height x width), but the study expects {want}"
            raise MisfitError("wrong_size", what, 'Resize it, or agree with all sites on fit = "resize".')
        pillow, _ = _pillow()
        small = pillow.fromarray(np.ascontiguousarray(pixels)).resize(images.size[::-1], pillow.Resampling.BILINEAR)
        pixels = np.asarray(small)
    return np.asarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _to_eight(pixels: Pixels, bits: int) -> NDArray[np.uint8]:
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high >= 1 << bits:
        hint = "Write the bits that the camera uses, for example bits = 12 or 16." if low >= 0 else "Correct it."
        raise MisfitError("wrong_values", f"expected values from 0 to {(1 << bits) - 1}, got {low} to {high}", hint)
    wide = bits > 8 and pixels.dtype != np.uint8  # 8-bit pictures among wider ones are as they shall be
    return np.asarray(pixels >> (bits - 8) if wide else pixels).astype(np.uint8, copy=False)


def fit_cells(cells: Sequence[Any], images: Images) -> list[Any]:
    """Each cell as agreed, or the MisfitError that says why it cannot be."""
    ready = [_as_it_is(cell, images) for cell in cells]
    if all(cell is not None for cell in ready):
        return ready
    block = _room(len(cells), images)

    def fit(at: int) -> Any:
        try:
            block[at] = fit_pixels(pixels_of(cells[at]), images)
        except MisfitError as error:
            return error.with_traceback(None)  # which would keep all that was read
        return block[at]

    return in_threads(fit, range(len(cells)))


def _as_it_is(cell: Any, images: Images) -> NDArray[np.uint8] | None:
    if not isinstance(cell, np.ndarray) or cell.dtype != np.uint8:
        return None
    if cell.shape == images.size and images.channels == 1:
        return cell[None]
    return cell if cell.shape == images.shape else None


def _room(rows: int, images: Images) -> NDArray[np.uint8]:
    try:
        return np.zeros((rows, *images.shape), np.uint8)
    except (MemoryError, ValueError):
        size = rows * np.prod(images.shape, dtype=float) / 1e9
        what = f"{rows} pictures of {' x '.join(map(str, images.shape))} need {size:.1f} GB of memory."
        raise VitrailError("too many pictures", [Problem("pictures", what, "Agree on a smaller size.")]) from None


def in_threads(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """In order. Decoders' warnings are not shown: what matters is told as an error, in our words."""
    with warnings.catch_warnings(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")
        return list(pool.map(work, items))


def fit_column(column: pd.Series, images: Images, where: str) -> tuple[list[Any], list[Problem]]:
    """The cells as agreed; a problem for each that cannot be, of many the first."""
    out = fit_cells(list(column), images)
    wrong = [(name, cell) for name, cell in zip(column.index, out, strict=True) if isinstance(cell, MisfitError)]
    problems = [Problem(f"{where}, {name}", f"{cell.what}.", cell.hint) for name, cell in wrong[:TOLD]]
    if len(wrong) > TOLD:
        problems.append(Problem(where, f"and {len(wrong) - TOLD} more that do not fit.", "Correct these first."))
    return out, problems


def stacked(column: pd.Series, images: Images) -> NDArray[np.uint8]:
    """[row, channel, height, width] of cells that are fitted; where they lie so in memory already, no copy is made."""
    cells = list(column)
    if not cells:
        return np.zeros((0, *images.shape), np.uint8)
    whole = cells[0].base
    if isinstance(whole, np.ndarray) and whole.dtype == np.uint8 and whole.flags.c_contiguous:
        size, first = cells[0].nbytes, _address(whole)
        at, rest = divmod(_address(cells[0]) - first, size)
        if not rest and all(
            cell.base is whole and cell.flags.c_contiguous and _address(cell) == first + (at + i) * size
            for i, cell in enumerate(cells)
        ):
            flat = whole.reshape(-1)[at * size : (at + len(cells)) * size]
            return flat.reshape(len(cells), *images.shape)
    return np.stack(cells)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _pillow() -> tuple[Any, Callable[[Any], Any]]:
    try:
        from PIL import (
            BmpImagePlugin,
            Image,
            ImageOps,
            JpegImagePlugin,
            PngImagePlugin,
            TiffImagePlugin,
            WebPImagePlugin,
        )
    except ImportError:
        what, hint = "reading pictures needs Pillow.", "pip install 'vitrail[image]'"
        raise VitrailError("a package is missing", [Problem("Pillow", what, hint)]) from None
    del BmpImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin  # known once imported
    return Image, ImageOps.exif_transpose


def png(picture: NDArray[np.uint8]) -> bytes:
    """[channel, height, width], grey or colour, as a file; without Pillow, since a site's own page is to need none."""
    channels, height, width = picture.shape
    lines = np.ascontiguousarray(picture.transpose(1, 2, 0)).reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    data = zlib.compress(np.pad(lines, ((0, 0), (1, 0))).tobytes(), 9)  # each line begins with its filter: none
    parts = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
