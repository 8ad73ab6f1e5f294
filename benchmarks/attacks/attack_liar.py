"""One site multiplies its change: what that does under every way of making a total, and what a bound on lengths costs.

    python benchmarks/attacks/attack_liar.py                      # all; resumes: finished cases lie in --cache
    VITRAIL_DATA=... python benchmarks/attacks/attack_liar.py     # the same, and honest lengths on GUSTO, Adult and HAR
    python benchmarks/attacks/attack_liar.py --report             # the tables from what is there

`study`: the heart study by FedAvg as it is drafted, 30 rounds, by message: every site is the code of `vitrail join`
with its own folder, checks and keys, the coordinator that of `vitrail serve`, all in one process on one thread.
Hungarian
(the second largest hospital) multiplies its change by the factor in every round from the fifth on. Scores: mean over
the honest sites' own hold-out rows at the end. "check off" is the coordinator before this check, the control.
Where the coordinator stops because of rounds that were not used, its advice is followed: the liar's process is
stopped, and `serve` started again. Groups need nine sites: there each hospital is cut in three, and one third of
Hungarian lies. `bound`: the two servers refuse reports longer than LONGEST times the median length (in the product);
`bound alone`: they take all others, without Multi-Krum (a trial). Three of eight: each hospital is cut in two.

`lengths`: honest rounds of federations as they are, how many reports are longer than k times the median of their round,
and how many would be if multiplied. `cost`: the two servers' work for the drafted network, on the same machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "deploy"))

from guard_worlds import WORLDS, world_of
from kept_cases import Cases, run_cases
from masked import enrolled

import vitrail as vt
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.encoding import prepare
from vitrail.deploy.coordinator.acceptance import AcceptanceForecast
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import FINAL, Message, unpack
from vitrail.deploy.site.safeguards import STOPPED
from vitrail.deploy.site.site import Site
from vitrail.deploy.two_server.server import SecondServer
from vitrail.engine.local import Engine
from vitrail.privacy.report_vectors import lengths as lengths_of
from vitrail.privacy.two_server import krum
from vitrail.privacy.two_server import protocol as two_server_protocol
from vitrail.runs.folder import Folder
from vitrail.runs.setup import build_task, resolve, training_of, training_rows

RUN, ROUNDS, FROM, LIAR, SECOND = "0123456789abcdef", 30, 4, "hungarian", "registry"
CLIP = 2.0  # twice the longest honest change of the first rounds
FACTORS = (1, -1, -2, -5, -20)
TWO = {"sum": "two servers", "clip": CLIP, "second": SECOND}
WAYS: dict[str, dict[str, Any]] = {
    "plain, check off": {},
    "plain": {},
    "masked, check off": {"sum": "masked"},
    "masked": {"sum": "masked"},
    "median": {"robust": "median"},
    "multikrum": {"robust": "multikrum"},
    "groups, 12 sites": {"sum": "groups"},
    "two servers, no bound": TWO,
    "two servers": TWO,
    "two servers, bound alone": TWO,
    "two servers, no bound, 3 of 8 sites lie": TWO,
    "two servers, 3 of 8 sites lie": TWO,
}
TIMES = (2, 3, 5, 10)
LARGE = "gusto, one site 40 times as large"


class Sites:
    """The way to sites in this process. The liar's engine multiplies what it reports."""

    def __init__(self, sites: dict[str, Any], liars: set[str], by: float) -> None:
        self.sites, self.events, self.away = sites, list[tuple[str, dict[str, Any]]](), set[str]()
        self.liars, self.by, self.bytes = liars, by, 0

    def ask(self, questions: dict[str, Message], deadline: float, beside: Any = frozenset()) -> Responses:
        answers, gone = {}, {}
        for name, question in questions.items():
            if name in self.away:
                gone[name] = "it is not there"
                continue
            lies = question.kind == "round" and question.words["round"] >= FROM and name in self.liars
            try:
                asked = question.pack()
                said = self._answer(name, unpack(asked), lies).pack()
                self.bytes += len(asked) + len(said)
                answers[name] = unpack(said)
            except VitrailError as error:
                answers[name] = Message("error", {"text": str(error)} | ({FINAL: True} if error.ends_run else {}))
        return Responses(answers, gone)

    def _answer(self, name: str, question: Message, lies: bool) -> Message:
        site = self.sites[name]
        if not lies or site.data is None:
            return site.answer(question)
        before = site.engine.answers

        def answers(ex: Any, *given: Any) -> Any:
            (report,) = before(ex, *given)
            changed = {name: values * self.by for name, values in report.held.change.items()}
            return [report._replace(held=report.held._replace(change=changed))]

        site.engine.answers = answers
        try:
            return site.answer(question)
        finally:
            site.engine.answers = before

    def present(self) -> set[str]:
        return set(self.sites) - self.away

    def log(self, event: str, **details: Any) -> None:
        self.events.append((event, details))


