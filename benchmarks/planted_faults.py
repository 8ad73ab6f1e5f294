"""Faults planted in one site: does the report name the guilty site and feature, and stay silent otherwise?

    VITRAIL_DATA=... python benchmarks/planted_faults.py --seeds 5      # resumes; finished runs are kept in --cache

Real tables are cut into IID sites (heart disease into 4, GUSTO into 16, HAR into 30), where the truth is known, and
used in their natural sites too, where a flag counts as false only if the same run without the fault lacks it. One
fault in one site and one feature, or in the label. A fault is harmful if it costs the guilty site at least 0.03
balanced accuracy under FedAvg (its own hold-out rows, with the fault, against the same run without).

Rules: `paper` and `calibrated` (src/vitrail/explain/shifts.py), and a rival that compares each site's raw mean, spread
and missing share with the other sites' directly, which would have to share them. For each: is the guilty site ranked
first, is the cell flagged, how many other cells are flagged, AUROC of the score over all cells.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import vitrail as vt
from vitrail.core.random import key
from vitrail.explain.shifts import LABEL

Frame = pd.DataFrame
RULES = ("paper", "calibrated", "statistics")


# --- data -----------------------------------------------------------------------------------------------------------


def heart() -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    sites = {k: v.drop(columns=["slope", "ca", "thal"]) for k, v in vt.datasets.heart_disease().items()}
    return (
        sites,
        "disease",
        {"numeric": ["thalach", "oldpeak", "age"], "binary": ["exang", "sex"], "categorical": ["cp"]},
    )


def gusto() -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    kinds = {"numeric": ["age", "sysbp", "pulse"], "binary": ["pmi", "hyp"], "categorical": ["Killip"]}
    return vt.datasets.gusto(), "day30", kinds


def har() -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    sites = vt.datasets.har()
    some = [c for c in next(iter(sites.values())).columns if c != "activity"]
    return sites, "activity", {"numeric": some[::23], "binary": [], "categorical": []}


DATA = {"heart": (heart, 4, 40), "gusto": (gusto, 16, 25), "har": (har, 30, 25)}  # source, IID sites, rounds


# --- faults: (column, strength, rng, target column) -> column --------------------------------------------------------


def _some(n: int, share: float, rng: np.random.Generator) -> Any:
    return rng.random(n) < share


def wrong_unit(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.where(~_some(len(v), 0.5, rng), v * (10 if s > 1 else 2.2))  # half of the rows in another unit


def scale_all(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v * 12  # every row: undone by local standardisation, so it should stay silent there


def offset(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.where(~_some(len(v), 0.5, rng), v + 2 * s * v.std())


def sign_flip(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.max() + v.min() - v


def as_constant(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.mask(_some(len(v), 0.3 * s, rng), v.min() - 2 * v.std())


def missing_in_class(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.mask((y == y.mode()[0]) & _some(len(v), 0.45 * s, rng))


def saturate(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.clip(upper=v.quantile(0.6 - 0.2 * s))


def noise(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return pd.Series(rng.permutation(v.to_numpy()), index=v.index)


def swap_code(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    a, b = sorted(v.dropna().unique(), key=str)[:2]
    return v.map({a: b, b: a})


def permute_categories(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    levels = sorted(v.dropna().unique(), key=str)
    return v.map(dict(zip(levels, levels[1:] + levels[:1], strict=True)))


FAULTS: dict[str, tuple[str, Callable[..., pd.Series]]] = {
    "half in another unit": ("numeric", wrong_unit),
    "all in another unit": ("numeric", scale_all),
    "half offset": ("numeric", offset),
    "sign flip": ("numeric", sign_flip),
    "missing as a constant": ("numeric", as_constant),
    "missing in one class": ("numeric", missing_in_class),
    "saturation": ("numeric", saturate),
    "noise": ("numeric", noise),
    "swapped code": ("binary", swap_code),
    "permuted categories": ("categorical", permute_categories),
    "flipped label": ("label", swap_code),
}


# --- one run ---------------------------------------------------------------------------------------------------------


def statistics_scores(sites: dict[str, Frame], features: list[str]) -> dict[tuple[str, str], float]:
    """The rival: largest leave-one-out z of a site's mean, log spread and missing share, by feature."""
    out = {}
    for f in features:
        rows = {}
        for name, frame in sites.items():
            v = frame[f]
            v = pd.to_numeric(v, errors="coerce") if v.dtype != object else v.astype("category").cat.codes.astype(float)
            rows[name] = (v.mean(), np.log(v.std() + 1e-9), v.isna().mean())
        table = np.nan_to_num(np.array(list(rows.values()), dtype=float))
        for i, name in enumerate(rows):
            rest = np.delete(table, i, 0)
            out[name, f] = float((np.abs(table[i] - rest.mean(0)) / (rest.std(0, ddof=1) + 1e-6)).max())
    return out


