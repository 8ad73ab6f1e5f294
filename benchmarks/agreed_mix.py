"""Does joining harm nobody, if all agree on how much of the shared model each uses? Known truths, and real tables.

    VITRAIL_DATA=... python benchmarks/agreed_mix.py           # one process; resumes: finished cases lie in --cache
    python benchmarks/agreed_mix.py --report                   # tables from what is there

The worlds of benchmarks/choose.py in which models are linear. Rivals (Local, FedAvg, fine-tuning) have the settings
that choose.py found for each world; the rates of the agreed mix are found here in the same way, on the same two seeds,
within training rows. One run of the agreed mix holds every alternative: from its tables of losses on rows left out come
what all agree on, what each site would choose for itself, and a choice by lot, judged on the same test rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from choose import BATCH, RATES, ROUNDS, inner, milli, named, rows_of, tensors_of
from torch import Tensor
from worlds import WORLDS, Array, Site, World, sites_of

from vitrail.core.facts import AGAINST_ALONE, MIX
from vitrail.core.task import Task
from vitrail.core.tensors import each
from vitrail.engines.local import Engine
from vitrail.engines.rounds import Training
from vitrail.engines.sites import gather_sites
from vitrail.explain.worse import chance_worse, expect_worse
from vitrail.methods.agreed_mix import AgreedMix
from vitrail.methods.copies import last, mix
from vitrail.nets import MLP
from vitrail.report.agreed import NAMED
from vitrail.studies.intervals import interval

Case = dict[str, Any]
FIRST = 5001  # first seed of the comparison; 1 and 2 are tuned with, 101 and on the rule was shaped on
BEHIND = 2e-3  # nats that the mean over sites may be behind the best of the three
HARM, NOISE = 5e-3, 2.0  # a site is harmed if it is behind Local by more than both: nats, and standard errors
OWN_RATES = [1.0, 0.3, 0.1]  # of what a site trains alone, beside that of the rounds
LINEAR = [name for name, world in WORLDS.items() if not world.hidden and world.table != "cifar"]
RIVALS = {"local": "Local", "fedavg": "FedAvg", "fine_tune": "Fine-tuning"}
CHOOSE = Path(__file__).parent / "results" / "choose.md"


class Ran(NamedTuple):
    engine: Engine
    names: list[str]
    tables: Any  # the state before the choice is settled: what each site keeps of its losses
    ready: Any  # the state in which every alternative is there
    facts: dict[str, Tensor]
    state: Any  # at the end


def settings_of(world: str) -> dict[str, dict[str, float]]:
    """What choose.py found for the rivals, as its results say."""
    titles = {"Local": "local", "Global": "fedavg", "Fine-tuning": "fine_tune"}
    line = next(v for v in CHOOSE.read_text().splitlines() if v.startswith(f"- {world}: Local lr"))
    found = {}
    for part in line.removeprefix(f"- {world}: ").split("; "):
        title, rest = re.split(r" (?=lr )", part)
        if title in titles:
            found[titles[title]] = {k: float(v) for k, v in (item.split(" ") for item in rest.split(", "))}
    return found


def run(world: World, sites: list[Site], method: Any, lr: float, seed: int) -> Ran:
    classes = 1 + max(int(s.y.max()) for s in sites)
    net = MLP(sites[0].x.shape[1], classes, world.hidden)
    names = [f"{i:02}" for i in range(len(sites))]
    rows = [(n, *tensors_of(s.x, s.y, classes), torch.ones(len(s.y), 1)) for n, s in zip(names, sites, strict=True)]
    training = Training(ROUNDS, 1, BATCH, lr, momentum=0.0, decays=20, mean=True)
    task = Task(net, net.init(torch.Generator().manual_seed(seed)))
    engine, facts, ready, tables = Engine(task, method, gather_sites(rows), training, seed), {}, None, None
    for moment in engine.run():
        facts |= {f.means: f.value.double() for f in moment.facts.values()}
        name = engine.stages[moment.stage].name
        if name in ("train", "tune") and moment.round == engine.stages[moment.stage].rounds:
            ready = each(torch.clone, engine.settled(moment))
        if name == "choose":
            tables = each(torch.clone, moment.state)
    return Ran(engine, names, tables, ready, facts, engine.settled(moment))


def row_losses(ran: Ran, sites: list[Site], scores: Any) -> list[Tensor]:
    """Of each site its test rows' log losses, [..., row]; `scores(state of the site, x)` gives [..., row, class]."""
    out, classes = [], ran.engine.task.net.outputs
    for name, site in zip(ran.names, sites, strict=True):
        x, y = tensors_of(site.test_x, site.test_y, classes)
        z = scores(ran.engine.names.index(name), x[None]).double()
        out.append(-(z.log_softmax(-1) * y).sum(-1))
    return out


