"""Pictures as sites hold them, kept as uint8 [channel, height, width] until a batch is made.

    SITE/CLASS/*.png, *.jpg   a folder for each class, as torchvision's ImageFolder; without class folders: no labels
    SITE.npz                  arrays: the pictures [row, height, width] or [row, height, width, 3], and the target
    SITE.parquet              a column of encoded pictures (bytes, or {"bytes": ...}), and the target

One npz or Parquet file may hold all sites, with a site column. A frame of pictures has one row for each, the target's
column, and a column whose cells are arrays; its index says which file, or which row.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.data.schema import Images, Table, canon

Pixels = NDArray[Any]  # [height, width] or [height, width, 3], uint8 or uint16
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
FILES = (".npz", ".parquet", ".pq")
NAMES = {"picture": ("image", "images", "pictures", "x"), "target": ("label", "labels", "class", "y", "target")}
TOLD = 20  # broken pictures are named one by one up to here
MOST_PIXELS = 1 << 26  # of one picture: a larger one is a mistake, or meant to fill the memory


class MisfitError(Exception):
    """Why one picture cannot be used, in words, and what to do."""


def decoded(raw: bytes) -> Pixels:
    """The pixels of an encoded picture, turned the way its camera was held."""
    if raw[128:132] == b"DICM":
        raise MisfitError("it is DICOM, which is not read", "Export it as PNG, with the window you want to see.")
    pillow, orient = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a decompression bomb is a warning at first
            with pillow.open(io.BytesIO(raw)) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise MisfitError(f"it has {picture.width} x {picture.height} pixels", "Make it smaller.")
                if getattr(picture, "n_frames", 1) > 1:
                    raise MisfitError(f"it holds {picture.n_frames} pictures", "Save each as a file of its own.")
                picture.load()
                return _as_array(orient(picture) or picture)
    except MisfitError:
        raise
    except Exception as error:  # whatever a decoder makes of broken bytes
        said = str(error).replace("<_io.BytesIO object", "").split(" at 0x")[0]
        raise MisfitError(f"it cannot be read ({type(error).__name__}: {said[:80]})", "Save it again.") from None


def _as_array(picture: Any) -> Pixels:
    if picture.mode == "F":
        raise MisfitError("its pixels are fractions", "Save it with 8 or 16 bits a pixel.")
    if picture.mode in ("I", "I;16", "I;16B", "I;16L"):
        wide = np.asarray(picture)
        if wide.size and (wide.min() < 0 or wide.max() >= 1 << 16):
            raise MisfitError("it has more than 16 bits a pixel", "Save it with 8 or 16.")
        return wide.astype(np.uint16)
    grey = picture.mode in ("1", "L", "LA", "La")
    return np.asarray(picture.convert("L" if grey else "RGB"))


def fitted(pixels: Any, images: Images) -> NDArray[np.uint8]:
    """As agreed, [channel, height, width]; told where that cannot be."""
    pixels = np.asarray(pixels)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3) or not pixels.size:
        raise MisfitError(f"expected [height, width] or [height, width, 3], got {list(pixels.shape)}", "Correct it.")
    if pixels.dtype.kind not in "iu":
        raise MisfitError(f"expected whole numbers from 0 to 255, got {pixels.dtype}", "Save them as uint8.")
    pixels = _to_eight(pixels, images.bits)
    exact = images.fit == "exact"
    if images.channels == 1 and pixels.ndim == 3:
        if exact and not (pixels == pixels[:, :, :1]).all():
            raise MisfitError(
                "it is in colour, and the study is of grey pictures", 'Write channels = 3, or fit = "resize".'
            )
        pixels = np.round(pixels @ [0.299, 0.587, 0.114]).astype(np.uint8)
    if images.channels == 3 and pixels.ndim == 2:
        if exact:
            raise MisfitError(
                "it is grey, and the study is of colour pictures", 'Write channels = 1, or fit = "resize".'
            )
        pixels = np.repeat(pixels[:, :, None], 3, 2)
    if pixels.shape[:2] != images.size:
        if exact:
            got, want = ("{} x {}".format(*size) for size in (pixels.shape[:2], images.size))
            raise MisfitError(f"it is {got} pixels, and the study says {want}", 'Correct it, or write fit = "resize".')
        pillow, _ = _pillow()
        small = pillow.fromarray(pixels).resize(images.size[::-1], pillow.Resampling.BILINEAR)
        pixels = np.asarray(small)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _to_eight(pixels: Pixels, bits: int) -> NDArray[np.uint8]:
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high >= 1 << max(bits, 8):
        hint = "Write the bits that the camera uses, for example bits = 12 or 16." if low >= 0 else "Correct it."
        raise MisfitError(f"expected values from 0 to {(1 << bits) - 1}, got {low} to {high}", hint)
    wide = bits > 8 and pixels.dtype != np.uint8  # 8-bit pictures among wider ones are as they shall be
    return np.asarray(pixels >> (bits - 8) if wide else pixels).astype(np.uint8)


def stacked(column: pd.Series, images: Images) -> NDArray[np.uint8]:
    """[row, channel, height, width] of cells that are fitted."""
    return np.stack(list(column)) if len(column) else np.zeros((0, *images.shape), np.uint8)


def fit_column(column: pd.Series, images: Images, where: str) -> tuple[list[Any], list[Problem]]:
    """The cells as agreed; None and a problem for each that cannot be."""
    out, problems = list[Any](), _Told()
    for name, cell in column.items():
        try:
            if isinstance(cell, np.ndarray) and cell.dtype == np.uint8 and cell.shape == images.shape:
                out.append(cell)
            else:
                out.append(fitted(_pixels(cell), images))
        except MisfitError as error:
            out.append(None)
            problems.add(f"{where}, {name}", error)
    return out, problems.all()


def _pixels(cell: Any) -> Any:
    """Of an encoded picture, as Parquet files hold them, or of an array."""
    if isinstance(cell, dict):
        cell = cell.get("bytes")
    if isinstance(cell, bytes):
        return decoded(cell)
    if isinstance(cell, np.ndarray) and cell.dtype == object:  # rows within rows, as Parquet gives them back
        try:
            return np.array([np.array(list(row)).tolist() for row in cell])
        except ValueError:
            raise MisfitError("its rows are not equally long", "Correct it.") from None
    if not isinstance(cell, np.ndarray):
        raise MisfitError(f"expected a picture, got {type(cell).__name__}", "Give an array, or the bytes of a PNG.")
    return cell


class _Told:
    """Problems of pictures: many are counted, some are named."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.more = 0

    def add(self, where: str, error: MisfitError) -> None:
        what, hint = (*error.args, "")[:2]
        if len(self.found) < TOLD:
            self.found.append(Problem(where, f"{what}.", hint))
        else:
            self.more += 1

    def all(self) -> list[Problem]:
        also = [Problem("pictures", f"and {self.more} more like these.", "Correct these first.")] if self.more else []
        return [*self.found, *also]


