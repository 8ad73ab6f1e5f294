"""Many runs side by side: methods x seeds on the same splits, and for each site whether joining is worth it."""

from __future__ import annotations

import json
import math
import multiprocessing
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from vitrail import methods
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.encode import fingerprint
from vitrail.data.read import clean
from vitrail.methods import TABLE
from vitrail.runs.folder import Folder, write_atomically
from vitrail.runs.train import federate
from vitrail.studies.intervals import interval
from vitrail.study import LOWER_IS_BETTER, SHARES, Study

SCORES = ["method", "seed", "site", "split", "metric", "value"]
VERDICTS = ["site", "metric", "method", "local", "joined", "gain", "low", "high", "verdict", "why"]


@dataclass
class Comparison:
    """Tidy tables; `scores` is comparison.csv."""

    study: Study
    methods: list[str]
    seeds: list[int]
    scores: pd.DataFrame  # method, seed, site, split, metric, value
    curves: pd.DataFrame  # method, seed, round, site, metric, value
    ledger: pd.DataFrame  # method, site, stage, direction, messages, bytes
    sites: pd.DataFrame
    info: dict[str, Any]

    def summary(self) -> pd.DataFrame:
        """For each method and metric: mean over sites and worst site, with intervals over seeds."""
        rows = []
        test = self.scores[self.scores.split == "test"]
        for (method, metric), part in test.groupby(["method", "metric"], sort=False):
            table = part.pivot(index="seed", columns="site", values="value")
            down = metric in LOWER_IS_BETTER
            within = (0.0, 1.0) if metric in SHARES else (-math.inf, math.inf)
            mean, low, high = interval(table.mean(axis=1).tolist(), self._share, within)
            by_site = table.mean(axis=0)
            worst_site = (by_site.idxmax() if down else by_site.idxmin()) if by_site.notna().any() else ""
            of_worst = table[worst_site].tolist() if worst_site in table else [math.nan]
            rows.append((method, metric, mean, low, high, worst_site, *interval(of_worst, self._share, within)))
        columns = [
            "method",
            "metric",
            "mean",
            "mean_low",
            "mean_high",
            "worst_site",
            "worst",
            "worst_low",
            "worst_high",
        ]
        return pd.DataFrame(rows, columns=columns)

    def means(self, metric: str) -> dict[tuple[str, str], float]:
        """(method, site) -> mean over seeds on the hold-out rows."""
        test = self.scores[(self.scores.split == "test") & (self.scores.metric == metric)]
        return {(str(m), str(s)): float(part.value.mean()) for (m, s), part in test.groupby(["method", "site"])}

    @property
    def _share(self) -> float:
        return float(self.sites.test_rows.sum() / (self.sites.test_rows.sum() + self.sites.train_rows.sum()))

    def verdicts(self) -> pd.DataFrame:
        """Is joining worth it, for each site? Its best federated method against its own Local model, over seeds.

        The method for a seed is chosen by the site's scores under the other seeds, so that a lucky draw is not counted
        as a gain. The interval is widened for seeds that share rows.
        """
        federated = [m for m in self.methods if TABLE[m].federated]
        if "local" not in self.methods or not federated:
            return pd.DataFrame(columns=VERDICTS)
        metric = self.study.metrics[0]
        sign = -1 if metric in LOWER_IS_BETTER else 1
        test = self.scores[(self.scores.split == "test") & (self.scores.metric == metric)]
        rows = []
        for site, part in test.groupby("site", sort=False):
            table = part.pivot(index="seed", columns="method", values="value")
            size = self.sites[self.sites.site == site].iloc[0]
            rows.append(_verdict(str(site), metric, sign, table, federated, size))
        return pd.DataFrame(rows, columns=VERDICTS)


