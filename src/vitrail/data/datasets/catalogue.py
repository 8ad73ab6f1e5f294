"""Real tables. `heart_disease` and `titanic` are in the package; the others are found through VITRAIL_DATA.

Each function gives {site name: DataFrame}, or one DataFrame where the data has no sites of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zipfile
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.datasets.partition import by_column
from vitrail.data.readers.images import decoded, fit_pixels
from vitrail.data.schema import Images

HEART_ATTRIBUTION = (
    "UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano, 1988; UCI dataset 45), CC BY 4.0. Investigators: "
    "Andras Janosi, M.D. (Hungarian Institute of Cardiology, Budapest); William Steinbrunn, M.D. (University Hospital, "
    "Zurich); Matthias Pfisterer, M.D. (University Hospital, Basel); Robert Detrano, M.D., Ph.D. (V.A. Medical Center, "
    "Long Beach and Cleveland Clinic Foundation)."
)
PNEUMONIA_ATTRIBUTION = (
    "PneumoniaMNIST (MedMNIST v2: Yang, Shi, Wei, Liu, Zhao, Ke, Pfister, Ni, Scientific Data 2023), CC BY 4.0, from "
    "chest X-rays of children (Kermany, Goldbaum, Cai et al., Cell 2018; Guangzhou Women and Children's Medical "
    "Center). Changed by us: 1560 of the pictures, cut into four sites."
)
FINDINGS = ("normal", "pneumonia")
CLINICS_ATTRIBUTION = (
    f"{HEART_ATTRIBUTION} Changed by us (semi-synthetic): the patients were dealt to three clinics that do not exist, "
    "the days of their visits are invented, and outcomes at one clinic were changed."
)
ATTRIBUTIONS = {  # by the name of the packaged study
    "Heart disease, four hospitals": HEART_ATTRIBUTION,
    "Heart disease, a hospital and a laboratory": HEART_ATTRIBUTION,
    "Heart disease, three invented clinics": CLINICS_ATTRIBUTION,
    "Pneumonia in chest X-rays, four sites": PNEUMONIA_ATTRIBUTION,
    "Pneumonia in chest X-rays, one site with a mark": PNEUMONIA_ATTRIBUTION,
}
HEART_COLUMNS = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
]
ADULT_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "country",
    "target",
]

# folder/file -> sha256
_OUTSIDE = {
    "adult/adult.data.gz": "258f454bb3e48c55b9094c323738c1f4a144d09a63fb46bf294feb03891430e2",
    "cifar10_subset/cifar10_8k_2k.npz": "0ceb1d193da8b34a7ad493fad0792e5b04d48b81e0d4a51397b1fbfb12cbffeb",
    "cub200_first20/cub200_first20_224.zip": "4aa0032267347add74b33941ef024a97ced8dc8f7100ed9e30dc3bd3f538e390",
    "cub200_first20/index.csv": "26c8af762ce73fad4cd8f18ae3e7c1d090c69dc1a42ed577f07b9872eab600da",
    "gusto/gusto.csv.gz": "c27126406346f75c31b7bab6b4ed291065b9eb6a67eb117d3e7908ac0060c326",
    "har_smartphones/har_features_recomputed.npz": "a21ee987ee0408e3e3a05cf3f06586b01459fa207d066aa1d0ce20f30d7bb970",
    "pneumoniamnist/pneumoniamnist.npz": "ce8250bf5debc3c389b89affcc1d9feac579b26e875a848301e9f937bb0c2eee",
    "vehicle_sensor/vehicle_ditto_train.csv.gz": "aec88ce44bd4da165d8e16fbf188cc9f9d2358ec865041f03478202307916c76",
}


def packaged(name: str) -> Path:
    """A file that is shipped with us."""
    return Path(str(files("vitrail.data.datasets") / "files" / name))


def heart_disease() -> dict[str, pd.DataFrame]:
    """Four hospitals, 920 patients, 13 features; `disease` is 1 for any narrowing above 50 % (grades 1 to 4)."""
    out = {}
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        frame = pd.read_csv(packaged(f"processed.{site}.data"), header=None, names=HEART_COLUMNS, na_values="?")
        frame["disease"] = (frame.pop("num") > 0).astype(int)
        out[site] = frame
    return out


def cleveland_parties() -> dict[str, pd.DataFrame]:
    """The Cleveland patients at a `hospital` and at a `lab`, which has ECG and stress test; `new`: of ten more patients
    what a hospital knows. Their numbers are ours, and each party lacks a few patients of the other and writes numbers
    its own way."""
    frame, theirs = heart_disease()["cleveland"], ["restecg", "thalach", "exang", "oldpeak", "slope", "thal"]
    numbers = [f"CC-{1000 + 7 * i}" for i in range(len(frame))]
    frame.insert(0, "patient", numbers)
    lab = frame[theirs].assign(number=[n.lower().replace("-", " ") for n in numbers])
    lab = lab[["number", *theirs]].drop(index=frame.index[11::23])
    own = frame.drop(columns=theirs)
    return {"hospital": own[:-10], "lab": lab.sample(frac=1, random_state=1), "new": own[-10:].drop(columns="disease")}


def titanic() -> pd.DataFrame:
    """1309 passengers. Columns that leak the outcome (boat, body) or name persons are left out."""
    frame = pd.read_csv(packaged("titanic3.csv.gz"), encoding="utf-8-sig").dropna(how="all")
    frame["alone"] = ((frame.sibsp + frame.parch) == 0).astype(int)
    frame["minor"] = (frame.age <= 16).astype(float).where(frame.age.notna())
    columns = ["survived", "pclass", "sex", "age", "minor", "fare", "embarked", "alone"]
    return frame[columns].astype({"survived": int, "pclass": int}).reset_index(drop=True)


def pneumonia() -> dict[str, pd.DataFrame]:
    """Four sites, 1560 chest X-rays of 28 x 28 pixels in the column `picture`; `finding` is normal or pneumonia.

    All are of one hospital, cut into sites (benchmarks/pictures/make_pneumonia.py): `large` has as many of each
    finding, at `referral` 85 % have pneumonia, at `screening` 15 %, and `small` has those that the collectors had put
    aside to test on, which models find harder. There are no patients' numbers: one child may be on several pictures.
    """
    with np.load(packaged("pneumonia.npz")) as z:
        frame = _pictures(z["picture"], finding=z["finding"], site=z["site"])
    return {str(name): frame[frame.site == name].drop(columns="site") for name in frame.site.unique()}


def pneumoniamnist() -> pd.DataFrame:
    """PneumoniaMNIST as a whole, 5856 pictures: `picture`, `finding`, and `part` (train, val or test)."""
    with np.load(io.BytesIO(_outside("pneumoniamnist/pneumoniamnist.npz"))) as z:
        parts = [
            _pictures(z[f"{part}_images"], finding=_named(z[f"{part}_labels"][:, 0], FINDINGS), part=part)
            for part in ("train", "val", "test")
        ]
    return pd.concat(parts, ignore_index=True)


def cifar10_subset() -> pd.DataFrame:
    """10000 colour pictures of CIFAR-10, 32 x 32: `picture`, `label` of 10 by name, and `part` (train 8000, test)."""
    with np.load(io.BytesIO(_outside("cifar10_subset/cifar10_8k_2k.npz"))) as z:
        parts = [
            _pictures(z[f"x_{part}"], label=_named(z[f"y_{part}"], z["classes"]), part=part)
            for part in ("train", "test")
        ]
    return pd.concat(parts, ignore_index=True)


def cub(size: int = 224) -> pd.DataFrame:
    """1115 photographs of 20 kinds of birds (the first of CUB-200-2011): `picture`, the middle square brought to
    size x size, `label` by name, and `part` (train 600, test). For non-commercial research and education only."""
    index = pd.read_csv(io.BytesIO(_outside("cub200_first20/index.csv")))
    agreed = Images(size=(size, size), channels=3, fit="resize")
    with zipfile.ZipFile(io.BytesIO(_outside("cub200_first20/cub200_first20_224.zip"))) as file:
        pixels = np.stack(
            [fit_pixels(_square(decoded(file.read(name))), agreed).transpose(1, 2, 0) for name in index.file]
        )
    return _pictures(pixels, label=list(index.class_name.str.replace("_", " ")), part=list(index.split))


def _square(pixels: NDArray[Any]) -> NDArray[Any]:
    """The middle of a picture."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top : top + side, left : left + side]


