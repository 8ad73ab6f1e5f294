"""Many runs side by side: methods x seeds on the same splits, and for each site whether joining is worth it."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from vitrail import methods
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.encode import fingerprint_rows
from vitrail.data.read import clean
from vitrail.methods import TABLE
from vitrail.runs.folder import Folder, write_atomically
from vitrail.runs.run import mark_few
from vitrail.runs.screened import SCREEN, load_screening, save_screening, screen_rows, screens, unscreened
from vitrail.runs.setup import check_trainable, resolve
from vitrail.runs.train import federate
from vitrail.screen.found import Screening
from vitrail.studies.intervals import interval
from vitrail.studies.pool import Step, done
from vitrail.study import LOWER_IS_BETTER, SHARES, Study

SCORES = ["method", "seed", "site", "split", "metric", "value"]
CHANCE = ["seed", "site", "metric", "value"]  # what always giving the same answer comes to on the hold-out rows
VERDICTS = ["site", "metric", "method", "alone", "joined", "gain", "low", "high", "verdict", "why"]


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
    chance: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=CHANCE))  # see CHANCE
    screening: Screening | None = None  # whose data does not fit: one for all methods

    def results(self) -> pd.DataFrame:
        """`scores`, and beside each on hold-out rows what always giving the same answer comes to; `few_rows` says where
        they are few."""
        beside = self.chance.rename(columns={"value": "chance"}).assign(split="test")
        wide = self.scores.merge(
            beside.astype({"seed": self.scores.seed.dtype}), "left", ["seed", "site", "split", "metric"]
        )
        return mark_few(wide, self.sites)

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
        """Is joining worth it, for each site? Its best federated method against training alone, over seeds.

        The method for a seed is chosen by the site's scores under the other seeds, so that a lucky draw is not counted
        as a gain. The interval is widened for seeds that share rows.
        """
        federated = [m for m in self.methods if TABLE[m].federated]
        alone = next((m for m in self.methods if TABLE[m].alone), None)
        if alone is None or not federated:
            return pd.DataFrame(columns=VERDICTS)
        metric = self.study.metrics[0]
        sign = -1 if metric in LOWER_IS_BETTER else 1
        test = self.scores[(self.scores.split == "test") & (self.scores.metric == metric)]
        rows = []
        for site, part in test.groupby("site", sort=False):
            table = part.pivot(index="seed", columns="method", values="value")
            size = self.sites[self.sites.site == site].iloc[0]
            scores, word = (table[federated], table[alone].tolist()), self.study.row_word
            rows.append(_verdict(str(site), metric, sign, *scores, size, word))
        return pd.DataFrame(rows, columns=VERDICTS)


def _verdict(
    site: str, metric: str, sign: int, federated: pd.DataFrame, alone: list[float], size: Any, word: str
) -> tuple[Any, ...]:
    """federated: [seed, method]; alone: [seed]"""
    best = str((sign * federated.mean()).fillna(-math.inf).idxmax())
    joined = []
    for seed in federated.index:
        others = federated.drop(index=seed) if len(federated) > 1 else federated
        chosen = (sign * others.mean()).fillna(-math.inf).idxmax()
        joined.append(float(federated[chosen][seed]))
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
        why += f"too near to nothing for {size.test_rows} test {word}s."
    means = sum(alone) / len(alone), sum(joined) / len(joined)
    return site, metric, best, *means, gain, low, high, verdict, why


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
    found = _gathered(study, order["methods"], order["seeds"], ranked, about["fingerprints"])
    return replace(found, screening=load_screening(path / SCREEN))


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
    check_trainable(resolve(study, name, None) for name in names)
    cleaned = {n: clean(f, study) for n, f in sites.items()}
    marks = {n: fingerprint_rows(rows) for n, rows in cleaned.items()}
    folder = _open(out, resume, study, marks, engine, device) if out is not None else None
    place = folder.path if folder else None
    jobs = [_Job(unscreened(study), name, seed, engine, device, place) for seed in seeds for name in names]
    of = study.training.rounds

    def tell(job: _Job, so_far: float) -> None:
        if progress:
            progress(job.words, round(so_far * of), len(jobs) * of)

    try:
        screening = screen_rows(study, cleaned) if screens(study) else None
        if folder and screening:
            save_screening(folder.path / SCREEN, screening)
        parts = done(jobs, _part, dict(sites), workers, tell, _Job.known)
        result = replace(_gathered(study, names, seeds, parts, marks), screening=screening)
        if folder:
            write_atomically(folder.path / "comparison.csv", result.results().to_csv(index=False))
            worst, verdicts = mark_few(result.summary(), result.sites, "worst_site"), result.verdicts()
            write_atomically(folder.path / "summary.csv", worst.to_csv(index=False))
            write_atomically(folder.path / "verdicts.csv", mark_few(verdicts, result.sites).to_csv(index=False))
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

    @property
    def place(self) -> Path | None:
        """Where it is kept."""
        return self.folder / "parts" / f"{self.name}-{self.seed}.json" if self.folder else None

    def known(self) -> dict[str, Any] | None:
        """What it came to, where it is finished."""
        if self.place is None or not self.place.exists():
            return None
        part: dict[str, Any] = json.loads(self.place.read_text(encoding="utf-8"))
        return part


def _part(job: _Job, sites: Mapping[str, pd.DataFrame], step: Step) -> dict[str, Any]:
    run = federate(
        job.study,
        sites,
        method=job.name,
        seed=job.seed,
        engine=job.engine,
        device=job.device,
        progress=step,
    )
    scores = pd.concat([run.scores(split).assign(split=split) for split in ("test", "train")])
    part = {
        "method": job.name,
        "seed": job.seed,
        "scores": scores.to_numpy().tolist(),
        "curve": run.curve()[["round", "site", "metric", "value"]].to_numpy().tolist(),
        "chance": run.chance().to_numpy().tolist(),
        "ledger": run.ledger.to_dict("records"),
        "sites": run.sizes.to_dict("records"),
        "versions": run.info["versions"],
    }
    if job.place:
        write_atomically(job.place, json.dumps(part))
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
    told = {p["seed"]: p.get("chance", []) for p in parts}  # the same under every method
    chance = [(seed, *row) for seed, rows in told.items() for row in rows]
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
        pd.DataFrame(chance, columns=CHANCE),
    )
