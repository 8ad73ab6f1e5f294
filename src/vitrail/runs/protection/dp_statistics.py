"""What is counted from rows before the first round, under noise where rows are private: classes, means and spreads.

A row adds 1 to the count of one class. Of every numeric column, with its agreed range as [-1, 1], it adds 1, u and u^2
to three sums: of d columns together no more than sqrt(3 d). Where the study names persons, each row of one with m rows
counts for 1/m, so that a person adds no more than a row. Noise of z times that is added once to each sum, at the
site, and what is made of the sums tells no more than they do. In a simulation the noise is drawn from the seed, between
machines from the site's own generator, on a grid (privacy/noise.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from vitrail.core.random import key, normals
from vitrail.data.encoding import Encoder, SiteData, encode_sites, numeric
from vitrail.data.persons import count_persons, person_shares, persons_of
from vitrail.data.splitting import Splits
from vitrail.privacy.noise import Generator, blurred
from vitrail.runs.protection.budget import start_noise
from vitrail.study.model import Study

SMALLEST = 0.01  # of half a range: no spread is taken for less
AddNoise = Callable[[str, NDArray[np.float64], float, float], NDArray[np.float64]]
"""(what is counted, the numbers, how far one row moves them together, z) -> the numbers under noise"""


def encoded(
    cleaned: Mapping[str, pd.DataFrame],
    study: Study,
    seed: int,
    splits: Splits,
    secrets: Mapping[str, str] | None = None,
    shared_scale: Encoder | None = None,
) -> list[SiteData]:
    """The one way from cleaned tables to the rows of a run, at a deployed site as in a simulation. Where rows are
    private, means are noisy, and so are counts of classes. `secrets`: from which each site draws its noise; without
    them it is drawn from the seed, as in a simulation. `shared_scale`: that of all sites, fitted before."""
    noise = start_noise(study)
    if not noise:
        return encode_sites(cleaned, study, splits, shared_scale)
    encoder_for, counts = {}, {}
    for name, frame in cleaned.items():
        y = frame[study.target.column].to_numpy()
        rows = splits[name][0]
        add_noise = from_secret(secrets[name]) if secrets else _from_seed(study, key(seed, name, "counts"))
        encoder_for[name] = (
            encoder_of(frame.iloc[rows], study, noise["columns"], add_noise) if "columns" in noise else None
        )
        if "classes" in noise:
            part = parts_of(frame.iloc[rows], study)
            plain = np.bincount(y[rows].astype(np.int64), part, len(study.target.levels)).astype(np.float64)
            counts[name] = add_noise("classes", plain, 1.0, noise["classes"]).clip(min=1.0)
    encoders = {k: v for k, v in encoder_for.items() if v is not None}
    sites = encode_sites(cleaned, study, splits, encoders or None)
    return [site._replace(counts=counts.get(site.name)) for site in sites]


def training_sizes(cleaned: Mapping[str, pd.DataFrame], study: Study, splits: Splits) -> dict[str, int]:
    """How many rows, or persons where the study names them, each site will train on."""
    return {n: count_persons(f.iloc[splits[n][0]], study) for n, f in cleaned.items()}


def parts_of(train: pd.DataFrame, study: Study) -> NDArray[np.float64] | None:
    """[row]: what each row counts for in a sum to which no person may add more than one row's part."""
    persons = persons_of(train, study)
    return None if persons is None else person_shares(persons)


def encoder_of(train: pd.DataFrame, study: Study, noise: float, add_noise: AddNoise) -> Encoder:
    """Means and spreads from noisy sums. A spread is no smaller than its noise would make it, so that no column is
    blown up by what is not there."""
    names = numeric(study)
    middle, half = _ranges(study)
    reach = float(np.sqrt(3 * len(names)))
    sd = noise * reach
    count, total, square = add_noise("columns", sums_of(train, study), reach, noise)
    count = count.clip(min=1.0)
    mean = (total / count).clip(-1, 1)
    variance = np.maximum(square / count - mean**2, 2 * sd / count).clip(SMALLEST**2, 1.0)
    spread = np.sqrt(variance)
    center, scale = (dict(zip(names, v.tolist(), strict=True)) for v in (middle + half * mean, half * spread))
    return Encoder(study, center, scale)


def sums_of(train: pd.DataFrame, study: Study) -> NDArray[np.float64]:
    """[3, column]: how many have a value, their sum and that of their squares, a range being [-1, 1]."""
    middle, half = _ranges(study)
    u = ((train[numeric(study)].to_numpy(np.float64) - middle) / half).clip(-1, 1)  # [row, column]
    there = ~np.isnan(u)
    u = np.where(there, u, 0.0)
    if (part := parts_of(train, study)) is not None:
        return np.stack([part @ there, part @ u, part @ (u * u)])
    return np.stack([there.sum(0), u.sum(0), (u * u).sum(0)]).astype(np.float64)


def _ranges(study: Study) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[column]: the middle of the agreed range, and half its width."""
    ends = np.array([study.features[n].range for n in numeric(study)], dtype=np.float64)
    return ends.mean(1), (ends[:, 1] - ends[:, 0]).clip(min=1e-12) / 2


def without_range(study: Study) -> list[str]:
    """Numeric columns of which nobody agreed how large a value can be."""
    return [n for n in numeric(study) if study.features[n].range is None]


def from_secret(secret: str) -> AddNoise:
    """Noise of a site's own generator."""
    generator = Generator(secret)

    def add(what: str, numbers: NDArray[np.float64], reach: float, noise: float) -> NDArray[np.float64]:
        noisy: NDArray[np.float64] = blurred(torch.from_numpy(numbers), reach, noise, generator, "counts", what).numpy()
        return noisy.reshape(numbers.shape)

    return add


def _from_seed(study: Study, seed: int) -> AddNoise:
    """Noise that follows from the seed, for simulations."""
    sums, levels = 3 * len(numeric(study)), len(study.target.levels)
    lot = normals(torch.tensor([seed]), sums + levels)[0].numpy()
    lots = {"columns": lot[:sums], "classes": lot[sums:]}

    def add(what: str, numbers: NDArray[np.float64], reach: float, noise: float) -> NDArray[np.float64]:
        noisy: NDArray[np.float64] = numbers + noise * reach * lots[what].reshape(numbers.shape)
        return noisy

    return add