def _pictures(pixels: NDArray[np.uint8], **columns: Any) -> pd.DataFrame:
    """A frame with a cell for each picture."""
    return pd.DataFrame({"picture": pd.Series(list(pixels), dtype=object), **columns})


def _named(y: NDArray[Any], names: Sequence[Any]) -> list[str]:
    return [str(names[int(k)]) for k in y]


def adult() -> pd.DataFrame:
    """Census income, 32561 rows; `target` is `<=50K` or `>50K`."""
    text = gzip.decompress(_outside("adult/adult.data.gz"))
    return pd.read_csv(io.BytesIO(text), header=None, names=ADULT_COLUMNS, skipinitialspace=True, na_values="?")


def gusto(site: str = "regl") -> dict[str, pd.DataFrame]:
    """30-day mortality (`day30`) after a heart attack, by region (`regl`, 16), or `grpl` (48) or `grps`."""
    frame = pd.read_csv(io.BytesIO(gzip.decompress(_outside("gusto/gusto.csv.gz"))))
    # the other site codes and the treatment columns that are missing by design are no predictors
    frame = frame.drop(columns=[c for c in ("regl", "grpl", "grps", "tpa", "tx") if c != site])
    return dict(sorted((f"region-{int(k):02d}", v) for k, v in by_column(frame, site).items()))