def _verdict(
    site: str, metric: str, sign: int, table: pd.DataFrame, federated: list[str], size: Any
) -> tuple[Any, ...]:
    best = str((sign * table[federated].mean()).fillna(-math.inf).idxmax())
    joined = []
    for seed in table.index:
        others = table.drop(index=seed)[federated] if len(table) > 1 else table[federated]
        chosen = (sign * others.mean()).fillna(-math.inf).idxmax()
        joined.append(float(table[chosen][seed]))
    alone = table["local"].tolist()
    gains = [sign * (j - a) for j, a in zip(joined, alone, strict=True)]
    share = float(size.test_rows / (size.test_rows + size.train_rows))
    gain, low, high = interval(gains, share)
    words = metric.replace("_", " ")
    title = TABLE[best].title
    if math.isnan(gain):
        verdict, why = "cannot tell", f"No {words} is defined here."
    elif math.isnan(low):
        verdict, why = "cannot tell", "One seed has no spread: compare over several seeds."
    elif low > 0:
        verdict, why = "yes", f"{title} lifts {words} by {gain:.3f}, at least by {low:.3f}, over {len(gains)} seeds."
    elif high < 0:
        verdict, why = (
            "no",
            f"Even {title} loses {-gain:.3f} of {words}, at least {-high:.3f}, over {len(gains)} seeds.",
        )
    else:
        verdict = "cannot tell"
        why = f"With {title} the change of {gain:+.3f} lies between {low:+.3f} and {high:+.3f}: "
        why += f"too near to nothing for {size.test_rows} test rows."
    mean_local = sum(alone) / len(alone)
    return site, metric, best, mean_local, sum(joined) / len(joined), gain, low, high, verdict, why


def load_comparison(path: Path) -> Comparison:
    """A finished comparison from its folder."""
    about = json.loads((path / "run.json").read_text(encoding="utf-8"))
    parts = [json.loads(p.read_text(encoding="utf-8")) for p in sorted((path / "parts").glob("*.json"))]
    if not parts or not (path / "comparison.csv").exists():
        raise VitrailError(
            "the comparison is not finished",
            [
                Problem(
                    str(path),
                    "comparison.csv is not there yet.",
                    "Continue it with `vitrail compare ... --resume`.",
                )
            ],
        )
    order = json.loads((path / "order.json").read_text(encoding="utf-8"))
    ranked = [p for s in order["seeds"] for m in order["methods"] for p in parts if (p["method"], p["seed"]) == (m, s)]
    study = Study.parse(tomllib.loads(about["study"]))
    return _gathered(study, order["methods"], order["seeds"], ranked, about["fingerprints"])


def seeds_of(study: Study, count: int) -> list[int]:
    """The study's seeds, continued by hashing when more are asked for."""
    seeds = list(study.seeds[:count])
    while len(seeds) < count:
        seeds.append(key(seeds[0], "seed", len(seeds)) % 2**31)
    return seeds


