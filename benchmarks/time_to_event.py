"""Times to an event: our scores beside lifelines', and what models of hazards by intervals are worth beside Cox.

    pip install lifelines==0.30.3          # elsewhere, for its tables and its own numbers; no part of Vitrail
    PYTHONPATH=where/it/is python benchmarks/time_to_event.py        # about ten minutes on one core

Without lifelines the made-up federation and the screening alone are run. Three federations:

made-up   5 sites of 60 to 400 rows, proportional hazards with a known factor for each of 4 columns, every site its own
          base hazard and its own length of follow-up; what the true risk scores is printed beside
lung      NCCTG lung cancer, institutions with at least 14 rows, as they are
gbsg2     German breast cancer study, cut at random into 4 sites

Every row is judged by models that were not trained on it (5 folds at every site, 2 seeds); columns are standardised by
each site's own training rows. `Cox, pooled`: proportional hazards on all sites' rows at once, ridge 0.1, Breslow's base
hazard: the simple rival, which is given what no federation has. `Cox, alone`: the same on each site's own rows. Rate
and rounds of ours were set once, before, and not tuned on these.

Screening: federations like the first one, other seeds; how often anything is held to be wrong where nothing is, and
whether a site that writes months for days, turns its event round or fills in one time is found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vitrail as vt
from vitrail.core import times
from vitrail.core.metrics import score
from vitrail.data.read import clean
from vitrail.runs.setup import resolve
from vitrail.studies.crossed import train_folds
from vitrail.studies.folds import Cut, whole_folds

Floats = NDArray[np.float64]
METRICS = ("c_index", "uno_c", "integrated_brier", "time_log_loss")
SEEDS, FOLDS, RIDGE = (1, 2), 5, 0.1
FACTORS = np.array([0.8, -0.6, 0.3, 0.0])  # of the logarithm of the hazard
LINEAR = {"kind": "linear", "dropout": 0.0}
OURS = {
    "linear, alone": ("local", LINEAR),
    "linear, FedAvg": ("fedavg", LINEAR),
    "linear, iFedAvg": ("ifedavg", LINEAR),
    "16 hidden units, FedAvg": ("fedavg", {"hidden": (16,)}),
    "linear, pooled": ("centralized", LINEAR),
}


def made_up(seed: int, follow: tuple[float, ...] = (900.0, 600.0, 1200.0, 400.0, 900.0)) -> dict[str, pd.DataFrame]:
    rng, out = np.random.default_rng(seed), {}
    for i, until in enumerate(follow):
        x = rng.normal(size=(int(rng.integers(60, 400)), len(FACTORS)))
        happens = rng.exponential(250 * np.exp(rng.normal(0, 0.3) - x @ FACTORS))
        leaves = rng.uniform(0, until, len(x))
        frame = pd.DataFrame(x, columns=list("abcd"))
        out[f"site {i}"] = frame.assign(days=np.ceil(np.minimum(happens, leaves)), died=(happens <= leaves).astype(int))
    return out


def study_of(sites: Mapping[str, pd.DataFrame], time: str, event: str, horizon: float, **more: object) -> vt.Study:
    names = [c for c in next(iter(sites.values())).columns if c not in (time, event)]
    target = {"kind": "time", "time": time, "event": event, "horizon": horizon, "intervals": 10, "unit": "days"}
    training = {"rounds": 60, "lr": 0.01}
    said = {"target": target, "features": {n: {"kind": "numeric"} for n in names}, "training": training, **more}
    return vt.Study.parse({"metrics": METRICS, "screen": {"ask": False}, **said})


def lung() -> tuple[dict[str, pd.DataFrame], vt.Study]:
    from lifelines.datasets import load_lung

    frame = load_lung().drop(columns=["pat.karno"], errors="ignore")
    frame = frame.dropna(subset=["inst"]).assign(status=lambda f: (f["status"] > f["status"].min()).astype(int))
    parts = {f"institution {k:.0f}": g.drop(columns="inst") for k, g in frame.groupby("inst") if len(g) >= 14}
    return parts, study_of(parts, "time", "status", 730.0)


def gbsg2() -> tuple[dict[str, pd.DataFrame], vt.Study]:
    from lifelines.datasets import load_gbsg2

    frame = load_gbsg2()
    frame = frame.assign(
        horTh=(frame["horTh"] == "yes").astype(float),
        menostat=(frame["menostat"] == "Post").astype(float),
        tgrade=frame["tgrade"].map({"I": 1.0, "II": 2.0, "III": 3.0}),
    )
    part = np.random.default_rng(1).integers(0, 4, len(frame))
    parts = {f"part {k}": frame[part == k] for k in range(4)}
    return parts, study_of(parts, "time", "cens", 1825.0)


def fit_cox(x: Floats, t: Floats, d: NDArray[np.bool_], ridge: float = RIDGE) -> Floats:
    """Newton's steps for Breslow's partial likelihood, its mean less ridge/2 |beta|^2."""
    beta, order = np.zeros(x.shape[1]), np.argsort(-t, kind="stable")
    x, t, d = x[order], t[order], d[order]
    last = np.searchsorted(-t, -t, "right") - 1  # those with a time at least as long
    for _ in range(50):
        r = np.exp(np.clip(x @ beta, -30, 30))
        s0, s1 = r.cumsum()[last], (r[:, None] * x).cumsum(0)[last]
        s2 = (r[:, None, None] * x[:, :, None] * x[:, None, :]).cumsum(0)[last]
        mean = s1 / s0[:, None]
        slope = (x - mean)[d].sum(0) / len(x) - ridge * beta
        bend = (s2 / s0[:, None, None] - mean[:, :, None] * mean[:, None, :])[d].sum(0) / len(x)
        step = np.linalg.solve(bend + ridge * np.eye(len(beta)), slope)
        beta = beta + step
        if np.abs(step).max() < 1e-9:
            break
    return beta


def cox_answers(x: Floats, y: Floats, new: Floats, intervals: int) -> Floats:
    """[row, interval]: the share still free of the event, by Cox fitted to x and y."""
    t, d = np.abs(y), y > 0
    beta = fit_cox(x, t, d)
    r = np.exp(np.clip(x @ beta, -30, 30))
    base = np.array([sum(1 / r[t >= at].sum() for at in t[d & (t <= k + 1)]) for k in range(intervals)])
    return np.exp(-np.exp(np.clip(new @ beta, -30, 30))[:, None] * base)


def by_cox(cut: Cut, intervals: int, pooled: bool) -> list[Floats]:
    out = [np.zeros((len(f), intervals)) for f in cut.cleaned.values()]
    for k in range(cut.folds):
        data = cut.fold(k)
        every = np.concatenate([s.train_x for s in data]), np.concatenate([s.train_y for s in data])
        for said, site, lots in zip(out, data, cut.lots.values(), strict=True):
            x, y = every if pooled else (site.train_x, site.train_y)
            said[lots == k] = cox_answers(x, np.asarray(y, float), site.test_x, intervals)
    return out


def judged(study: vt.Study, sites: Mapping[str, pd.DataFrame], tell: Callable[[str], None]) -> pd.DataFrame:
    """way, metric -> mean over sites and seeds."""
    cleaned = {n: clean(f, study) for n, f in sites.items()}
    truth, found = [f[study.target.column].to_numpy() for f in cleaned.values()], []
    for seed in SEEDS:
        cut = whole_folds(cleaned, study, seed, FOLDS)
        said: dict[str, list[Floats]] = {"life table of all rows": []}
        whole = times.life_table(np.concatenate(truth), study.target.outputs)
        said["life table of all rows"] = [np.tile(whole, (len(y), 1)) for y in truth]
        for pooled in (False, True):
            said[f"Cox, {'pooled' if pooled else 'alone'}"] = by_cox(cut, study.target.outputs, pooled)
        for name, (method, network) in OURS.items():
            asked, chosen = resolve(study.with_changes(network=network), method, None)
            said[name] = train_folds(asked, chosen, cut, seed, "vectorised", "cpu", lambda done, of: None).last
        for name, answers in said.items():
            for y, p in zip(truth, answers, strict=True):
                found += [(name, seed, m, v) for m, v in score(METRICS, y, p).items()]
        tell(f"seed {seed} done")
    told = pd.DataFrame(found, columns=["way", "seed", "metric", "value"])
    return told.groupby(["way", "metric"], sort=False)["value"].mean().unstack()[list(METRICS)]


def agreement() -> list[str]:
    """Our numbers beside those of lifelines, on its tables."""
    from lifelines import CoxPHFitter, KaplanMeierFitter
    from lifelines.utils import concordance_index

    sites, _ = gbsg2()
    frame = pd.concat(sites.values())
    rng = np.random.default_rng(1)
    t, d, risk = frame["time"].to_numpy(float), frame["cens"].to_numpy() == 1, rng.normal(size=len(frame)).round(1)
    y = np.where(d, t, -t)
    ours = times.concordance(y, risk, np.ones(len(y)))
    km = KaplanMeierFitter().fit(t, d)
    at, share = times.survival_curve(y)
    gap = np.abs(km.survival_function_at_times(at).to_numpy() - share).max()
    x = frame.drop(columns=["time", "cens"]).to_numpy(float)
    x = (x - x.mean(0)) / x.std(0)
    cox = CoxPHFitter(penalizer=0.0).fit(pd.DataFrame(x).assign(t=t, d=d), "t", "d")
    off = np.abs(fit_cox(x, t, d, 0.0) - cox.params_.to_numpy()).max()
    theirs = concordance_index(t, -risk, d)
    return [
        f"- Harrell's C of rounded random risks on gbsg2: ours {ours:.10f}, lifelines {theirs:.10f}.",
        f"- Kaplan-Meier, largest difference at any event: {gap:.1e}.",
        f"- Cox (Breslow here, Efron there), largest difference of a coefficient per standard deviation: {off:.4f}.",
    ]


def true_score(sites: Mapping[str, pd.DataFrame], study: vt.Study) -> float:
    """Harrell's C of the true risk, mean over sites."""
    found = []
    for frame in sites.values():
        y = clean(frame, study)[study.target.column].to_numpy()
        found.append(times.concordance(y, frame[list("abcd")].to_numpy() @ FACTORS, np.ones(len(y))))
    return float(np.mean(found))


