"""Synthetic pages for the tests: plausible numbers, made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.facts import Facts
from vitrail.data.datasets.catalogue import packaged
from vitrail.methods import AnyMethod, FedAvg
from vitrail.quality.screening.result import LABEL, Finding, Screening
from vitrail.report import Page
from vitrail.report.pages.frame import SCRIPT, part
from vitrail.runs.result import HISTORY, Run
from vitrail.study.model import Study

TITLES = {
    "local": "Local",
    "centralized": "Centralized",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedper": "FedPer",
    "apfl": "APFL",
    "scaffold": "SCAFFOLD",
    "ditto": "Ditto",
    "fine_tune": "FedAvg + fine-tuning",
}
MORE = ("iFedAvg", "Weight Erosion", "Influence", "Transfer, top 3", "A method of our own")  # beside TITLES: fourteen
HEART = ("cleveland", "hungarian", "switzerland", "va")
LEVELS = {"cleveland": 0.80, "hungarian": 0.78, "switzerland": 0.56, "va": 0.64}  # trained alone
# how joining changes each heart site: the hospital with a rare class suffers under one model for all
SHIFTS = {
    "centralized": (0.015, 0.02, -0.03, 0.03),
    "fedavg": (0.005, 0.018, -0.055, 0.025),
    "fedprox": (0.003, 0.02, -0.045, 0.02),
    "fedper": (0.008, 0.022, 0.03, 0.032),
    "apfl": (0.006, 0.015, 0.012, 0.02),
    "scaffold": (0.0, 0.01, -0.07, 0.012),
    "ditto": (0.004, 0.02, 0.018, 0.028),
    "fine_tune": (0.007, 0.024, 0.005, 0.022),
}
SEEDS = (2934384, 10231938, 8273, 2019231, 62739)
METRICS = ("balanced_accuracy", "accuracy", "f1", "auc")
ROW = ["method", "metric", "mean", "mean_low", "mean_high", "worst_site", "worst", "worst_low", "worst_high"]
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</svg>",
    "a & b' --> ]]> {{ 7*7 }}",
)


def without_script(html: str) -> str:
    """The page without its one script, which is ours."""
    script = f"<script>{part(SCRIPT)}</script>"
    assert html.count(script) == 1
    return html.replace(script, "")


def make(
    sites: Sequence[str] = HEART,
    methods: Sequence[str] = tuple(TITLES),
    seeds: Sequence[int] = SEEDS,
    rounds: int = 60,
    kind: str = "compare",
    **changes: Any,
) -> Page:
    """A whole page; `changes` replace fields of it."""
    rng = np.random.default_rng(7)
    level = {s: LEVELS.get(s, rng.uniform(0.55, 0.9)) for s in sites}
    extra = {m: {s: SHIFTS.get(m, (0,) * 4)[i % 4] for i, s in enumerate(sites)} for m in methods}
    scores, curves = [], []
    for seed in seeds:
        luck = {s: rng.normal(0, 0.02) for s in sites}
        for m in methods:
            for s in sites:
                goal = level[s] + extra[m][s] + luck[s] + rng.normal(0, 0.008)
                t = np.arange(1, rounds + 1)
                speed = 9 if m == "scaffold" else 5 if m == "local" else 12
                path = 0.5 + (goal - 0.5) * (1 - np.exp(-t / speed)) + rng.normal(0, 0.008, rounds)
                path[-1] = goal
                curves += [(m, seed, r, s, "balanced_accuracy", v) for r, v in zip(t.tolist(), path, strict=True)]
                for k, metric in enumerate(METRICS):
                    value = goal + 0.03 * k + (rng.normal(0, 0.01) if k else 0.0)
                    scores.append((m, seed, s, "test", metric, value))
                    scores.append((m, seed, s, "train", metric, value + 0.04))
    table = pd.DataFrame(scores, columns=["method", "seed", "site", "split", "metric", "value"])
    params = {"fedper": 0.84, "scaffold": 2.0}
    federated = [m for m in methods if m not in ("local", "centralized")]
    one = 4 * (19 * 128 + 128 * 64 + 64 * 2 + 194)
    ledger = [
        (
            m,
            s,
            "train",
            d,
            rounds + (d == "to site"),
            (rounds + (d == "to site")) * int(one * params.get(m, 1)),
        )
        for m in federated
        for s in sites
        for d in ("to site", "from site")
    ]
    shapes = {
        "linear0.weight": (128, 19),
        "linear0.bias": (128,),
        "linear1.weight": (64, 128),
        "linear2.weight": (2, 64),
    }
    wire = [
        (
            m,
            "train",
            d,
            f"{p}.{n}",
            str(sh),
            "float32",
            4 * int(np.prod(sh)),
            rounds + (d == "to site"),
            "sum",
        )
        for m in federated
        for d, p in (("to site", "params"), ("from site", "weighted"))
        for n, sh in shapes.items()
    ]
    page: dict[str, Any] = {
        "title": "Heart disease in four hospitals",
        "kind": kind,
        "description": "Is a coronary artery narrowed by more than half? Thirteen clinical features.",
        "about": [
            ("study", "heart_disease.toml, sha256 5f1c…9ab2"),
            ("methods", ", ".join(TITLES.get(m, m) for m in methods)),
            ("seeds", ", ".join(map(str, seeds))),
            ("rounds", str(rounds)),
            ("engine", "vectorised, cpu"),
            ("versions", "vitrail 0.1.0, torch 2.13.0"),
            *((f"data of {s}", "sha256 77ab…01ce") for s in sites),
            ("date", "2025-11-15"),
        ],
        "rounds": rounds,
        "metric": "balanced_accuracy",
        "lower_is_better": False,
        "titles": {m: TITLES.get(m, m) for m in methods},
        "federated": tuple(federated),
        "alone": "local" if "local" in methods else None,
        "pooled": tuple(m for m in ("centralized",) if m in methods),
        "scores": table,
        "curves": pd.DataFrame(curves, columns=["method", "seed", "round", "site", "metric", "value"]),
        "summary": summarise(table, len(seeds)),
        "verdicts": judge(table, sites, federated) if "local" in methods and len(seeds) > 1 else pd.DataFrame(),
        "ledger": pd.DataFrame(ledger, columns=["method", "site", "stage", "direction", "messages", "bytes"]),
        "wire": pd.DataFrame(
            wire,
            columns=["method", "stage", "direction", "name", "shape", "dtype", "bytes", "rounds", "seen"],
        ),
        "sites": pd.DataFrame(
            {
                "site": list(sites),
                "train_rows": [240 - 20 * (i % 7) for i in range(len(sites))],
                "test_rows": [60 - 5 * (i % 7) for i in range(len(sites))],
                "classes": [f"{46 + 5 * (i % 9)} % yes" for i in range(len(sites))],
            }
        ),
        "notes": ["Data: UCI heart disease (Janosi, Steinbrunn, Pfisterer, Detrano 1988)."],
    }
    return Page(**{**page, **changes})


def run_of(
    sites: Sequence[str],
    facts: Facts | None = None,
    history: Sequence[tuple[Any, ...]] = (),
    method: AnyMethod | None = None,
    linear: bool = False,
    **more: Any,
) -> Run:
    """A run that was not run: these facts and scores, no model at hand."""
    study, empty = Study.load(packaged("heart_disease.toml")), pd.DataFrame()
    study = study.with_changes(network={"kind": "linear"}) if linear else study
    info = {"sites": list(sites), "engine": "vectorised", **more.pop("info", {})}
    scores = pd.DataFrame(list(history), columns=HISTORY)
    return Run(study, method or FedAvg(), 1, info, scores, empty, {}, {}, empty, facts or {}, **more)


def summarise(table: pd.DataFrame, seeds: int) -> pd.DataFrame:
    rows = []
    test = table[table["split"] == "test"]
    for (method, metric), frame in test.groupby(["method", "metric"], sort=False):
        by_site = frame.groupby("site", sort=False)["value"].mean()
        worst = by_site.idxmin() if by_site.notna().any() else None
        half = 0.02 if seeds > 1 else np.nan
        low = by_site.min()
        mean = by_site.mean()
        rows.append((method, metric, mean, mean - half, mean + half, worst, low, low - 1.6 * half, low + 1.6 * half))
    return pd.DataFrame(rows, columns=ROW)


def judge(table: pd.DataFrame, sites: Sequence[str], federated: Sequence[str]) -> pd.DataFrame:
    test = table[(table["split"] == "test") & (table["metric"] == "balanced_accuracy")]
    means = test.groupby(["method", "site"])["value"].mean()
    rows = []
    for i, site in enumerate(sites):
        best = "fedper" if "fedper" in federated else federated[0]
        local, joined = means["local", site], means[best, site]
        if i % 4 == 0:
            joined = local - 0.041  # one that loses, for the colours
        gain, half = joined - local, (0.018, 0.012, 0.06, 0.021)[i % 4]
        verdict = "yes" if gain - half > 0 else "no" if gain + half < 0 else "cannot tell"
        why = {
            "yes": f"Together it gains {gain:.3f}, and the interval lies above zero.",
            "no": f"Together it loses {-gain:.3f}, and the interval lies below zero.",
            "cannot tell": "The interval reaches both sides of zero: five seeds do not settle it.",
        }[verdict]
        rows.append((site, "balanced_accuracy", best, local, joined, gain, gain - half, gain + half, verdict, why))
    columns = ["site", "metric", "method", "alone", "joined", "gain", "low", "high", "verdict", "why"]
    return pd.DataFrame(rows, columns=columns)


def long_names(n: int = 30) -> list[str]:
    return [f"University hospital of the {i:02d}th district"[:40].ljust(40, "x") for i in range(n)]


def screened(
    findings: Sequence[Finding] = (),
    sites: Sequence[str] = HEART,
    columns: Sequence[str] = ("age", "chol", LABEL),
    why_not: Mapping[str, str] | None = None,
) -> Screening:
    """A screening that nobody made; sites in `why_not` are not judged."""
    left_out, of = why_not or {}, {(f.site, f.feature): f for f in findings}
    judged = [s for s in sites if s not in left_out]
    rows = [(s, c, f.strength if (f := of.get((s, c))) else 0.3, bool(f and f.wrong)) for s in judged for c in columns]
    cells = pd.DataFrame(rows, columns=["site", "feature", "strength", "wrong"]).assign(kind="")
    about = [(s, 200 + i, 40, s in judged, left_out.get(s, "")) for i, s in enumerate(sites)]
    return Screening(
        list(findings), cells, pd.DataFrame(about, columns=["site", "rows", "numbers", "judged", "why not"]), 0.05
    )