def make(job: dict[str, Any]) -> tuple[dict[str, Frame], str, Any]:
    source, count, rounds = DATA[job["data"]]
    sites, target, kinds = source()
    if job["cut"] == "iid":
        sites = vt.cut.iid(pd.concat(sites.values(), ignore_index=True), count, job["seed"])
    study = vt.Study.infer(sites, target).with_changes(
        training={"rounds": rounds}, network={"hidden": [32, 16]}, standardise=job["standardise"], split={"at_least": 0}
    )
    rng = np.random.default_rng(key(job["seed"], job["fault"], job["data"], job["cut"]))
    job["site"] = str(rng.choice(sorted(n for n, f in sites.items() if len(f) >= 60)))
    job["feature"] = ""
    if job["fault"]:
        kind, plant = FAULTS[job["fault"]]
        job["feature"] = target if kind == "label" else str(rng.choice(kinds[kind]))
        bad = sites[job["site"]].copy()
        bad[job["feature"]] = plant(bad[job["feature"]], job["strength"], rng, bad[target])
        sites = {**sites, job["site"]: bad}
    return sites, target, study


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    sites, target, study = make(job)
    run = vt.federate(study, sites, method=vt.methods.IFedAvg(output="each"), seed=job["seed"])
    shifts = run.shifts()
    names = {c: f for f, x in study.features.items() for c in ([f"{f}={v}" for v in x.levels] or [f])} | {
        f: f for f in study.features
    }
    shifts["cell"] = [
        LABEL if layer.endswith("out") else names[c] for c, layer in zip(shifts.feature, shifts.layer, strict=True)
    ]
    cells: dict[str, dict[str, list[Any]]] = {}
    by = shifts.groupby(["site", "cell"], sort=False)
    spread = shifts.groupby(["feature", "layer"]).value.transform("std", ddof=0)
    z = (shifts.value - shifts.groupby(["feature", "layer"]).value.transform("mean")).abs() / (spread + 1e-9)
    shifts["z"] = z
    cells["calibrated"] = {
        f"{s}|{c}": [float(-np.log10(max(p.p_value.iloc[0], 1e-300))), bool(p.flagged.iloc[0])] for (s, c), p in by
    }
    cells["paper"] = {
        f"{s}|{c}": [float(p.z.max()), bool((p.flagged_paper.str.contains("O")).any())] for (s, c), p in by
    }
    rival = statistics_scores(sites, [*study.features, target])
    cells["statistics"] = {f"{s}|{LABEL if f == target else f}": [v, v > 5] for (s, f), v in rival.items()}
    avg = vt.federate(study, sites, method="fedavg", seed=job["seed"]).scores()
    score = avg[(avg.metric == "balanced_accuracy") & (avg.site == job["site"])].value.item()
    guilty = f"{job['site']}|{LABEL if job['feature'] == target else job['feature']}"
    out = {**job, "guilty": guilty, "fedavg": score}
    for rule in RULES:
        ranked = sorted(cells[rule].items(), key=lambda kv: (-kv[1][1], -kv[1][0]))
        out[rule] = {
            "flags": [c for c, v in cells[rule].items() if v[1]],
            "first": ranked[0][0].split("|")[0],
            "auroc": _auroc({c: v[0] for c, v in cells[rule].items()}, guilty) if job["fault"] else None,
        }
    return out


def _auroc(scores: dict[str, float], guilty: str) -> float:
    rest = np.array([v for c, v in scores.items() if c != guilty])
    return float((rest < scores[guilty]).mean() + 0.5 * (rest == scores[guilty]).mean())


# --- all runs --------------------------------------------------------------------------------------------------------


def jobs(seeds: int, data: list[str]) -> list[dict[str, Any]]:
    out = []
    for name in data:
        kinds = DATA[name][0]()[2] if name != "har" else {"numeric": ["x"], "binary": [], "categorical": []}
        for cut in ("iid", "natural"):
            for seed in range(1, seeds + 1):
                for fault in ("", *FAULTS):
                    if fault and FAULTS[fault][0] != "label" and not kinds[FAULTS[fault][0]]:
                        continue
                    if fault == "flipped label" and name == "har":
                        continue  # six classes: two of them swapped is another fault
                    for strength in (1.0,) if not fault else (1.0, 2.0) if fault == "missing as a constant" else (1.0,):
                        modes = (
                            ("local", "none")
                            if fault in ("", "all in another unit") and name == "heart"
                            else ("local",)
                        )
                        for mode in modes:
                            out.append(
                                {
                                    "data": name,
                                    "cut": cut,
                                    "seed": seed,
                                    "fault": fault,
                                    "strength": strength,
                                    "standardise": mode,
                                }
                            )
    return out