@contextmanager
def defended(way: str) -> Iterator[None]:
    """Defences switched off, and what a liar's own code does not check: that its change keeps to the clip."""
    with ExitStack() as stack:
        stack.enter_context(patch("vitrail.deploy.two_server.site.halves_of", _halved))
        stack.enter_context(patch("time.sleep", lambda _: None))
        if way.endswith("check off"):
            stack.enter_context(patch.object(AcceptanceForecast, "problems", lambda *_: []))
            stack.enter_context(patch.object(AcceptanceForecast, "jumps", lambda *_: ""))
        if way.startswith("two servers, no bound"):
            stack.enter_context(patch.object(krum, "LONGEST", np.inf))
        if way == "two servers, bound alone":
            for place in ("vitrail.deploy.two_server.coordinator", "vitrail.deploy.two_server.server"):
                stack.enter_context(patch(f"{place}.chosen_by", _bounded))
        yield


def _halved(x: Any, clip: float) -> Any:
    seed = two_server_protocol.secrets.token_bytes(two_server_protocol.SEED)
    return two_server_protocol.to_fixed_point(x, clip) - two_server_protocol.draw(seed, len(x)), seed


def _bounded(products: Any, sound: Any, clip: float) -> list[int]:
    return [int(i) for i in krum.within_length(products, sound, clip)]


