"""Where sites keep pictures, and how a frame is made of it.

    SITE/CLASS/...            a folder for each class, as torchvision's ImageFolder: all pictures below it, however deep
    SITE/*.png                pictures without a class, to predict
    SITE.npz                  arrays: pictures [row, height, width] or [row, height, width, 3], and the target [row]
    SITE.parquet              a column of encoded pictures (bytes, {"bytes": ...}) or of lists of rows, and the target

One npz or Parquet file may hold all sites, with a site column. Arrays in parts, such as train_images and train_labels
(MedMNIST) or x_train and y_train, are put together again: every site sets its own rows aside. Rows of files are
counted from 0; pictures of a folder are called by their paths within it.

Endings tell pictures, in capitals too; files that systems leave behind are passed over, and so are, in words, others
that are no pictures. Links are followed, each folder once for a class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.readers.cells import as_levels
from vitrail.data.readers.image_persons import PASSED, with_persons
from vitrail.data.readers.images import MisfitError, dicom, fit_cells, fit_column, is_dicom
from vitrail.data.schema import Images, TableSchema

ENDINGS = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".tif", ".tiff", ".webp")
DICOM = (".dcm", ".dicom", ".ima")
FILES = (".npz", ".parquet", ".pq")
NO_SITE = re.compile(
    r"\..*|__macosx|thumbs\.db|desktop\.ini|(readme|licen[cs]e)(\..*)?|.*\.(md|toml|json)", re.IGNORECASE | re.DOTALL
)
PICTURES = ("picture", "pictures", "image", "images", "x")  # what arrays and columns are called
LABELS = ("label", "labels", "class", "target", "y")
PARTS = ("train", "val", "valid", "test")


class ImageRequest(NamedTuple):
    """What to look for."""

    picture: str
    target: str
    site: str = ""
    levels: tuple[str, ...] | None = None  # the classes, where they are agreed
    person: str = ""


def read_pictures(path: Path, table: TableSchema, strict: bool = True) -> pd.DataFrame:
    """One site's pictures, fitted. What cannot be used is refused, or stays in the frame to be told (not `strict`)."""
    images = image_settings(table)
    wanted = ImageRequest(images.column, table.target.column, table.site_column, table.target.levels, table.person)
    frame = with_persons(find_pictures(path, wanted), path, table)
    if strict:
        column, problems = fit_column(frame[images.column], images, str(path))
        problems = [*_unknown_classes(path, frame, table), *problems]
        if problems:
            raise VitrailError(f"cannot read the pictures in {path.name}", problems)
    else:
        column = fit_cells(list(frame[images.column]), images)
    frame[images.column] = pd.Series(column, index=frame.index, dtype=object)
    return frame


def image_settings(table: TableSchema) -> Images:
    assert table.images is not None
    return table.images


def _unknown_classes(path: Path, frame: pd.DataFrame, table: TableSchema) -> list[Problem]:
    """Folders that are no class; what stands in a file's column is told when it is cleaned."""
    target = table.target
    if not path.is_dir() or target.column not in frame:
        return []
    names = pd.Series(frame[target.column].dropna().unique(), dtype=object)
    _, wrong = as_levels(names, target.levels, ())
    expected = f"(expected {', '.join(target.levels)})"
    return [
        Problem(str(path / name), f"there is no class {name!r} {expected}.", nearest(name, target.levels))
        for name in names[wrong.to_numpy()]
    ]


def find_pictures(path: Path, wanted: ImageRequest) -> pd.DataFrame:
    """A row for each picture; cells are paths, bytes or arrays, or a MisfitError where nothing can be read."""
    try:
        frame = _from_folder(path, wanted) if path.is_dir() else _from_file(path, wanted)
    except OSError as error:
        raise _refusal(path, f"it cannot be read: {error.strerror or error}.", "Check the path.") from None
    frame.attrs["file"] = path.name
    return frame


def site_places(path: Path) -> list[Path]:
    """What lies in a folder of sites: a folder or a file for each."""
    inside = entries(path)
    places = [p for p in inside if p.is_dir() or p.suffix.lower() in FILES]
    loose = [p for p in inside if p.is_file() and p.suffix.lower() in ENDINGS]
    if loose and not any(p.is_dir() for p in places):
        what = f"expected a folder for each site, got {len(loose)} pictures."
        raise _refusal(path, what, "Put them into SITE/CLASS/ below this folder.")
    problems = [
        Problem(str(p), "expected a folder or file of one site here.", f"Move it, or save it as {' or '.join(FILES)}.")
        for p in inside
        if p not in places
    ]
    if not inside:
        what = "expected a folder for each site, with a folder for each class, but found none."
        problems.append(Problem(str(path), what, "Put them here, or .npz or .parquet files."))
    elif not problems and all(p.is_dir() and _holds_only_pictures(p) for p in places):
        names = ", ".join(p.name for p in places[:3])
        what = f"expected a folder for each site with a folder for each class, got pictures right below {names}."
        problems.append(
            Problem(str(path), what, "If these folders are classes, this is one site: give the folder above it.")
        )
    if problems:
        raise VitrailError(f"cannot read the sites in {path}", problems)
    return places