FAULTS: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame]]] = {
    "months for days": ("days", lambda f: f.assign(days=f["days"] / 30.44)),
    "years for days": ("days", lambda f: f.assign(days=f["days"] / 365.25)),
    "one time for all": ("days", lambda f: f.assign(days=365)),
    "event turned round": ("(label)", lambda f: f.assign(died=1 - f["died"])),
}


def screening(many: int, planted: int) -> list[str]:
    asked = {"ask": True}
    out = ["| | federations | anything held to be wrong | the cell found |", "| --- | --- | --- | --- |"]
    for words, follow in (
        ("nothing wrong, the same follow-up", (900.0,) * 5),
        ("nothing wrong, each its own follow-up", None),
    ):
        alarms = 0
        for i in range(many):
            sites = made_up(5000 + i) if follow is None else made_up(5000 + i, follow)
            alarms += bool(vt.screen_sites(study_of(sites, "days", "died", 365.0, screen=asked), sites).wrong)
        out.append(f"| {words} | {many} | {alarms} | |")
    for words, (column, spoil) in FAULTS.items():
        told = found = 0
        for i in range(planted):
            sites = made_up(6000 + i)
            sites["site 1"] = spoil(sites["site 1"])
            wrong = vt.screen_sites(study_of(sites, "days", "died", 365.0, screen=asked), sites).wrong
            told += bool(wrong)
            found += any((f.site, f.feature) == ("site 1", column) for f in wrong)
        out.append(f"| {words} at one site, each its own follow-up | {planted} | {told} | {found} |")
    return out