def predicted(ran: Ran, sites: list[Site]) -> list[Tensor]:
    def scores(at: int, x: Tensor) -> Tensor:
        return ran.engine.method.predict(ran.engine.task, each(lambda t: t[at : at + 1], ran.state), x)[0]

    return row_losses(ran, sites, scores)


def alternatives(ran: Ran, sites: list[Site]) -> list[Tensor]:
    """[start, alpha, row] for each site."""
    method, task = ran.engine.method, ran.engine.task

    def scores(at: int, x: Tensor) -> Tensor:
        mine = each(lambda t: t[at : at + 1], ran.ready)
        own = task.output(last(mine.own), x)[0]
        params = [method.method.models(task, each(lambda t: t[:, -1], mine.of))["own"]]
        params += [{k: v[:, i, -1] for k, v in mine.tuned.items()} for i in range(len(method.tuned))]
        return torch.stack([torch.stack([mix(a, own, task.output(p, x)[0]) for a in method.alphas]) for p in params])

    return row_losses(ran, sites, scores)


def ordered(ran: Ran, value: Tensor) -> list[Any]:
    """In the order of the world's sites."""
    return [value[ran.engine.names.index(n)].double().tolist() for n in ran.names]


def tuned(job: Case) -> Case:
    world, sites = WORLDS[job["world"]], inner(sites_of(WORLDS[job["world"]], job["seed"]), job["seed"])
    ran = run(world, sites, AgreedMix(own_rate=job["own_rate"]), job["lr"], job["seed"])
    return {"loss": float(np.mean([v.mean() for v in predicted(ran, sites)]))}


def compared(job: Case) -> Case:
    world, sites = WORLDS[job["world"]], sites_of(WORLDS[job["world"]], job["seed"])
    rivals, out = {}, Case(honest=[s.honest for s in sites], rows=[len(s.y) for s in sites])
    for name, given in settings_of(job["world"]).items():
        epochs = {"epochs": int(given["epochs"])} if "epochs" in given else {}
        rivals[name] = predicted(run(world, sites, named(name)(**epochs), given["lr"], job["seed"]), sites)
        more = [b - a for a, b in zip(rivals["local"], rivals[name], strict=True)]
        out[name] = {"loss": [float(v.mean()) for v in rivals[name]], "error": [deviation(v) for v in more]}
    ran = run(world, sites, AgreedMix(own_rate=job["own_rate"], **job.get("given", {})), job["lr"], job["seed"])
    tests, said = alternatives(ran, sites), predicted(ran, sites)
    out["test"] = [v.mean(-1).tolist() for v in tests]
    out["test error"] = [deviation(v - a) for v, a in zip(tests, rivals["local"], strict=True)]
    out |= {"left out": ordered(ran, ran.tables.losses), "left out error": ordered(ran, ran.tables.errors)}
    out |= {"alone left out": ordered(ran, ran.tables.alone), "said": [float(v.mean()) for v in said]}
    return {**out, "agreed": ran.facts[MIX].tolist(), "against": ran.facts[AGAINST_ALONE].tolist()}


def deviation(rows: Tensor) -> Any:
    """The standard error of the mean over rows."""
    return (rows.std(-1) / rows.shape[-1] ** 0.5).tolist()


# --- all cases -------------------------------------------------------------------------------------------------------


def place(job: Case, folder: Path) -> Path:
    given = "".join(f"-{k}{v}" for k, v in job.get("given", {}).items()).replace(" ", "")
    rates = f"{job['lr']:g}-{job['own_rate']:g}"
    return folder / f"{job['step']}-{job['world'].replace(' ', '_')}-{job['seed']}-{rates}{given}.json"