def tag(job: dict[str, Any]) -> str:
    return "-".join(str(job[k]) for k in ("data", "cut", "seed", "fault", "strength", "standardise")).replace(" ", "_")


def report(done: list[dict[str, Any]]) -> list[str]:
    clean = {(d["data"], d["cut"], d["seed"], d["standardise"]): d for d in done if not d["fault"]}
    for d in done:
        base = clean.get((d["data"], d["cut"], d["seed"], d["standardise"]))
        d["base"] = base
        if d["fault"] and base:
            d["harm"] = d["before"] - d["fedavg"]
    lines = []
    for cut in ("iid", "natural"):
        for harmful in (True, False):
            words = "harmful" if harmful else "harmless"
            lines += ["", f"## {'IID cuts' if cut == 'iid' else 'Natural sites'}, {words} faults", ""]
            lines += ["| data | fault | runs | rule | guilty site first | cell found | false cells per run | AUROC |"]
            lines += ["| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |"]
            part = [
                d for d in done if d["cut"] == cut and d["fault"] and "harm" in d and (d["harm"] >= 0.03) == harmful
            ]
            keys = sorted({(d["data"], d["fault"]) for d in part}) + [
                (n, "ALL") for n in sorted({d["data"] for d in part})
            ]
            for name, fault in keys:
                runs = [d for d in part if d["data"] == name and fault in (d["fault"], "ALL")]
                for rule in RULES:
                    first = np.mean([d[rule]["first"] == d["site"] for d in runs])
                    found = np.mean([d["guilty"] in d[rule]["flags"] for d in runs])
                    false = np.mean(
                        [
                            len(
                                set(d[rule]["flags"])
                                - {d["guilty"]}
                                - (set(d["base"][rule]["flags"]) if cut == "natural" else set())
                            )
                            for d in runs
                        ]
                    )
                    auroc = np.mean([d[rule]["auroc"] for d in runs])
                    cells = (
                        name,
                        fault,
                        len(runs),
                        rule,
                        f"{first:.2f}",
                        f"{found:.2f}",
                        f"{false:.2f}",
                        f"{auroc:.3f}",
                    )
                    lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "## Runs without any fault, IID cuts",
        "",
        "| data | runs | rule | runs with an alarm | cells flagged per run |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    for name in sorted({d["data"] for d in done}):
        runs = [d for d in done if d["data"] == name and d["cut"] == "iid" and not d["fault"]]
        for rule in RULES if runs else ():
            any_, mean = np.mean([bool(d[rule]["flags"]) for d in runs]), np.mean([len(d[rule]["flags"]) for d in runs])
            lines.append(f"| {name} | {len(runs)} | {rule} | {any_:.2f} | {mean:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", default="heart,gusto,har")
    parser.add_argument("--cache", type=Path, default=Path("scratch/planted_faults"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "planted_faults.md")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long; the rest is done next time")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    todo, began = jobs(args.seeds, args.data.split(",")), time.time()
    waiting = [j for j in todo if not (args.cache / f"{tag(j)}.json").exists()]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        futures = {pool.submit(whole, j): j for j in waiting}
        for n, f in enumerate(as_completed(futures), 1):
            (args.cache / f"{tag(futures[f])}.json").write_text(json.dumps(f.result()))
            print(f"\r{n}/{len(waiting)} after {time.time() - began:.0f} s", end="", flush=True)
            if time.time() - began > 60 * args.minutes:
                pool.shutdown(cancel_futures=True)
                break
    done = [
        json.loads((args.cache / f"{tag(j)}.json").read_text())
        for j in todo
        if (args.cache / f"{tag(j)}.json").exists()
    ]
    text = [
        f"# Planted faults, {time.strftime('%Y-%m-%d')}",
        "",
        f"{len(done)} runs of {len(todo)} planned, seeds 1 to {args.seeds}, {os.cpu_count()} cores.",
    ]
    text += ["iFedAvg with f_out, MLP 32-16, 25 to 40 rounds; standardised per site unless said. alpha = 0.05."]
    args.out.write_text("\n".join(text + report(done)) + "\n")
    print(f"\n{args.out}")


def whole(job: dict[str, Any]) -> dict[str, Any]:
    """A run, and for a fault what FedAvg gave the same site before it was planted."""
    out = run_one(dict(job))
    if job["fault"]:
        sites, _, study = make({**job, "fault": ""})
        avg = vt.federate(study, sites, method="fedavg", seed=job["seed"]).scores()
        out["before"] = avg[(avg.metric == "balanced_accuracy") & (avg.site == out["site"])].value.item()
    return out


if __name__ == "__main__":
    main()