def lines_of(table: pd.DataFrame) -> list[str]:
    out = ["| | Harrell's C | Uno's C | Brier, mean over intervals | log loss |", "| --- | --- | --- | --- | --- |"]
    return out + [f"| {way} | " + " | ".join(f"{v:.3f}" for v in row) + " |" for way, row in table.iterrows()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "time_to_event.md")
    parser.add_argument("--clean", type=int, default=200, help="federations without a fault that are screened")
    parser.add_argument("--planted", type=int, default=40, help="federations with each fault")
    given = parser.parse_args()
    began, out = time.perf_counter(), ["# Times to an event", "", "Made by `benchmarks/time_to_event.py`.", ""]

    def tell(words: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {words}", file=sys.stderr, flush=True)

    made = made_up(77)
    asked = study_of(made, "days", "died", 365.0)
    federations = {"made-up": (made, asked)}
    try:
        out += ["## Beside lifelines", "", *agreement(), ""]
        federations |= {"lung": lung(), "gbsg2": gbsg2()}
    except ImportError:
        out[-2:] = ["lifelines is not installed: only what is made up was run.", ""]
    for name, (sites, study) in federations.items():
        rows = ", ".join(str(len(f)) for f in sites.values())
        tell(f"{name}: {rows}")
        out += [f"## {name}", "", f"Sites of {rows} rows; mean over sites and seeds {', '.join(map(str, SEEDS))}.", ""]
        out += [*lines_of(judged(study, sites, tell)), ""]
        if name == "made-up":
            out += [f"The true risk has a C of {true_score(sites, study):.3f}.", ""]
    out += ["## Screening", "", *screening(given.clean, given.planted), ""]
    tell("done")
    given.out.write_text("\n".join(out), encoding="utf-8")
    print("\n".join(out))


if __name__ == "__main__":
    main()
