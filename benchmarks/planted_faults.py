"""Faults planted in one site: does the report name the guilty site and feature, and stay silent otherwise?

    VITRAIL_DATA=... python benchmarks/planted_faults.py --seeds 301-304     # resumes; finished cases lie in --cache
    python benchmarks/planted_faults.py --report                             # the tables from what is there

Real tables are cut into IID sites (heart disease into 4, GUSTO into 16, HAR into 30), where the truth is known, and
used in their natural sites too (and vehicle's 23 sensors), where a flag counts as false only if the same run without
the fault lacks it. One fault in one site and one feature, or in the label. A fault is harmful if it costs the guilty
site at least 0.03 balanced accuracy under FedAvg: its own hold-out rows with the fault against the same run without,
mean over several splits and starts (HARM_SEEDS), since one hold-out of a small site is mostly noise.

Rules: `calibrated` and `paper` (src/vitrail/explain/shifts.py); `layers`, a leave-one-out t on the learned layers with
the same promise (Bonferroni at 0.05); and a rival that compares each site's raw mean, spread and missing share with
the other sites' directly, which would have to share them (leave-one-out z above 5). For each: is the guilty site ranked
first, is the cell flagged, how many other cells are flagged, AUROC of the score over all cells.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import vitrail as vt
from vitrail.core.metrics import score
from vitrail.core.random import key
from vitrail.core.tensors import each
from vitrail.data.encode import SiteData, fit_encoders, split_rows
from vitrail.data.read import clean
from vitrail.engines.local import Engine
from vitrail.engines.rounds import Moment
from vitrail.explain import evidence, shifts
from vitrail.explain.evidence import LABEL
from vitrail.runs.fit import at_hand, find_shifts
from vitrail.runs.setup import all_rows, build_task, training_of, training_rows

Frame = pd.DataFrame
Job = dict[str, Any]
RULES = ("calibrated", "paper", "layers", "statistics")
HARM = 0.03
UNDONE = ("all in another unit", "all offset")
RULE = b"".join(Path(m.__file__).read_bytes() for m in (shifts, evidence))
JUDGE = hashlib.sha256(RULE).hexdigest()[:12]  # a case knows which rule judged it
HARM_SEEDS = {"heart": 12, "gusto": 5, "har": 3, "vehicle": 5}


# --- data -----------------------------------------------------------------------------------------------------------


def heart() -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    sites = {k: v.drop(columns=["slope", "ca", "thal"]) for k, v in vt.datasets.heart_disease().items()}
    kinds = {"numeric": ["thalach", "oldpeak", "age"], "binary": ["exang", "sex"], "categorical": ["cp"]}
    return sites, "disease", kinds


def gusto() -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    kinds = {"numeric": ["age", "sysbp", "pulse"], "binary": ["pmi", "hyp"], "categorical": ["Killip"]}
    return vt.datasets.gusto(), "day30", kinds


def har() -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    sites = vt.datasets.har()
    return sites, "activity", {"numeric": [c for c in next(iter(sites.values())).columns if c != "activity"][::23]}


def vehicle() -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    sites = vt.datasets.vehicle()
    return sites, "label", {"numeric": [c for c in next(iter(sites.values())).columns if c != "label"][::9]}


# source, IID sites (0: natural sites only), rounds
DATA: dict[str, tuple[Callable[[], Any], int, int]] = {
    "heart": (heart, 4, 40),
    "gusto": (gusto, 16, 25),
    "har": (har, 30, 25),
    "vehicle": (vehicle, 0, 60),
}


# --- faults: (column, strength, rng, target column) -> column --------------------------------------------------------


def _some(n: int, share: float, rng: np.random.Generator) -> Any:
    return rng.random(n) < share


def wrong_unit(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.where(~_some(len(v), 0.5, rng), v * (10 if s > 1 else 2.2))


def scale_all(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v * 12


def offset(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.where(~_some(len(v), 0.5, rng), v + 2 * s * v.std())


def offset_all(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v + 2 * s * v.std()


def sign_flip(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.max() + v.min() - v


def as_constant(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.mask(_some(len(v), 0.3 * s, rng), v.min() - 2 * v.std())


def missing_in_class(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.mask((y == y.mode()[0]) & _some(len(v), 0.45 * s, rng))


def saturate(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.clip(upper=v.quantile(0.6 - 0.2 * s))


def noise(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    return v.where(~_some(len(v), 0.5 * s, rng), pd.Series(rng.permutation(v.to_numpy()), index=v.index))


def swap_code(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    a, b = sorted(v.dropna().unique(), key=str)[:2]
    return v.map({a: b, b: a}).fillna(v)


def permute_categories(v: pd.Series, s: float, rng: Any, y: pd.Series) -> pd.Series:
    levels = sorted(v.dropna().unique(), key=str)
    return v.map(dict(zip(levels, levels[1:] + levels[:1], strict=True)))


FAULTS: dict[str, tuple[str, Callable[..., pd.Series], tuple[float, ...]]] = {  # kind, fault, strengths
    "half in another unit": ("numeric", wrong_unit, (1, 2)),
    "all in another unit": ("numeric", scale_all, (1,)),
    "half offset": ("numeric", offset, (1, 2)),
    "all offset": ("numeric", offset_all, (1, 2)),
    "sign flip": ("numeric", sign_flip, (1,)),
    "missing as a constant": ("numeric", as_constant, (1, 2)),
    "missing in one class": ("numeric", missing_in_class, (1, 2)),
    "saturation": ("numeric", saturate, (1, 2)),
    "noise": ("numeric", noise, (1, 2)),
    "swapped code": ("binary", swap_code, (1,)),
    "permuted categories": ("categorical", permute_categories, (1,)),
    "flipped label": ("label", swap_code, (1,)),
}


# --- one case --------------------------------------------------------------------------------------------------------


@cache
def source(name: str) -> tuple[dict[str, Frame], str, dict[str, list[str]]]:
    return DATA[name][0]()


@cache
def cut_sites(name: str, cut: str, seed: int) -> tuple[dict[str, Frame], Any]:
    sites, target, _ = source(name)
    if cut == "iid":
        sites = vt.cut.iid(pd.concat(sites.values(), ignore_index=True), DATA[name][1], seed)
    study = vt.Study.infer(sites, target).with_changes(
        training={"rounds": DATA[name][2]}, network={"hidden": [32, 16]}, split={"at_least": 0}
    )
    return sites, study


@cache
def cleaned(name: str, cut: str, seed: int) -> dict[str, Frame]:
    sites, study = cut_sites(name, cut, seed)
    return {k: clean(v, study) for k, v in sites.items()}


def plant(job: Job) -> tuple[dict[str, Frame], Any]:
    """The cleaned sites with the fault, and the study. Fills in job's site and feature."""
    sites, study = cut_sites(job["data"], job["cut"], job["seed"])
    study = study.with_changes(standardise=job["standardise"])
    rows, target = cleaned(job["data"], job["cut"], job["seed"]), study.target.column
    rng = np.random.default_rng(key(job["seed"], job["fault"], job["data"], job["cut"]))
    job["site"] = str(rng.choice(sorted(n for n, f in sites.items() if len(f) >= 60)))
    job["feature"] = ""
    if not job["fault"]:
        return rows, study
    kind, fault, _ = FAULTS[job["fault"]]
    job["feature"] = target if kind == "label" else str(rng.choice(source(job["data"])[2][kind]))
    bad = sites[job["site"]].copy()
    bad[job["feature"]] = fault(bad[job["feature"]], job["strength"], rng, bad[target])
    return {**rows, job["site"]: clean(bad, study)}, study


