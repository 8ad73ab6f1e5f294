"""Pictures that tests make themselves: soft shapes, no two alike, in folders and files as sites keep them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vitrail.cli import main
from vitrail.study.model import Study

SIDE = 24
CLASSES = ("ill", "well")


def study(**images: Any) -> Study:
    return Study.parse(
        {
            "target": {"column": "class", "classes": list(CLASSES), "positive": "ill"},
            "images": {"size": (SIDE, SIDE), **images},
            "split": {"at_least": 0},
        }
    )


def soft(n: int, seed: int = 0, channels: int = 0) -> Any:
    """uint8 [n, SIDE, SIDE] or with channels last: blurred noise."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n * max(channels, 1)):
        coarse = Image.fromarray(rng.integers(30, 220, (5, 5)).astype(np.uint8))
        fine = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC)).astype(int)
        out.append((fine + rng.integers(-6, 7, fine.shape)).clip(0, 255).astype(np.uint8))
    flat = np.stack(out)
    return flat.reshape(n, channels, SIDE, SIDE).transpose(0, 2, 3, 1) if channels else flat


def encoded(pixels: Any, kind: str = "PNG", **how: Any) -> bytes:
    file = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, kind, **how)
    return file.getvalue()


def write_folder(place: Path, pictures: Any, per_class: int | None = None) -> Path:
    """SITE/CLASS/NN.png, the classes in turn."""
    for i, pixels in enumerate(pictures):
        folder = place / CLASSES[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:02}.png").write_bytes(encoded(pixels))
    return place


def frame_of(pictures: Any) -> pd.DataFrame:
    labels = [CLASSES[i % 2] for i in range(len(pictures))]
    return pd.DataFrame({"picture": pd.Series(list(pictures), dtype=object), "class": labels})


def vitrail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str]:
    """The command line in this process: its exit code and all that it said. A traceback would be an exception here."""
    monkeypatch.setattr(sys, "argv", ["vitrail", *map(str, words)])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    said = capsys.readouterr()
    return code, said.out + said.err
