"""Bytes changed, cut out, put in or missing: pictures are read, or refused in words; nothing else is raised."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import vitrail as vt
from tests.support.picture_sites import encoded, soft, study
from vitrail.core.errors import VitrailError
from vitrail.data.drafting.features import read_drafts
from vitrail.data.readers.tables import clean, read_sites, read_table
from vitrail.quality.checks.table import check_sites

X = soft(6, channels=3)
TURNED = Image.Exif()
TURNED[0x0112] = 6
AGREED = study(channels=3, fit="resize", bits=16).with_changes(site_column="ward")


def npz(**how: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if how.get("packed") else np.savez)(
        file, picture=X, ward=["a", "b"] * 3, **{"class": ["ill", "well"] * 3}
    )
    return file.getvalue()


def parquet(cells: list[Any]) -> bytes:
    file = io.BytesIO()
    pd.DataFrame({"picture": cells, "ward": ["a", "b"] * 3, "class": ["ill", "well"] * 3}).to_parquet(file)
    return file.getvalue()


WHOLE = {
    "a.png": encoded(X[0]),
    "palette.png": encoded(Image.fromarray(X[0]).quantize(16)),
    "deep.png": encoded(X[0][:, :, 0].astype(np.uint16) * 200),
    "a.jpg": encoded(X[0], "JPEG", exif=TURNED),
    "waves.jpg": encoded(X[0], "JPEG", progressive=True),
    "a.bmp": encoded(X[0], "BMP"),
    "a.webp": encoded(X[0], "WEBP"),
    "plain.tif": encoded(X[0], "TIFF"),
    "lzw.tif": encoded(X[0], "TIFF", compression="tiff_lzw"),
    "plain.npz": npz(),
    "packed.npz": npz(packed=True),
    "bytes.parquet": parquet([encoded(p) for p in X]),
    "dicts.parquet": parquet([{"bytes": encoded(p, "JPEG"), "path": "x"} for p in X]),
    "lists.parquet": parquet([p.tolist() for p in X]),
}


def hurt(raw: bytes, rng: random.Random) -> bytes:
    at, some = rng.randrange(len(raw)), rng.randrange(1, 40)
    way = rng.random()
    if way < 0.2:
        return raw[:at]
    if way < 0.3:
        return raw[:at] + raw[at + some :]
    if way < 0.4:
        return raw[:at] + rng.randbytes(some) + raw[at:]
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        near = rng.randrange(len(raw) if rng.random() < 0.6 else min(len(raw), 200))  # headers are hit more often
        out[near] = rng.choice((0, 255, rng.randrange(256), out[near] ^ 1 << rng.randrange(8)))
    return bytes(out)


def attempt(place: Path) -> bool:
    """Whether it can be read. Only our own error may be raised, by every way in."""
    read = True
    for way in (
        lambda: clean(read_table(place, AGREED), AGREED),
        lambda: check_sites([place], AGREED),
        lambda: read_sites(place if place.is_file() else place.parent, AGREED),
        lambda: vt.Study.infer(read_drafts([place], "class"), "class"),
    ):
        try:
            way()
        except VitrailError:
            read = False
    return read


def place(tmp_path: Path, name: str, raw: bytes) -> Path:
    if name.endswith(("npz", "parquet")):
        (tmp_path / name).write_bytes(raw)
        return tmp_path / name
    for label in ("ill", "well"):
        (tmp_path / "sites" / "north" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sites" / "north" / label / name).write_bytes(raw if label == "ill" else WHOLE[name])
    return tmp_path / "sites" / "north"


@pytest.mark.parametrize("name", WHOLE)
def test_hurt_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    assert attempt(place(tmp_path, name, WHOLE[name])), "the whole one must be read"
    rng = random.Random(name)
    read = [attempt(place(tmp_path, name, hurt(WHOLE[name], rng))) for _ in range(25)]
    assert not all(read)


@pytest.mark.parametrize("name", ["a.png", "deep.png", "palette.png"])
def test_a_png_with_any_changed_byte_of_its_pixels_is_refused(name: str, tmp_path: Path) -> None:
    raw = WHOLE[name]
    first = raw.index(b"IDAT") + 4
    rng = random.Random(1)
    for at in rng.sample(range(first, len(raw) - 16), 20):
        changed = raw[:at] + bytes([raw[at] ^ rng.randrange(1, 256)]) + raw[at + 1 :]
        assert not attempt(place(tmp_path, name, changed)), at