def carry_out(jobs: list[Case], folder: Path, until: float) -> None:
    torch.set_num_threads(1)
    todo = [j for j in jobs if not place(j, folder).exists()]
    for n, job in enumerate(todo, 1):
        if time.process_time() > until:
            print(f"stopped with {len(todo) - n + 1} to do: call again to go on", flush=True)
            return
        began = time.process_time()
        done = (tuned if job["step"] == "tune" else compared)(job)
        where = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
        path = place(job, folder)
        path.with_suffix(".tmp").write_text(
            json.dumps({**job, **done, "where": where, "s": time.process_time() - began})
        )
        path.with_suffix(".tmp").replace(path)
        if n % 20 == 0 or n == len(todo):
            print(f"{n} of {len(todo)} after {time.process_time():.0f} CPU s", flush=True)


def read(jobs: list[Case], folder: Path) -> list[Case]:
    return [json.loads(path.read_text()) for job in jobs if (path := place(job, folder)).exists()]


def to_tune(worlds: list[str]) -> list[Case]:
    return [
        {"step": "tune", "world": w, "seed": s, "lr": lr, "own_rate": own}
        for s, w, lr, own in itertools.product((1, 2), worlds, RATES, OWN_RATES)
    ]


def rates_of(world: str, folder: Path) -> dict[str, float]:
    """Those with the lowest mean over the tuning seeds; nothing before all are tried."""
    done, means = read(to_tune([world]), folder), {}
    if len(done) < len(to_tune([world])):
        return {}
    for rates in itertools.product(RATES, OWN_RATES):
        means[rates] = np.mean([c["loss"] for c in done if (c["lr"], c["own_rate"]) == rates])
    best = min(means, key=lambda rates: float(np.nan_to_num(means[rates], nan=np.inf)))
    return dict(zip(("lr", "own_rate"), best, strict=True))


def to_compare(worlds: list[str], folder: Path, first: int, seeds: int, **given: Any) -> list[Case]:
    rates = {w: rates_of(w, folder) for w in worlds}
    more = {"given": given} if given else {}
    step = "compare" if first == FIRST else "shape"
    return [
        {"step": step, "world": w, "seed": s, **found, **more}
        for s in range(first, first + seeds)
        for w, found in rates.items()
        if found
    ]


# --- the report ------------------------------------------------------------------------------------------------------

TITLES = {**RIVALS, "agreed": "Agreed mix", "each": "Each site chooses", "lot": "By lot"}


class Result(NamedTuple):
    """One world, under its seeds."""

    world: str
    cases: list[Case]

    def sites(self, way: str) -> list[tuple[Array, Array]]:
        """For each seed, of honest sites: test loss, and by how many standard errors it is above Local's."""
        return [served(case, way) for case in self.cases]

    def losses(self, way: str) -> Array:
        """[seed]: mean over sites."""
        return np.array([loss.mean() for loss, _ in self.sites(way)])

    def harmed(self, way: str) -> float:
        return float(np.mean([harm.mean() for _, harm in self.sites(way)]))

    @property
    def best(self) -> str:
        """Of the three rivals, by the mean; picked after the fact."""
        return min(RIVALS, key=lambda w: float(self.losses(w).mean()))

    def gain(self, rival: str, way: str = "agreed") -> tuple[float, float, float]:
        """How much lower than the rival's, paired by seed; 95 % interval, widened where seeds share rows."""
        share = {"": 0.0, "occupation": 0.8, "relationship": 0.8}.get(WORLDS[self.world].table, 0.5)
        return interval((self.losses(rival) - self.losses(way)).tolist(), share)


def served(case: Case, way: str) -> tuple[Array, Array]:
    """Of honest sites: test loss, and the share of draws in which the site is harmed (0 or 1 but for the lot)."""
    honest, local = np.array(case["honest"]), np.array(case["local"]["loss"])
    if way in RIVALS:
        loss, error = (np.array(case[way][k]) for k in ("loss", "error"))
        return loss[honest], is_harmed(loss - local, error)[honest]
    test, error = (np.array(case[k]).reshape(len(honest), -1) for k in ("test", "test error"))  # [site, alternative]
    harm = is_harmed(test - local[:, None], error)
    if way == "lot":
        return test.mean(1)[honest], harm.mean(1)[honest]
    left_out, rows = np.array(case["left out"]).reshape(test.shape), np.array(case["rows"])
    at = left_out.argmin(1) if way == "each" else np.full(len(rows), place_agreed(case))
    pick = np.arange(len(rows)), at
    return test[pick][honest], harm[pick][honest].astype(float)