def read_pictures(path: Path, table: Table) -> pd.DataFrame:
    """One site's pictures."""
    images = _images(table)
    try:
        frame = _from_folder(path, table) if path.is_dir() else _from_file(path, table)
    except OSError as error:
        raise _refusal(path, f"it cannot be read: {error.strerror or error}.", "Check the path.") from None
    column, problems = fit_column(frame[images.column], images, str(path))
    if problems:
        raise VitrailError(f"cannot read the pictures in {path.name}", problems)
    frame[images.column] = pd.Series(column, index=frame.index, dtype=object)
    frame.attrs["file"] = path.name
    return frame


def read_picture_sites(path: Path, table: Table) -> dict[str, pd.DataFrame]:
    """One frame per site: from a folder with a folder or file for each, or from one file with a site column."""
    if not path.is_dir():
        frame = read_pictures(path, table)
        column = table.site_column
        if column not in frame:
            hint = nearest(column, map(str, frame.columns)) if column else 'Write site_column = "..." in the study.'
            raise _refusal(path, f"expected a column that names the site ({column!r}), there is none.", hint)
        return {str(name): rows.drop(columns=column) for name, rows in frame.groupby(frame[column].map(canon))}
    places = {p.stem if p.is_file() else p.name: p for p in _inside(path) if p.is_dir() or p.suffix.lower() in FILES}
    sites, problems = dict[str, pd.DataFrame](), list[Problem]()
    for name, place in places.items():
        try:
            sites[name] = read_pictures(place, table)
        except VitrailError as error:
            problems += error.problems
    if not places:
        what = "expected a folder for each site, with a folder for each class, can see none."
        problems.append(Problem(str(path), what, "Put them here, or give .npz or .parquet files."))
    if problems:
        raise VitrailError(f"cannot read the sites in {path}", problems)
    return sites


def class_folders(path: Path) -> list[Path]:
    return [p for p in _inside(path) if p.is_dir()]


def picture_files(path: Path) -> list[Path]:
    return [p for p in _inside(path) if p.is_file() and p.suffix.lower() in ENDINGS]