def encoded(rows: dict[str, Frame], study: Any, seed: int) -> list[SiteData]:
    """What `data.encode.prepare` does with cleaned tables."""
    target = study.target.column
    splits = {n: split_rows(f[target].to_numpy(), study, seed, n) for n, f in rows.items()}
    encoders = fit_encoders({n: f.iloc[splits[n][0]] for n, f in rows.items()}, study)
    out = []
    for name, frame in rows.items():
        x, y, (a, b) = encoders[name].matrix(frame), frame[target].to_numpy(), splits[name]
        out.append(SiteData(name, encoders[name], x[a], y[a], x[b], y[b], ""))
    return out


def trained(data: list[SiteData], study: Any, method: Any, seed: int) -> tuple[Engine, Moment]:
    task = build_task(study, method, seed)
    engine = Engine(task, method, training_rows(data, study, method, "cpu"), training_of(study), seed)
    *_, moment = engine.run()
    return engine, moment


def accuracies(data: list[SiteData], engine: Engine, moment: Moment) -> dict[str, float]:
    """Balanced accuracy of each of these sites' own hold-out rows."""
    import torch

    out = {}
    for own in data:
        at = engine.sites.names.index(own.name)
        state = each(lambda t: t[at : at + 1], engine.settled(moment))  # noqa: B023
        with torch.no_grad():
            z = engine.method.predict(engine.task, state, torch.from_numpy(own.test_x).float()[None])[0]
        out[own.name] = score(["balanced_accuracy"], own.test_y, z.softmax(1).numpy())["balanced_accuracy"]
    return out