def is_harmed(more: Array, error: Array) -> Array:
    out: Array = more > np.maximum(HARM, NOISE * error)
    return out.astype(float)


def place_agreed(case: Case) -> int:
    """Among all alternatives, as the run itself chose."""
    epochs, own = case["agreed"]
    method = AgreedMix(**case.get("given", {}))
    at = (0, *method.tuned).index(round(epochs)), [round(a, 3) for a in method.alphas].index(round(own, 3))
    return int(np.ravel_multi_index(at, method.table))


class Expected(NamedTuple):
    """Of one run: how many of its sites are served worse than alone by what was agreed, as expected and in truth."""

    sites: int
    share: float
    true: float
    inside: bool
    chances: list[float]  # of each site
    worse: list[bool]  # in truth


def expectation(case: Case) -> Expected | None:
    """None where all agreed to stay alone, or there are too few sites."""
    at = place_agreed(case)
    test = np.array(case["test"])
    alone, agreed = test[:, 0, -1], test.reshape(len(test), -1)[:, at]
    sums = [float(np.array(v).ravel()[at]) for v in case["against"]]
    told = expect_worse(sums)
    if told is None or np.allclose(alone, agreed):
        return None
    worse = agreed > alone
    left_out, error = (np.array(case[k]).reshape(len(test), -1)[:, at] for k in ("left out", "left out error"))
    more = left_out - np.array(case["alone left out"])
    chances = [chance_worse(float(d), float(e), sums) for d, e in zip(more, error, strict=True)]
    inside = told.low <= worse.sum() <= told.high
    return Expected(told.sites, told.share, float(worse.mean()), bool(inside), chances, worse.tolist())


def in_short(results: list[Result]) -> list[str]:
    behind = {r.world: -r.gain(r.best)[0] for r in results}
    late = {w: v for w, v in behind.items() if v > BEHIND}
    lines = [
        f"- Mean over sites at most {1000 * BEHIND:g}e-3 nats behind the best of Local, FedAvg and fine-tuning: "
        f"{len(results) - len(late)} of {len(results)} worlds."
        + "".join(f" Not in *{w}*: {1000 * v:.1f}e-3." for w, v in late.items())
    ]
    for way in ("agreed", "each", "lot", *RIVALS):
        off = [-1000 * r.gain(r.best, way)[0] for r in results]
        harm = 100 * np.mean([r.harmed(way) for r in results])
        lines.append(
            f"- {TITLES[way]}: {np.mean(off):+.1f}e-3 nats from the best of the three in each world, at worst "
            f"{max(off):+.1f}e-3; {harm:.1f} % of sites harmed."
        )
    sums = {way: sum(r.harmed(way) for r in results) for way in ("agreed", "fine_tune")}
    fewer = sum(r.harmed("agreed") <= r.harmed("fine_tune") / 2 for r in results)
    lines.append(
        f"- Sites harmed, against fine-tuning: {sums['agreed'] / sums['fine_tune']:.2f} times as many over all worlds; "
        f"at most half as many in {fewer} of {len(results)}."
    )
    better = sum(r.gain("each")[0] > 0 for r in results)
    lines.append(f"- One choice for all is lower than each site's own in {better} of {len(results)} worlds.")
    return lines


