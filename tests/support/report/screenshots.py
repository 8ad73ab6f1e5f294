"""Pages in a real browser: screenshots and what is in them."""

from __future__ import annotations

import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np

from tests.support.report.browser import BROWSER, FLAGS


def browse(folder: Path, html: str, *options: str) -> str:
    assert BROWSER is not None, "CI is set, so that Chromium must be installed"
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def pixels(path: Path) -> np.ndarray:
    """A PNG's pixels [row, column, channel] as Chromium writes it: 8 bits, not interlaced."""
    data, at, packed, shape = path.read_bytes(), 8, b"", (0, 0, 0)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        at += 12 + length
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
            shape = (height, width, {2: 3, 6: 4}[colour])
        elif kind == b"IDAT":
            packed += body
    height, width, channels = shape
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    before, rows = [0] * (width * channels), []
    for line in raw.tolist():
        kind, row = line[0], line[1:]
        for i in range(len(row)) if kind else ():
            left = row[i - channels] if i >= channels else 0
            up, corner = before[i], before[i - channels] if i >= channels else 0
            row[i] = (row[i] + _guess(kind, left, up, corner)) & 255
        rows.append(row)
        before = row
    return np.array(rows, np.uint8).reshape(shape)[:, :, :3]


def _guess(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    guess = left + up - corner
    return min((left, up, corner), key=lambda v: abs(guess - v))