def under_fedavg(data: list[SiteData], study: Any, seed: int, site: str) -> float:
    return accuracies([d for d in data if d.name == site], *trained(data, study, vt.methods.FedAvg(), seed))[site]


@cache
def honest_score(name: str, cut: str, seed: int, standardise: str, split: int, site: str) -> float:
    rows, study = plant({"data": name, "cut": cut, "seed": seed, "standardise": standardise, "fault": ""})
    return under_fedavg(encoded(rows, study, split), study, split, site)


def statistics_scores(rows: dict[str, Frame]) -> Frame:
    """The rival: largest leave-one-out z of a site's mean, log spread and missing share; site x feature."""
    table = np.stack([np.stack([f.mean(), np.log(f.std() + 1e-9), f.isna().mean()]) for f in rows.values()])
    table = np.nan_to_num(table.astype(float))  # [site, 3, feature]
    out = np.zeros((len(rows), table.shape[2]))
    for i in range(len(rows)):
        rest = np.delete(table, i, 0)
        out[i] = (np.abs(table[i] - rest.mean(0)) / (rest.std(0, ddof=1) + 1e-6)).max(0)
    return pd.DataFrame(out, index=list(rows), columns=next(iter(rows.values())).columns)


def layer_scores(shifts: Frame) -> Frame:
    """-log10 p of a leave-one-out t on every learned number, Bonferroni over all of them; site x cell, largest."""
    from scipy.stats import t as student

    wide = shifts.pivot(index="site", columns=["cell", "layer", "feature"], values="value")
    v, n = wide.to_numpy(), len(wide)
    out = np.zeros_like(v)
    for i in range(n):
        rest = np.delete(v, i, 0)
        out[i] = np.abs(v[i] - rest.mean(0)) / (rest.std(0, ddof=1) + 1e-12) / np.sqrt(1 + 1 / (n - 1))
    p = np.minimum(1, 2 * student.sf(out, n - 2) * v.size)
    scores = pd.DataFrame(-np.log10(p.clip(min=1e-300)), index=wide.index, columns=wide.columns)
    return scores.T.groupby(level="cell").max().T


def judged(
    rows: dict[str, Frame], data: list[SiteData], study: Any, engine: Engine, moment: Moment
) -> dict[str, tuple[Frame, Frame]]:
    """For each rule: scores and flags, site x cell."""
    table = find_shifts(engine, study, moment, at_hand(engine.task, all_rows(data, study)), {})[0]
    owner = {c: f for f, x in study.features.items() for c in ([f"{f}={v}" for v in x.levels] or [f])}
    owner |= {f: f for f in study.features}
    table["cell"] = [
        LABEL if layer.endswith("out") else owner[c] for c, layer in zip(table.feature, table.layer, strict=True)
    ]
    by = table.groupby(["feature", "layer"]).value
    table["z"] = (table.value - by.transform("mean")).abs() / (by.transform("std", ddof=0) + 1e-9)
    table["O"] = table.flagged_paper.str.contains("O")
    table["log_p"] = -np.log10(table.p_value.clip(lower=1e-300))
    wide = {
        k: table.pivot_table(index="site", columns="cell", values=k, aggfunc="max")
        for k in ("z", "O", "log_p", "flagged")
    }
    layers, raw = layer_scores(table), statistics_scores(rows).rename(columns={study.target.column: LABEL})
    return {
        "calibrated": (wide["log_p"], wide["flagged"].astype(bool)),
        "paper": (wide["z"], wide["O"].astype(bool)),
        "layers": (layers, layers > -np.log10(0.05)),
        "statistics": (raw, raw > 5),
    }