def study(way: str, by: float, seed: int) -> dict[str, Any]:
    frames, liars = heart_disease(), {LIAR}
    if (parts := 3 if way.startswith("groups") else 2 if "of 8" in way else 1) > 1:
        frames = {f"{n} {i}": f.iloc[i::parts].reset_index(drop=True) for n, f in frames.items() for i in range(parts)}
        liars = {f"{LIAR} 0"} if parts == 3 else {f"{LIAR} 0", f"{LIAR} 1", "switzerland 0"}
    protect = WAYS[way]
    names = [*frames, *([SECOND] if "second" in protect else [])]
    given = {"training": {"rounds": ROUNDS}, "screen": {"ask": False}, "protect": protect}
    given |= {"metrics": ("balanced_accuracy", "log_loss")}
    told, _ = resolve(vt.Study.load(packaged("heart_disease.toml")).with_changes(**given), "fedavg", None)
    with tempfile.TemporaryDirectory(prefix="vitrail-liar-") as made, defended(way):
        place = Path(made)
        proofs, agreed = enrolled(place, told, names), Agreement.of(told, seed, len(names))
        ends: dict[str, Any] = {n: Site(n, f, agreed, place / f"{n}.home", True, proofs[n]) for n, f in frames.items()}
        if "second" in protect:
            ends[SECOND] = SecondServer(SECOND, agreed, place / f"{SECOND}.home", proofs[SECOND])
        way_, stops, run, began = Sites(ends, liars, by), 0, None, time.perf_counter()
        for _ in range(2):
            folder = Folder(place / "run", resume=(place / "run").exists(), about=".lock")
            try:
                call = SiteRequests(way_, agreed, list(frames), RUN, len(frames) // 2 + 1, 0.01)
                run = conduct(call, folder, resume=True)
                break
            except VitrailError as error:
                if "rounds in a row" not in str(error):
                    break
                stops, way_.away = stops + 1, liars
            finally:
                folder.close()
        seconds = time.perf_counter() - began
        halted = sum((place / f"{n}.home" / RUN / STOPPED).exists() for n in frames if n not in liars)
    unused = {d["round"] for event, d in way_.events if event == "round not used"}
    omitted = sum(event == "report not used" for event, _ in way_.events)
    out: dict[str, Any] = {"stopped": halted, "unused": len(unused), "omitted": omitted, "advice": stops}
    out |= {"seconds": seconds / ROUNDS, "bytes": way_.bytes / ROUNDS / len(frames)}
    if run is not None:
        scores = run.scores()
        scores = scores[~scores.site.isin(liars)].groupby("metric").value.mean()
        out |= {k: float(scores[k]) for k in ("balanced_accuracy", "log_loss")}
    return out


def one_large(seed: int) -> tuple[vt.Study, dict[str, Any]]:
    """GUSTO's largest region with all its patients, and nine others with 100 each."""
    told, frames = world_of("gusto", seed, most=10**6)
    whole = next(iter(frames))
    few = {n: f if n == whole else f.sample(100, random_state=seed).reset_index(drop=True) for n, f in frames.items()}
    return told, few


def lengths(world: str, seed: int) -> dict[str, Any]:
    told, frames = one_large(seed) if world == LARGE else world_of(world, seed)
    told, method = told.with_changes(training={"rounds": ROUNDS}), methods.build("fedavg")
    rows = training_rows(prepare(frames, told, seed), told, method, "cpu")
    engine = Engine(build_task(told, method, seed), method, rows, training_of(told), seed, keep_reports=True)
    path = []
    for _ in engine.run():
        path.append(lengths_of(engine.stages[0].exchanges[0], engine.reports).numpy())
    size = np.array(path)  # [round, site]
    out: dict[str, Any] = {"reports": size.size, "rounds": len(size)}
    for k in TIMES:
        out[f"honest {k}"] = int((size > k * np.median(size, axis=1, keepdims=True)).sum())
        for by in (1, 2, 5, 20):
            caught = 0
            for i in range(size.shape[1]):
                lied = size.copy()
                lied[:, i] *= by
                caught += int((lied[:, i] > k * np.median(lied, axis=1)).sum())
            out[f"caught {k} {by}"] = caught
    return out


def cost(sites: int) -> dict[str, Any]:
    """Of one round, at one server."""
    told, _ = resolve(vt.Study.load(packaged("heart_disease.toml")), "fedavg", None)
    start = Agreement.of(told, 1, 4).task.start
    d = sum(v.numel() for v in start.values())
    rng = np.random.default_rng(1)
    halves = [two_server_protocol.shared(0.01 * rng.standard_normal(d), CLIP) for _ in range(sites)]
    servers = [
        two_server_protocol.ShareServer(i == 0, CLIP, deck) for i, deck in enumerate(two_server_protocol.deal(sites, d))
    ]
    for i, pair in enumerate(halves):
        for server, half in zip(servers, pair, strict=True):
            server.take(i, half)
    present, lots = list(range(sites)), (b"1" * 16, b"2" * 16)
    one, other = (server.blinded(present) for server in servers)

    def milliseconds(work: Callable[[], Any]) -> float:
        times = []
        for _ in range(50):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return 1000 * float(np.median(times))

    mine = servers[0].products(present, one, other)
    theirs = servers[1].products(present, other, one)
    gram, fine = two_server_protocol.squares(mine, theirs, CLIP), np.ones(sites, bool)
    return {
        "numbers": d,
        "all products": milliseconds(lambda: servers[0].products(present, one, other)),
        "lengths alone": milliseconds(lambda: _own_products(servers[0], one + other, sites)),
        "signs": milliseconds(lambda: servers[0].tested(present, lots)),
        "bound": milliseconds(lambda: krum.within_length(gram, fine, CLIP)),
        "opened": 8 * d * sites,
        "told": 8 * sites * sites,
        "told alone": 8 * sites,
    }


def _own_products(server: Any, e: Any, sites: int) -> Any:
    """What a bound on lengths would need if no distances were wanted: <x_i, x_i> alone."""
    a = server.deck.a
    return np.array([server.deck.products[i, i] + np.uint64(2) * (e[i] @ a[i]) + e[i] @ e[i] for i in range(sites)])


STAGES = ("cost", "lengths", "study")


def wanted(stage: str, seeds: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    if stage == "cost":
        for sites in (4, 16):
            yield f"cost|{sites}", lambda n=sites: cost(n)
    elif stage == "lengths":
        for world in (*WORLDS, LARGE):
            for seed in range(1, 1 + seeds):
                try:
                    world_of(world.split(",")[0], seed)
                except VitrailError:
                    continue
                yield f"lengths|{world}|{seed}", lambda w=world, s=seed: lengths(w, s)
    else:
        for seed in range(1, 1 + seeds):
            for by in FACTORS:
                for way in WAYS:
                    yield f"study|{way}|{by}|{seed}", lambda w=way, b=by, s=seed: study(w, float(b), s)


def report(cases: Cases) -> str:
    out = ["# One site multiplies its change", "", "Printed by `benchmarks/attacks/attack_liar.py`.", "", *_words(), ""]
    seeds = sorted({k.rpartition("|")[2] for k in cases if k.startswith("study|")})
    whole = [s for s in seeds if all(f"study|{way}|{by}|{s}" in cases for way in WAYS for by in FACTORS)]
    seeds = whole or seeds
    out += [
        "## The study",
        "",
        "Seeds of which all cases were run. With so few, 0.03 in balanced accuracy says nothing.",
    ]
    out += ["The machine was shared with other work: seconds are rough, bytes are exact.", ""]
    out += [*_study(cases, seeds), ""]
    out += ["## A bound on lengths, by two servers", "", *_lengths(cases), "", *_cost(cases), "", *_proofs(cases)]
    return "\n".join(out) + "\n"


def _words() -> list[str]:
    return [line.rstrip() for line in str(__doc__).strip().splitlines()]


def _study(cases: Cases, seeds: list[str]) -> list[str]:
    out = [
        "| total | factor | runs | balanced accuracy | log loss | honest sites that stopped | rounds not used "
        "| reports left out | stopped, advice followed | seconds a round | bytes a site and round |",
        "| --- " * 2 + "| ---: " * 9 + "|",
    ]
    for way in WAYS:
        for by in FACTORS:
            found = [cases[key] for s in seeds if (key := f"study|{way}|{by}|{s}") in cases]
            if not found:
                continue
            ended = [c for c in found if "log_loss" in c]
            means = [float(np.mean([c[k] for c in ended])) if ended else 0.0 for k in ("balanced_accuracy", "log_loss")]
            scores = [f"{v:.3f}" if ended else "no model" for v in means]
            if len(ended) < len(found) and ended:
                scores[0] += f" ({len(found) - len(ended)} of {len(found)} without a model)"
            counts = [f"{np.mean([c[k] for c in found]):.1f}" for k in ("stopped", "unused", "omitted")]
            counts.append(f"{sum(c['advice'] for c in found)} of {len(found)}")
            last = [f"{np.median([c['seconds'] for c in found]):.2f}", f"{np.mean([c['bytes'] for c in found]):,.0f}"]
            shown = "none lies" if by == 1 else f"x {by}"
            out.append(f"| {way} | {' | '.join([shown, str(len(found)), *scores, *counts, *last])} |")
    return out


def _lengths(cases: Cases) -> list[str]:
    out = [
        "| federation | bound, times the median | honest reports refused | caught: x 1 | x 2 | x 5 | x 20 |",
        "| --- " + "| ---: " * 6 + "|",
    ]
    for world in (*WORLDS, LARGE):
        found = [v for k, v in cases.items() if k.startswith(f"lengths|{world}|")]
        for k in TIMES if found else ():
            n = sum(c["reports"] for c in found)
            wrong = sum(c[f"honest {k}"] for c in found)
            caught = [f"{sum(c[f'caught {k} {by}'] for c in found) / n:.2f}" for by in (1, 2, 5, 20)]
            out.append(f"| {world} | {k} | {wrong} of {n} | {' | '.join(caught)} |")
    return out


def _cost(cases: Cases) -> list[str]:
    out = [
        "| sites | numbers of a change | all inner products, ms | lengths alone, ms | sums with signs, ms "
        "| the bound, ms | opened by either server, bytes | inner products told, bytes | lengths alone, bytes |",
        "| ---: " * 9 + "|",
    ]
    for key, c in cases.items():
        if key.startswith("cost|"):
            times = [f"{c[k]:.3f}" for k in ("all products", "lengths alone", "signs", "bound")]
            sizes = [f"{c[k]:,}" for k in ("opened", "told", "told alone")]
            out.append(f"| {key.split('|')[1]} | {c['numbers']:,} | {' | '.join(times + sizes)} |")
    return out


def _proofs(cases: Cases) -> list[str]:
    """An estimate, not measured here."""
    d = next((c["numbers"] for k, c in cases.items() if k.startswith("cost|")), 0)
    padded = 1 << (d - 1).bit_length() if d else 0
    bits = 8
    size = 32 * (2 * (bits * padded).bit_length() - 2 + 9) if d else 0
    text = f"""## One server and a proof: an estimate, not measured

Under one masked sum nobody can check a length without a proof: whoever could compute it from what crosses could read
the report. A zero-knowledge proof that each number lies in a range (Bulletproofs, Bünz et al. 2018) needs a commitment
of 32 bytes for each number and one aggregated proof of 2 log2(bits x numbers) + 9 elements of 32 bytes. A public run
of the library dalek-bulletproofs on one core made an 8-bit proof in 3.7 ms for one number and 14.3 ms for four, so
about 3.6 ms for each number (64 bits: about 25 ms).

For {d:,} numbers of {bits} bits: {32 * d:,} bytes of commitments and {size:,} of proof in each report (a masked
report has {8 * d:,}), and about {3.6 * d / 1000:.1f} seconds of one core at each site and round. For 100,000 numbers:
3.2 MB and about {3.6 * 100_000 / 60_000:.0f} minutes. Published systems do better: RiseFL (arXiv 2311.15310) checks
random projections and reports a client 53 times as fast as RoFL's; PINE (an IETF draft) bounds the length of shared
vectors with two servers, as is done here. Ours costs nothing beyond what two servers open anyway, and needs the second
server."""
    return text.splitlines()


if __name__ == "__main__":
    run_cases("attack_liar", __doc__, STAGES, 3, wanted, report)