def site_name(place: Path) -> str:
    return place.name if place.is_dir() else place.stem


def entries(path: Path) -> list[Path]:
    """What is in a folder, less what systems and people leave beside data."""
    try:
        return sorted(p for p in path.iterdir() if not NO_SITE.fullmatch(p.name))
    except OSError as error:
        raise _refusal(path, f"it cannot be read: {error.strerror}.", "Check its permissions.") from None


def _holds_only_pictures(path: Path) -> bool:
    inside = entries(path)
    return any(p.suffix.lower() in ENDINGS for p in inside) and not any(p.is_dir() for p in inside)


def _files_below(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Links to folders are followed, but none is entered twice: a link may lead back."""
    stat = folder.stat()
    if (stat.st_dev, stat.st_ino) in seen:
        return
    seen.add((stat.st_dev, stat.st_ino))
    for path in entries(folder):
        if path.is_dir():
            yield from _files_below(path, seen)
        else:
            yield path


def _from_folder(path: Path, wanted: ImageRequest) -> pd.DataFrame:
    inside = entries(path)
    folders = [p for p in inside if p.is_dir()]
    _refuse_sites(path, folders, wanted)
    rows, passed = list[tuple[Path, Any, str | None]](), list[Path]()
    for file in (p for p in inside if not p.is_dir()):
        cell = _cell(file)
        if cell is None:
            passed.append(file)
        elif folders:
            what = "it lies outside the class folders"
            rows.append((file, MisfitError("no_class", what, "Move it into one of them."), None))
        else:
            rows.append((file, cell, None))
    for folder in folders:
        for file in _files_below(folder, set()):
            cell = _cell(file)
            passed += [file] * (cell is None)
            rows += [(file, cell, _call(folder.name))] * (cell is not None)
    if not rows:
        endings = sorted({p.suffix.lower() or p.name for p in passed})
        got = f"found only {', '.join(endings[:5])}" if endings else "there is none"
        what = f"expected a folder for each class with pictures ({', '.join(ENDINGS)}), but {got}."
        raise _refusal(path, what, "Put them there. DICOM is not read: export it as PNG.")
    names = [_call(file.relative_to(path)) for file, _, _ in rows]
    labels = {wanted.target: [label for _, _, label in rows]} if folders else {}
    frame = pd.DataFrame({wanted.picture: _objects([cell for _, cell, _ in rows]), **labels}, dtype=object)
    frame.index = pd.Index(names, dtype=object)
    frame.attrs[PASSED] = tuple(_call(p.relative_to(path)) for p in passed)
    return frame


def _call(path: Path | str) -> str:
    """A name that can be printed: a disk may hold bytes that are no text."""
    return os.fsencode(path).decode("utf-8", "replace")


def _refuse_sites(path: Path, folders: list[Path], wanted: ImageRequest) -> None:
    """A folder of sites, where one site is meant."""
    if wanted.levels is None or not folders:
        return
    names = pd.Series([_call(p.name) for p in folders], dtype=object)
    below = pd.Series([q.name for p in folders for q in entries(p) if q.is_dir()], dtype=object)
    is_class, is_below = (as_levels(s, wanted.levels, ())[0].notna() for s in (names, below))
    if not is_class.any() and is_below.any():
        what = f"expected folders of classes ({', '.join(wanted.levels)}), got those of sites ({', '.join(names[:3])})."
        raise _refusal(path, what, "Give the folder of one site, or of several one after the other.")


def _cell(file: Path) -> Any:
    """The path of a picture, a MisfitError, or None where it is no picture and nobody could take it for one."""
    if not file.exists():
        return MisfitError("unreadable", "it is a broken link", "Put the picture itself there.")
    ending = file.suffix.lower()
    if ending in ENDINGS:
        return file
    if ending in DICOM:
        return dicom()
    if not file.is_file():  # a pipe would be waited for
        return None
    try:
        with file.open("rb") as opened:
            return dicom() if is_dicom(opened.read(132)) else None
    except OSError:
        return None


def _objects(cells: list[Any]) -> pd.Series:
    return pd.Series(cells, dtype=object)


def _from_file(path: Path, wanted: ImageRequest) -> pd.DataFrame:
    ending = path.suffix.lower()
    if not path.exists():
        raise _refusal(path, "there is no such folder or file.", "Check the path.")
    if ending in DICOM:
        raise _refusal(path, f"{dicom().what}.", dicom().hint)
    if ending in ENDINGS:  # one picture, to predict
        return pd.DataFrame({wanted.picture: _objects([path])}).set_axis(pd.Index([path.name], dtype=object))
    if ending not in FILES or not path.is_file():
        what = f"expected a folder, or a file ending in {', '.join(FILES)}, got {path.name!r}."
        raise _refusal(path, what, "Put pictures into folders by class.")
    columns = _from_npz(path, wanted) if ending == ".npz" else _from_parquet(path, wanted)
    lengths = {name: len(cells) for name, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{n} in {name!r}" for name, n in lengths.items())
        raise _refusal(path, f"expected one row for each picture in every column, got {counts}.", "Correct the file.")
    if not next(iter(lengths.values())):
        raise _refusal(path, "expected pictures, but there are none.", "Check the file.")
    return pd.DataFrame({name: _objects(cells) for name, cells in columns.items()})


def _from_npz(path: Path, wanted: ImageRequest) -> dict[str, list[Any]]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            sources = _choose(path, list(file.files), wanted)
            arrays = {name: [file[source] for source in parts] for name, parts in sources.items()}
    except VitrailError:
        raise
    except Exception as error:  # a broken archive raises whatever zip, zlib and numpy raise
        hint = "Save it again, with numpy.savez_compressed and arrays of numbers or texts."
        raise _refusal(path, f"it cannot be read ({type(error).__name__}: {str(error)[:80]}).", hint) from None
    readers = {name: _rows if name == wanted.picture else _labels for name in arrays}
    return {
        name: [cell for part in parts for cell in readers[name](path, name, part)] for name, parts in arrays.items()
    }


def _rows(path: Path, name: str, array: Any) -> list[Any]:
    if array.ndim < 3:
        what = f"expected pictures [row, height, width] in {name!r}, got {list(array.shape)}."
        raise _refusal(path, what, "Save one array of all pictures, row by row.")
    return list(array)


def _labels(path: Path, name: str, array: Any) -> list[Any]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        what = f"expected one value for each picture in {name!r}, got {list(array.shape)}."
        raise _refusal(path, what, "A picture has one class: give its name or number.")
    return [cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell for cell in array.tolist()]


def _from_parquet(path: Path, wanted: ImageRequest) -> dict[str, list[Any]]:
    import pyarrow.parquet as pq  # slow to import, seldom needed

    try:
        schema = pq.read_schema(path)
        names = list(schema.names)
        if wanted.levels is None and (picture_column := picture_columns(schema)):  # a draft: known by what it holds
            names = [name for name in names if name not in PICTURES or name == picture_column[0]]
            wanted = wanted if picture_column[0] in PICTURES else wanted._replace(picture=picture_column[0])
        sources = {name: parts[0] for name, parts in _choose(path, names, wanted, ()).items()}
        data = pq.read_table(path, columns=list(set(sources.values())))
        return {name: data.column(data.column_names.index(source)).to_pylist() for name, source in sources.items()}
    except VitrailError:
        raise
    except Exception as error:  # the decoder may raise anything on a damaged file, and none of it is ours
        what = f"expected a Parquet file, got something else ({type(error).__name__})."
        raise _refusal(path, what, "Export it again.") from None


def picture_columns(schema: Any) -> list[str]:
    """Columns of a Parquet file that can hold pictures: bytes, {"bytes": ...}, lists of lists."""
    return [str(f.name) for f in schema if re.match(r"(large_)?binary|struct<.*bytes: |(\w*list<.*){2}", str(f.type))]


def _choose(path: Path, names: list[str], wanted: ImageRequest, parts: tuple[str, ...] = PARTS) -> dict[str, list[str]]:
    """What each wanted column is made of, the pictures first: one array, or its parts."""
    sources = {
        wanted.picture: _source(names, [wanted.picture, *PICTURES], parts),
        wanted.target: _source(names, [wanted.target, *LABELS], parts),
        wanted.site: _source(names, [wanted.site], parts),
        wanted.person: _source(names, [wanted.person], parts),
    }
    if not sources[wanted.picture]:
        what = f"expected pictures in {wanted.picture!r}, but there are none."
        raise _refusal(path, what, nearest(wanted.picture, names))
    return {name: source for name, source in sources.items() if name and source}


def _source(names: list[str], spellings: list[str], parts: tuple[str, ...]) -> list[str]:
    """The first spelling that is there, whole or in parts."""
    for spelling in filter(None, spellings):
        several = [n for part in parts for n in (f"{part}_{spelling}", f"{spelling}_{part}") if n in names]
        if spelling in names or several:
            return [spelling] if spelling in names else several
    return []


def _refusal(path: Path, what: str, hint: str) -> VitrailError:
    return VitrailError(f"cannot read {path.name}", [Problem(str(path), what, hint)])