def case(job: Job) -> Job:
    """Train, judge, and for a fault measure the harm."""
    rows, study = plant(job)
    seed, job["judge"] = job["seed"], JUDGE
    data = encoded(rows, study, seed)
    method = vt.methods.IFedAvg(output="each", identity=job.get("identity", 0.0))
    engine, moment = trained(data, study, method, seed)
    own = list(accuracies(data, engine, moment).values())
    job["scores"] = [float(np.nanmean(own)), float(np.nanmin(own))]
    began = time.time()
    told = judged(rows, data, study, engine, moment)
    job["judge_seconds"] = time.time() - began
    cell = LABEL if job["feature"] == study.target.column else job["feature"]
    job["guilty"] = [job["site"], cell]
    for rule, (scores, flags) in told.items():
        first = (scores + 1e6 * flags).max(axis=1).idxmax()
        job[rule] = {"flags": [list(at) for at, f in flags.stack().items() if f], "first": str(first), "auroc": None}
        if job["fault"]:
            own = scores.loc[job["site"], cell]
            rest = np.delete(
                scores.to_numpy().ravel(),
                scores.index.get_loc(job["site"]) * scores.shape[1] + scores.columns.get_loc(cell),
            )
            job[rule]["auroc"] = float((rest < own).mean() + 0.5 * (rest == own).mean())
    if job["fault"] and "identity" not in job and "harm" not in job:
        costs = []
        for k in range(HARM_SEEDS[job["data"]]):
            split = key(seed, "harm", k) >> 32
            before = honest_score(job["data"], job["cut"], seed, job["standardise"], split, job["site"])
            costs.append(before - under_fedavg(encoded(rows, study, split), study, split, job["site"]))
        job |= {
            "harm": float(np.mean(costs)),
            "harm_se": float(np.std(costs, ddof=1) / len(costs) ** 0.5),
        }
    return job


# --- all cases -------------------------------------------------------------------------------------------------------


def jobs(seeds: Iterable[int], data: list[str], clean_seeds: Iterable[int]) -> list[Job]:
    out = []
    for name in data:
        kinds = {"label": 1, **source(name)[2]}
        for cut in ("iid", "natural") if DATA[name][1] else ("natural",):
            for mode in ("local", "global"):
                for seed in seeds:
                    base = {"data": name, "cut": cut, "seed": seed, "standardise": mode}
                    for fault, (kind, _, strengths) in FAULTS.items():
                        if kind in kinds and not (kind == "label" and name == "har"):  # six classes: another fault
                            out += [{**base, "fault": fault, "strength": s} for s in strengths]
                for seed in sorted({*seeds, *(clean_seeds if cut == "iid" else ())}):
                    out.append(
                        {"data": name, "cut": cut, "seed": seed, "standardise": mode, "fault": "", "strength": 0}
                    )
    return out


def tag(job: Job) -> str:
    parts = [str(job[k]) for k in ("data", "cut", "standardise", "seed", "fault", "strength", "identity") if k in job]
    return "-".join(parts).replace(" ", "_")