def compare(
    study: Study,
    sites: Mapping[str, pd.DataFrame],
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    rounds: int | None = None,
    engine: str = "vectorised",
    device: str = "cpu",
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Every method under every seed; finished parts in `out` are kept when resumed.

    `workers` processes share the work: the numbers are the same, and small networks, whose engine uses one core,
    are done sooner. progress(what, done, of) is called as it goes.
    """
    names, seeds = list(dict.fromkeys(names)), list(dict.fromkeys(seeds))
    problems = [p for n in names for p in methods.problems(n, {}, "methods")]
    if not names or not seeds:
        problems.append(Problem("methods and seeds", "expected at least one of each.", "Name them."))
    if problems:
        raise VitrailError("cannot compare", problems)
    if rounds is not None:
        study = study.with_changes(training={"rounds": rounds})
    marks = {n: fingerprint(clean(f, study)) for n, f in sites.items()}
    folder = _open(out, resume, study, marks, engine, device) if out is not None else None
    jobs = [
        _Job(study, name, seed, engine, device, folder.path if folder else None) for seed in seeds for name in names
    ]
    try:
        parts = _done(jobs, dict(sites), workers, progress or (lambda *_: None))
        result = _gathered(study, names, seeds, parts, marks)
        if folder:
            write_atomically(folder.path / "comparison.csv", result.scores.to_csv(index=False))
            write_atomically(folder.path / "summary.csv", result.summary().to_csv(index=False))
            write_atomically(folder.path / "verdicts.csv", result.verdicts().to_csv(index=False))
            write_atomically(folder.path / "order.json", json.dumps({"methods": names, "seeds": seeds}))
            folder.log("finished", methods=names, seeds=seeds)
    finally:
        if folder:
            folder.close()
    return result


def _open(out: str | Path, resume: bool, study: Study, marks: dict[str, str], engine: str, device: str) -> Folder:
    folder = Folder(Path(out), resume=resume)
    about = {"study": study.to_toml(), "fingerprints": marks, "engine": engine, "device": device}
    place = folder.path / "run.json"
    if resume and json.loads(place.read_text(encoding="utf-8")) != about:
        folder.close()
        raise VitrailError(
            "this is another comparison",
            [Problem(str(out), "study or data are not those it was started with.", "Choose another --out.")],
        )
    write_atomically(place, json.dumps(about, indent=1))
    (folder.path / "parts").mkdir(exist_ok=True)
    return folder


class _Job(NamedTuple):
    """One method under one seed."""

    study: Study
    name: str
    seed: int
    engine: str
    device: str
    folder: Path | None

    @property
    def words(self) -> str:
        return f"{TABLE[self.name].title}, seed {self.seed}"


def _done(
    jobs: list[_Job], sites: dict[str, pd.DataFrame], workers: int, progress: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    total = len(jobs)
    if workers < 2:

        def within(number: int, job: _Job) -> Callable[[int, int], None]:
            return lambda r, rounds: progress(job.words, number * rounds + r, total * rounds)

        return [_part(job, sites, within(i, job)) for i, job in enumerate(jobs)]
    parts: dict[int, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's locks in whatever state they are
    with ProcessPoolExecutor(workers, context, _remember, (sites,)) as pool:
        waiting = {pool.submit(_part_there, job): i for i, job in enumerate(jobs)}
        try:
            for n, future in enumerate(as_completed(waiting), 1):
                parts[waiting[future]] = future.result()
                progress(jobs[waiting[future]].words, n, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [parts[i] for i in range(total)]


_sites: dict[str, pd.DataFrame] = {}  # of a worker process, sent once


def _remember(sites: dict[str, pd.DataFrame]) -> None:
    _sites.update(sites)


def _part_there(job: _Job) -> dict[str, Any]:
    return _part(job, _sites, None)


def _part(job: _Job, sites: Mapping[str, pd.DataFrame], progress: Callable[[int, int], None] | None) -> dict[str, Any]:
    place = job.folder / "parts" / f"{job.name}-{job.seed}.json" if job.folder else None
    if place and place.exists():
        done: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return done
    run = federate(
        job.study,
        sites,
        method=job.name,
        seed=job.seed,
        engine=job.engine,
        device=job.device,
        progress=progress,
    )
    scores = pd.concat([run.scores(split).assign(split=split) for split in ("test", "train")])
    part = {
        "method": job.name,
        "seed": job.seed,
        "scores": scores.to_numpy().tolist(),
        "curve": run.curve()[["round", "site", "metric", "value"]].to_numpy().tolist(),
        "ledger": run.ledger.to_dict("records"),
        "sites": run.sizes.to_dict("records"),
        "versions": run.info["versions"],
    }
    if place:
        write_atomically(place, json.dumps(part))
    return part


def _gathered(
    study: Study, names: list[str], seeds: list[int], parts: list[dict[str, Any]], marks: dict[str, str]
) -> Comparison:
    scores = [
        (p["method"], p["seed"], site, split, metric, value)
        for p in parts
        for site, metric, value, split in p["scores"]
    ]
    curves = [(p["method"], p["seed"], *row) for p in parts for row in p["curve"]]
    ledger = [{"method": p["method"], **row} for p in parts if p["seed"] == seeds[0] for row in p["ledger"]]
    return Comparison(
        study,
        names,
        seeds,
        pd.DataFrame(scores, columns=SCORES),
        pd.DataFrame(curves, columns=["method", "seed", "round", "site", "metric", "value"]),
        pd.DataFrame(ledger),
        pd.DataFrame(parts[0]["sites"]),
        {"fingerprints": marks, "versions": parts[0]["versions"]},
    )