def har() -> dict[str, pd.DataFrame]:
    """Smartphone activity by subject: 30 sites, 414 features recomputed from the raw signals; `activity` of 6."""
    with np.load(io.BytesIO(_outside("har_smartphones/har_features_recomputed.npz"))) as z:
        x, names, y, subject = z["x"] * float(z["step"]), [str(n) for n in z["names"]], z["y"], z["subject"]
    frame = pd.DataFrame(x, columns=names)
    frame["activity"] = y
    return {f"subject-{s:02d}": frame[subject == s].reset_index(drop=True) for s in range(1, 31)}


def vehicle() -> dict[str, pd.DataFrame]:
    """Vehicle sensor network: 23 sensors, 100 features standardised per sensor, `label` -1 or 1; 7 to 534 rows each."""
    frame = pd.read_csv(io.BytesIO(gzip.decompress(_outside("vehicle_sensor/vehicle_ditto_train.csv.gz"))))
    return {f"sensor-{int(k):02d}": v for k, v in sorted(by_column(frame, "sensor").items(), key=lambda kv: int(kv[0]))}


@cache
def _outside(name: str) -> bytes:
    root = os.environ.get("VITRAIL_DATA")
    how = f"Set VITRAIL_DATA to the folder that holds {name} (sha256 {_OUTSIDE[name]})."
    if not root:
        raise VitrailError("this data is not shipped with Vitrail", [Problem(name, "VITRAIL_DATA is not set.", how)])
    path = Path(root) / name
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise VitrailError("this data was not found", [Problem(str(path), f"{error.strerror}.", how)]) from None
    if (got := hashlib.sha256(raw).hexdigest()) != _OUTSIDE[name]:
        what = f"its sha256 is {got}; our results were made with another file."
        raise VitrailError("this data is not the expected one", [Problem(str(path), what, how)])
    return raw