def pull_section(done: list[Job], pulls: list[Job]) -> list[str]:
    """The same cases with and without the pull to the identity: what it does to detection and to scores."""
    harm = {tag(d): d["harm"] for d in done if d["fault"]}
    lines = ["", "## The pull to the identity (lambda), on the same cases", ""]
    lines += ["IID cuts; harmful faults as above. Balanced accuracy of iFedAvg, mean over sites and worst site.", ""]
    lines += ["| data | lambda | runs | rule | guilty site first | cell found | false cells per run | mean | worst |"]
    lines += ["| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |"]
    for name in DATA:
        for pull in sorted({d["identity"] for d in pulls}):
            mine = [d for d in pulls if (d["data"], d["identity"]) == (name, pull)]
            bad = [
                d
                for d in mine
                if d["fault"] and harm.get(tag({k: v for k, v in d.items() if k != "identity"}), 0) >= HARM
            ]
            for rule in RULES[:3] if bad else ():
                first = np.mean([d[rule]["first"] == d["site"] for d in bad])
                found = np.mean([d["guilty"] in d[rule]["flags"] for d in bad])
                false = np.mean([len([c for c in d[rule]["flags"] if c != d["guilty"]]) for d in bad])
                mean, worst = np.mean([d["scores"] for d in mine], 0)
                cells = (
                    name,
                    pull,
                    len(bad),
                    rule,
                    *(f"{v:.2f}" for v in (first, found, false)),
                    f"{mean:.3f}",
                    f"{worst:.3f}",
                )
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def chunk(part: list[Job], cache_folder: str) -> int:
    import torch

    torch.set_num_threads(1)
    for job in part:
        done = case(dict(job))
        place = Path(cache_folder) / f"{tag(job)}.json"
        place.with_suffix(".tmp").write_text(json.dumps(done))
        place.with_suffix(".tmp").replace(place)
    return len(part)


def spread(text: str) -> list[int]:
    """301-304 or 1,2,5."""
    out: list[int] = []
    for part in text.split(",") if text else []:
        a, _, b = part.partition("-")
        out += range(int(a), int(b or a) + 1)
    return out


def line(name: str, fault: str, runs: list[Job], rule: str) -> str:
    first = np.mean([d[rule]["first"] == d["site"] for d in runs])
    found = np.mean([d["guilty"] in d[rule]["flags"] for d in runs])
    false = np.mean([len(false_cells(d, rule)) for d in runs])
    auroc = np.mean([d[rule]["auroc"] for d in runs])
    cells = (name, fault, len(runs), rule, f"{first:.2f}", f"{found:.2f}", f"{false:.2f}", f"{auroc:.3f}")
    return f"| {' | '.join(map(str, cells))} |"


def false_cells(d: Job, rule: str) -> list[Any]:
    known = d["base"][rule]["flags"] if d["cut"] == "natural" else []
    return [c for c in d[rule]["flags"] if c != d["guilty"] and c not in known]


