"""Pictures for benchmarks/pictures/indisco.py and planted_bias.py in one file: a GPU machine may have torch and numpy, not us.

    VITRAIL_DATA=... python benchmarks/pictures/indisco.py prepare scratch/biased.npz

Birds (CUB-200-2011, its first 20 classes) are squeezed to 224 x 224 and kept as JPEG; X-rays are all of PneumoniaMNIST,
CIFAR-10 a part; EfficientNet-Lite0 as a file of torch, its convolutions in half precision. Marks are those of
vitrail.data.datasets.planted_shortcuts, drawn on black and on white: what is left of a picture under a mark, and what
the mark adds to it.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARKS = ("emoji", "line", "text")
LINES = {"cub": 64, "xray": 256, "cifar": 256}  # courses that a line may take
SHAPES = {"cub": (3, 224, 224), "xray": (1, 28, 28), "cifar": (3, 32, 32)}
SIDE, QUALITY = 224, 80
CIFAR_ROWS = 400  # of each class
Arrays = dict[str, NDArray[Any]]
Pictures = NDArray[np.uint8]  # [row, channel, height, width]


def prepare(path: Path) -> None:
    held = Path(os.environ["VITRAIL_DATA"])
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {**birds(held / "cub200_first20"), "weights": weights(held / "efficientnet_lite0")}
    with np.load(held / "pneumoniamnist" / "pneumoniamnist.npz") as z:
        parts = ("train", "val", "test")
        arrays["xray"] = np.concatenate([z[f"{p}_images"] for p in parts])[:, None]
        arrays["xray labels"] = np.concatenate([z[f"{p}_labels"][:, 0] for p in parts]).astype(np.int64)
    with np.load(held / "cifar10_subset" / "cifar10_8k_2k.npz") as z:
        labels = z["y_train"].astype(np.int64)
        some = np.sort(np.concatenate([np.flatnonzero(labels == k)[:CIFAR_ROWS] for k in range(10)]))
        arrays |= {"cifar": z["x_train"][some].transpose(0, 3, 1, 2), "cifar labels": labels[some]}
    for data, shape in SHAPES.items():
        for mark in MARKS:
            arrays[f"{data} {mark}"] = drawn(mark, shape, LINES[data] if mark == "line" else 1)
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def birds(folder: Path) -> Arrays:
    from PIL import Image

    files, labels, test = [], [], []
    with zipfile.ZipFile(folder / "cub200_first20_224.zip") as z:
        for name in sorted(n for n in z.namelist() if n.endswith(".jpg")):
            out = io.BytesIO()
            picture = Image.open(io.BytesIO(z.read(name))).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            picture.save(out, "JPEG", quality=QUALITY)
            files.append(out.getvalue())
            part, kind = name.split("/")[-3:-1]
            labels.append(int(kind.split(".")[0]) - 1)
            test.append(part == "test")
    return {
        "cub files": np.frombuffer(b"".join(files), np.uint8),
        "cub ends": np.cumsum([len(f) for f in files]),
        "cub labels": np.array(labels),
        "cub test": np.array(test),
    }


def weights(folder: Path) -> NDArray[np.uint8]:
    """Without the layers that tell ImageNet's classes."""
    import torch

    held = torch.load(next(folder.glob("*.pth")), map_location="cpu", weights_only=True)
    kept = {k: v.half() if v.dim() == 4 else v for k, v in held.items() if not k.startswith(("_fc", "_conv_head"))}
    out = io.BytesIO()
    torch.save(kept, out)
    return np.frombuffer(out.getvalue(), np.uint8)


def drawn(mark: str, shape: tuple[int, ...], many: int) -> NDArray[np.uint8]:
    """[(added, left), mark, channel, height, width]: a picture p becomes added + p left / 255."""
    import pandas as pd

    from vitrail.data.datasets import planted_shortcuts

    def on(colour: int) -> NDArray[np.int64]:
        blank = np.full(shape, colour, np.uint8)
        frame = pd.DataFrame({"picture": [blank] * many, "y": ["marked"] * many})
        done = getattr(planted_shortcuts, mark)({"a": frame}, site="a", label="marked", target="y").sites["a"]
        return np.stack(list(done["picture"])).astype(np.int64)

    black, white = on(0), on(255)
    return np.stack([black, white - black]).astype(np.uint8)


def load(path: Path) -> Arrays:
    with np.load(path) as z:
        return {k: z[k] for k in z.files}


def marked(pack: Arrays, data: str, mark: str, pictures: Pictures, which: NDArray[Any]) -> tuple[Pictures, Any]:
    """With a mark on each, and where it is, [row, height, width] bool; `which`: a number for each picture, by which its
    line takes another course."""
    added, left = pack[f"{data} {mark}"]
    at = np.asarray(which) % len(added)
    out = (added[at] + pictures * (left[at] / 255.0)).round().clip(0, 255).astype(np.uint8)
    return out, (left[at] < 255).any(1)


def decoded(pack: Arrays, rows: NDArray[Any]) -> Pictures:
    """Birds."""
    ends = pack["cub ends"]
    files = [pack["cub files"][ends[i - 1] if i else 0 : ends[i]] for i in rows]
    try:
        from PIL import Image

        found = [np.asarray(Image.open(io.BytesIO(f.tobytes())).convert("RGB")).transpose(2, 0, 1) for f in files]
    except ImportError:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        found = [decode_jpeg(torch.from_numpy(f.copy()), mode=ImageReadMode.RGB).numpy() for f in files]
    return np.ascontiguousarray(np.stack(found))


def dealt(labels: NDArray[Any], rows: NDArray[Any], sites: int, rng: np.random.Generator) -> list[NDArray[Any]]:
    """These rows over sites, each class as evenly as can be; where one is left over is drawn."""
    held: list[list[int]] = [[] for _ in range(sites)]
    for k in np.unique(labels[rows]):
        first = int(rng.integers(sites))
        for i, row in enumerate(rng.permutation(rows[labels[rows] == k])):
            held[(first + i) % sites].append(int(row))
    return [np.array(h) for h in held]