def _inside(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if not p.name.startswith("."))


def _from_folder(path: Path, table: Table) -> pd.DataFrame:
    images, target = _images(table), table.target
    folders = class_folders(path)
    unknown = [p for p in folders if canon(p.name) not in target.levels]
    if unknown:
        expected = ", ".join(target.levels)
        raise VitrailError(
            f"cannot read the pictures in {path.name}",
            [
                Problem(str(p), f"there is no class {p.name!r} (expected {expected}).", nearest(p.name, target.levels))
                for p in unknown
            ],
        )
    files: list[tuple[Path, str | None]] = [(p, folder.name) for folder in folders for p in picture_files(folder)]
    files += [] if folders else [(p, None) for p in picture_files(path)]
    if not files:
        what = f"expected a folder for each class with pictures ({', '.join(ENDINGS)}), there is none."
        raise _refusal(path, what, "Put them there. DICOM is not read: export it as PNG.")
    problems, cells = _Told(), list[Any]()
    for file, _ in files:
        try:
            cells.append(fitted(decoded(file.read_bytes()), images))
        except MisfitError as error:
            cells.append(None)
            problems.add(str(file), error)
        except OSError as error:
            problems.add(str(file), MisfitError(f"it cannot be opened ({error.strerror})", "Check its permissions."))
    if told := problems.all():
        raise VitrailError(f"cannot read the pictures in {path.name}", told)
    index = pd.Index([str(file.relative_to(path)) for file, _ in files])
    labels = {target.column: [label for _, label in files]} if folders else {}
    return pd.DataFrame({images.column: pd.Series(cells, index=index, dtype=object), **labels}, index=index)


def _from_file(path: Path, table: Table) -> pd.DataFrame:
    ending = path.suffix.lower()
    if ending not in FILES:
        what = f"expected a folder, or a file ending in {', '.join(FILES)}, got {path.name!r}."
        raise _refusal(path, what, "Put pictures into folders by class.")
    if not path.is_file():
        raise _refusal(path, "there is no such file.", "Check the path.")
    found = _from_npz(path) if ending == ".npz" else _from_parquet(path)
    images, target = _images(table), table.target.column
    renamed = {}
    for wanted, also in ((images.column, NAMES["picture"]), (target, NAMES["target"])):
        if wanted not in found and (there := [n for n in also if n in found]):
            renamed[there[0]] = wanted
    found = {renamed.get(k, k): v for k, v in found.items()}
    if images.column not in found:
        what = f"expected a column {images.column!r} of pictures, there is none."
        raise _refusal(path, what, nearest(images.column, found))
    lengths = {k: len(v) for k, v in found.items() if k in (images.column, target, table.site_column)}
    if len(set(lengths.values())) > 1:
        raise _refusal(path, f"expected columns of equal length, got {lengths}.", "Correct the file.")
    if not lengths[images.column]:
        raise _refusal(path, "expected pictures, there are none.", "Check the file.")
    return pd.DataFrame({k: pd.Series(found[k], dtype=object) for k in lengths})


def _from_npz(path: Path) -> dict[str, list[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {str(k): file[k] for k in file.files}
    except Exception as error:  # a broken archive raises whatever zip, zlib and numpy raise
        raise _refusal(path, f"it cannot be read: {type(error).__name__}: {error}.", "Save it again.") from None
    return {k: list(v if v.ndim != 2 or v.shape[1] != 1 else v[:, 0]) for k, v in arrays.items() if v.ndim}


def _from_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # whatever pyarrow raises
        raise _refusal(path, f"it cannot be read: {type(error).__name__}: {error}.", "Save it again.") from None
    return {str(k): list(v) for k, v in frame.items()}


def _images(table: Table) -> Images:
    assert table.images is not None
    return table.images


def _refusal(path: Path, what: str, hint: str) -> VitrailError:
    return VitrailError(f"cannot read {path.name}", [Problem(str(path), what, hint)])


def _pillow() -> tuple[Any, Callable[[Any], Any]]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        what, hint = "reading pictures needs Pillow.", "pip install 'vitrail[image]'"
        raise VitrailError("a package is missing", [Problem("Pillow", what, hint)]) from None
    return Image, ImageOps.exif_transpose


def png(picture: NDArray[np.uint8]) -> bytes:
    """[channel, height, width] as a file, for a page."""
    pillow, _ = _pillow()
    out = io.BytesIO()
    pillow.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)).save(out, "PNG")
    return out.getvalue()