def report(done: list[Job]) -> list[str]:
    plain = {(d["data"], d["cut"], d["seed"], d["standardise"]): d for d in done if not d["fault"]}
    faulty = [d | {"base": plain.get((d["data"], d["cut"], d["seed"], d["standardise"]))} for d in done if d["fault"]]
    faulty = [d for d in faulty if d["base"]]
    head = "| data | fault | runs | rule | guilty site first | cell found | false cells per run | AUROC |"
    lines = []
    for cut in ("iid", "natural"):
        for harmful in (True, False):
            words = "harmful" if harmful else "harmless"
            lines += ["", f"## {'IID cuts' if cut == 'iid' else 'Natural sites'}, {words} faults", ""]
            lines += [head, "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |"]
            part = [d for d in faulty if d["cut"] == cut and (d["harm"] >= HARM) == harmful]
            for name in [n for n in DATA if any(d["data"] == n for d in part)]:
                mine = [d for d in part if d["data"] == name]
                lines += [line(name, "ALL", mine, rule) for rule in RULES]
                for fault in [f for f in FAULTS if any(d["fault"] == f for d in mine)]:
                    lines.append(line(name, fault, [d for d in mine if d["fault"] == fault], "calibrated"))
            if part:
                lines += [line("all", "ALL", part, rule) for rule in RULES]
    lines += ["", "## Faults undone by standardising per site, and flipped labels", ""]
    lines += ["| data | cut | fault | runs | rule | guilty cell found | runs with any other alarm |"]
    lines += ["| --- | --- | --- | ---: | --- | ---: | ---: |"]
    for name in DATA:
        for cut in ("iid", "natural"):
            undone = [d for d in faulty if d["fault"] in UNDONE and d["standardise"] == "local"]
            flipped = [d for d in faulty if d["fault"] == "flipped label"]
            for words, part in ((" or ".join(UNDONE) + ", local", undone), ("flipped label", flipped)):
                runs = [d for d in part if (d["data"], d["cut"]) == (name, cut)]
                for rule in RULES if runs else ():
                    hit = sum(d["guilty"] in d[rule]["flags"] for d in runs)
                    other = sum(bool(false_cells(d, rule)) for d in runs)
                    lines.append(f"| {name} | {cut} | {words} | {len(runs)} | {rule} | {hit} | {other} |")
    lines += ["", "## Runs without any fault, IID cuts", ""]
    lines += ["| data | standardised | cuts | rule | cuts with an alarm | cells flagged per cut |"]
    lines += ["| --- | --- | ---: | --- | ---: | ---: |"]
    for name in DATA:
        for mode in ("local", "global"):
            runs = [d for d in plain.values() if (d["data"], d["cut"], d["standardise"]) == (name, "iid", mode)]
            for rule in RULES if runs else ():
                some = sum(bool(d[rule]["flags"]) for d in runs)
                mean = np.mean([len(d[rule]["flags"]) for d in runs])
                lines.append(f"| {name} | {mode} | {len(runs)} | {rule} | {some} | {mean:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=spread, default=[], help="cuts with every fault: 301-304")
    parser.add_argument("--clean-seeds", type=spread, default=[], help="more IID cuts without any fault")
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--cache", type=Path, default=Path("scratch/planted_faults"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "planted_faults.md")
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing after so long; resume later")
    parser.add_argument("--identity", default="", help="pulls to the identity to try on the IID cuts: 0,1,10")
    parser.add_argument("--again", action="store_true", help="judge cached cases again; the harm stays as measured")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    began, cores = time.time(), os.cpu_count() or 1
    todo = [] if args.report else jobs(args.seeds, args.data.split(","), args.clean_seeds)
    if args.identity:
        todo = [{**j, "identity": float(v)} for v in args.identity.split(",") for j in todo if j["cut"] == "iid"]
    waiting = [j for j in todo if not (args.cache / f"{tag(j)}.json").exists()]
    if args.again:
        names = args.data.split(",")
        old = [json.loads(p.read_text()) for p in sorted(args.cache.glob("*.json"))]
        keep = ("data", "cut", "seed", "standardise", "fault", "strength", "identity", "harm", "harm_se")
        old = [{k: d[k] for k in keep if k in d} for d in old if d["data"] in names and d.get("judge") != JUDGE]
        waiting = sorted(old, key=lambda d: names.index(d["data"]))
    parts: dict[tuple[Any, ...], list[Job]] = {}
    for n, j in enumerate(waiting):
        parts.setdefault((j["data"], j["cut"], j["standardise"], j["seed"], n // 6), []).append(j)
    with ProcessPoolExecutor(cores) as pool:
        futures = [pool.submit(chunk, part, str(args.cache)) for part in parts.values()]
        count = 0
        for f in as_completed(futures):
            count += f.result()
            print(f"\r{count}/{len(waiting)} after {time.time() - began:.0f} s", end="", flush=True)
            if time.time() - began > 60 * args.minutes:
                pool.shutdown(cancel_futures=True)
                break
    found = [json.loads(p.read_text()) for p in sorted(args.cache.glob("*.json"))]
    found = [d for d in found if d.get("judge") == JUDGE]  # a rule that has changed since is another rule
    done, pulls = [d for d in found if "identity" not in d], [d for d in found if "identity" in d]
    text = [f"# Planted faults, {time.strftime('%Y-%m-%d')}", ""]
    text += ["iFedAvg with f_out, MLP 32-16, 25 to 60 rounds, standardised per site or over all; alpha = 0.05."]
    text += ["Cases were computed one process to a core on several machines and kept; this table is from all of them."]
    for name in DATA:
        for cut in ("iid", "natural"):
            if mine := [d for d in done if (d["data"], d["cut"]) == (name, cut)]:
                with_fault = sorted({d["seed"] for d in mine if d["fault"]})
                said = (
                    f"- {name}, {'IID cuts' if cut == 'iid' else 'natural sites'}: {len(mine)} cases, faults in seeds "
                )
                text += [said + f"{with_fault}; harm by FedAvg, mean over {HARM_SEEDS[name]} splits and starts"]
    args.out.write_text("\n".join(text + report(done) + (pull_section(done, pulls) if pulls else [])) + "\n")
    print(f"\n{args.out}")


if __name__ == "__main__":
    main()