def write(results: list[Result], out: Path) -> None:
    cases = [c for r in results for c in r.cases]
    lines = [f"# One mix for all, {time.strftime('%Y-%m-%d')}", "", SETTINGS, ""]
    lines += [f"CPU minutes of the comparison: {sum(c['s'] for c in cases) / 60:.0f}. On: {cases[0]['where']}.", ""]
    lines += ["## In short", "", *in_short(results), "", "## Log loss, mean over sites and seeds"]
    head = ["world", "seeds", *TITLES.values()]
    table = [[r.world, str(len(r.cases)), *(f"{r.losses(w).mean():.4f}" for w in TITLES)] for r in results]
    lines += [*rows_of(head, table), "## Agreed mix: 1e-3 nats lower than", ""]
    lines += ["Paired by seed, 95 % interval in brackets, bold where it excludes 0; last, than the best of the three."]
    ways = [*RIVALS, "each", "lot"]
    table = [[r.world, *(milli(r.gain(w)) for w in ways), milli(r.gain(r.best)), TITLES[r.best]] for r in results]
    lines += rows_of(["world", *(TITLES[w] for w in ways), "the best of three", "which"], table)
    lines += ["## Who was harmed, and what was agreed", ""]
    lines += [
        f"Harmed: share of sites behind Local by more than {1000 * HARM:g}e-3 nats and {NOISE:g} standard errors."
    ]
    table = []
    for r in results:
        epochs, own = (np.mean([c["agreed"][i] for c in r.cases]) for i in (0, 1))
        harmed = [f"{100 * r.harmed(w):.1f} %" for w in TITLES if w != "local"]
        rates = f"{r.cases[0]['lr']:g}, {r.cases[0]['own_rate']:g}"
        table.append([r.world, *harmed, f"{epochs:.1f}", f"{own:.2f}", rates])
    head = ["world", *(TITLES[w] for w in TITLES if w != "local"), "epochs", "own share", "rate, own rate"]
    lines += [*rows_of(head, table), "## Is the expected share of sites served worse than alone right?", "", EXPECTED]
    table, every = [], []
    for r in results:
        if told := [e for c in r.cases if (e := expectation(c))]:
            every += told
            table.append([r.world, str(len(told)), *words_of(told)])
    table.append(["all", str(len(every)), *words_of(every)])
    head = [
        "world",
        "runs",
        "expected",
        "true",
        "inside the interval",
        "named",
        "of these truly worse",
        "worse and named",
    ]
    lines += rows_of(head, table)
    out.write_text("\n".join(lines).rstrip() + "\n")
    print(out)


def words_of(told: list[Expected]) -> list[str]:
    chances, worse = (np.concatenate([np.array(getattr(e, k)) for e in told]) for k in ("chances", "worse"))
    named_ones = chances >= NAMED
    right = f"{100 * worse[named_ones].mean():.0f} %" if named_ones.any() else ""
    found = f"{100 * named_ones[worse].mean():.0f} %" if worse.any() else ""
    shares = [f"{100 * np.mean([getattr(e, k) for e in told]):.0f} %" for k in ("share", "true", "inside")]
    return [*shares, f"{100 * named_ones.mean():.1f} %", right, found]


SETTINGS = """\
Written by `benchmarks/agreed_mix.py`. The worlds of `benchmarks/choose.py` with linear models: logistic truths over 10
features, 12 sites of 60 to 250 rows, 3000 test rows each; tables with features standardised over all sites, at most 500
rows of a site, half of them test rows (Adult: 1000, four fifths). 30 rounds of one epoch, batches of 32, mean loss, no
momentum, the rate times .9 twenty times. Rivals have the rates and epochs that choose.py found for each world; the rate
of the agreed mix and that of what its sites train alone are found in the same way on the same two seeds. The comparison
is on seeds 5001 and on, which led to no change. Each site chooses: the same table, the lowest of its own losses.
By lot: any of the alternatives, all as likely. Only sites with right labels are judged; all have a say."""
EXPECTED = """\
Runs in which all agreed on something else than to stay alone. True: on test rows, against the model trained alone of
the same run, also by very little. Inside: how often the number of sites lies in the interval that should hold it nine
times of ten. Named: sites with a chance of 80 % or more."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--worlds", help="names, separated by semicolons; all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=FIRST, help="first seed; others than the default shape the rule")
    parser.add_argument("--folds", type=int, help="others than the default, to shape the rule")
    parser.add_argument("--minutes", type=float, default=30, help="of CPU time, then stop")
    parser.add_argument("--cache", type=Path, default=Path("scratch/agreed_mix"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "agreed_mix.md")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    worlds = args.worlds.split(";") if args.worlds else LINEAR
    if unknown := [w for w in worlds if w not in LINEAR]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(LINEAR)}")
    args.cache.mkdir(parents=True, exist_ok=True)
    given = {"folds": args.folds} if args.folds else {}
    if not args.report:
        carry_out(to_tune(worlds), args.cache, 60 * args.minutes)
        carry_out(to_compare(worlds, args.cache, args.first, args.seeds, **given), args.cache, 60 * args.minutes)
    done = read(to_compare(worlds, args.cache, args.first, args.seeds, **given), args.cache)
    results = [Result(w, found) for w in worlds if len(found := [c for c in done if c["world"] == w]) > 1]
    if results:
        write(results, args.out)


if __name__ == "__main__":
    main()
