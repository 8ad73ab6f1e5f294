"""A coordinator that keeps to every agreed shape and sends weights made for reading rows: what it gets, and how often
an honest one is taken for it.

    python benchmarks/attacks/crafted.py                       # resumes; finished cases lie in --cache
    VITRAIL_DATA=... python benchmarks/attacks/crafted.py      # the same, and honest training on GUSTO, kept apart
    python benchmarks/attacks/crafted.py --report              # the tables from what is there

Heart disease, the largest hospital, FedAvg without dropout, 40 rounds. The coordinator asks the site's own code
(deploy/site/site.py). A row counts as read when one direction of the first layer's report, divided by the change of its
offset, is within 0.1 of all its cells (standardised). `checks` off: the site answers everything; on:
deploy/site/safeguards.py.

    honest   the rounds of an honest study: the same reading of its reports
    trap     from the first round, 128 copies of one steep unit with spread offsets, another direction in each round
    jump     the agreed first word, then the trap
    drift    towards the trap, no unit further in a round than is allowed
    within   at the edge of all bounds: units as long as allowed, no two alike, moving as far as allowed

Bounds were set on heart; false alarms there and on GUSTO (ten regions, also a linear model, ten times the rate, Adam).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.errors import RunStopped, VitrailError
from vitrail.core.tensors import flatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol import weight_bounds
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN, ROUNDS, SITE, NEAR = "0123456789abcdef", 40, "cleveland", 0.1
ATTACKS = ("honest", "trap", "jump", "drift", "within")
SEEDS = (1, 2, 3)
RESULTS = Path(__file__).parent / "results" / "crafted.md"
LAYER = "body.0"  # of the MLP: the one that sees rows; [cell, unit]


class Trusting:
    """A site without the checks."""

    def __init__(self, agreed: Agreement, home: Path) -> None: ...
    def told(self, *_: Any) -> None: ...
    def heeded(self, *_: Any) -> None: ...
    def continues(self, *_: Any) -> bool:
        return True

    def leaves(self, *_: Any) -> None: ...


class Here:
    """The way to sites in this process."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites, self.alarms = sites, dict[str, str]()

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        answers, trouble = {}, {}
        for name, question in questions.items():
            try:
                answers[name] = self.sites[name].answer(question)
            except VitrailError as error:
                trouble[name] = error.title
                if isinstance(error, RunStopped):
                    self.alarms[name] = str(error.problems[0].what)
        return Responses(answers, trouble)

    def present(self) -> set[str]:
        return set(self.sites)

    def log(self, event: str, **details: Any) -> None: ...


def honest(study: vt.Study, tables: dict[str, Any], site: str = "") -> tuple[dict[str, str], list[dict[str, Tensor]]]:
    """Sites that raised an alarm in an honest study, and what `site` reported in each round."""
    agreed = Agreement.of(study, None, len(tables))
    with tempfile.TemporaryDirectory() as place:
        sites = {n: Site(n, frame, agreed, Path(place) / n) for n, frame in tables.items()}
        way, folder, said = Here(sites), Folder(Path(place) / "run", resume=False), list[dict[str, Tensor]]()
        if site:
            answer = sites[site].answer

            def heard(question: Message) -> Message:
                told = answer(question)
                said.extend([told.tensors] if told.kind == "round" else [])
                return told

            sites[site].answer = heard  # type: ignore[method-assign]
        try:
            conduct(SiteRequests(way, agreed, list(sites), RUN, 1, 60.0), folder, resume=False)
        finally:
            folder.close()
    return way.alarms, said


def trap(agreed: Agreement, generator: torch.Generator) -> dict[str, Tensor]:
    """Steep units with one direction and spread offsets; what comes after them lets each one's slope through."""
    word = {k: v[0].clone() for k, v in flatten(agreed.stages[0].turns[0].down)}
    for name, tensor in word.items():
        part = name.split("/")[-1]
        if part == f"{LAYER}.weight":
            way = torch.randn(len(tensor), generator=generator)
            tensor[:] = (STEEP * way / way.norm())[:, None]
        elif part == f"{LAYER}.bias":
            tensor[:] = STEEP * 2 * (2 * torch.rand(len(tensor), generator=generator) - 1)
        elif part == "body.1.weight":
            tensor[:] = 0.3 * torch.randn(tensor.shape, generator=generator)
        elif part == "head.weight":
            tensor *= 50  # a small change of large weights is lost in their last digits: slopes are made large too
    return word


STEEP = 150.0


def bounded(word: dict[str, Tensor], start: dict[str, Tensor], by: float) -> dict[str, Tensor]:
    """Scaled down, tensor by tensor, until no unit is longer than `by` times the start's longest."""
    largest, out = max(float(v.abs().max()) for v in start.values()), {}
    for name, tensor in word.items():
        base, scale = start[name.split("/")[-1]], 1.0
        if tensor.dim() == 2:
            for axis in (0, 1):
                scale = min(scale, by * float(base.norm(dim=axis).max() / tensor.norm(dim=axis).max().clamp(min=1e-9)))
            out[name] = tensor * scale
        else:
            out[name] = tensor.clamp(-by * largest, by * largest)
    return out


def words(attack: str, agreed: Agreement, seed: int) -> Iterator[dict[str, Tensor]]:
    """What the coordinator tells, round by round."""
    generator, start = torch.Generator().manual_seed(seed), agreed.task.start
    told = {k: v[0].clone() for k, v in flatten(agreed.stages[0].turns[0].down)}
    for r in range(ROUNDS):
        if attack == "trap" or (attack == "jump" and r):
            told = trap(agreed, generator)
        elif attack in ("drift", "within") and r:
            goal = trap(agreed, generator if attack == "within" else torch.Generator().manual_seed(seed))
            if attack == "within":
                for name in goal:
                    if name.split("/")[-1].startswith(LAYER):
                        goal[name] = STEEP * torch.randn(goal[name].shape, generator=generator)
            goal = bounded(goal, start, 0.99 * weight_bounds.CAP)
            step = bounded({k: goal[k] - told[k] for k in told}, start, 0.99 * weight_bounds.STEP)
            told = bounded({k: told[k] + step[k] for k in told}, start, 0.99 * weight_bounds.CAP)
        yield told


def read(report: dict[str, Tensor], rows: Tensor) -> set[int]:
    """Which rows the coordinator reads off a report."""
    of = {k.split("/")[-1]: v for k, v in report.items()}
    guess = (of[f"{LAYER}.weight"] / of[f"{LAYER}.bias"]).T  # [unit, cell]
    off = (guess[:, None] - rows[None]).abs().amax(2)  # [unit, row]
    return set((off < NEAR).any(0).nonzero()[:, 0].tolist())


def heart(**changes: Any) -> vt.Study:
    return vt.Study.load(packaged("heart_disease.toml")).with_changes(screen={"ask": False}, **changes)


def attacked(attack: str, checks: bool, seed: int) -> dict[str, Any]:
    tables = heart_disease()
    study = resolve(heart(training={"rounds": ROUNDS}, network={"dropout": 0.0}), "fedavg", None)[0]
    agreed, found, why, asked = Agreement.of(study, None, len(tables)), set[int](), "", 0
    with tempfile.TemporaryDirectory() as place:
        site = Site(SITE, tables[SITE], agreed, Path(place))
        ask(site, "prepare", {}, {})
        if not checks:
            site.wary = Trusting(agreed, site.home)  # type: ignore[assignment]
        rows = site.engine.sites.x
        if attack == "honest":
            for report in honest(study, tables, SITE)[1]:
                found, asked = found | read(report, rows), asked + 1
        for r, word in enumerate(words(attack, agreed, seed) if attack != "honest" else ()):
            try:
                said = ask(site, "round", {"stage": 0, "round": r, "place": 0, "score": []}, word)
            except VitrailError as error:
                why = error.problems[0].what
                break
            found, asked = found | read(said.tensors, rows), asked + 1
    return {"read": len(found), "of": len(rows), "rounds": asked, "stopped": why}


def ask(site: Site, kind: str, said: dict[str, Any], told: dict[str, Tensor]) -> Message:
    return site.answer(Message(kind, {**said, "run": RUN}, told))


def gusto() -> tuple[vt.Study, dict[str, Any]]:
    frames = dict(sorted(vt.datasets.gusto().items(), key=lambda kv: -len(kv[1]))[:10])
    frames = {n: f.sample(min(len(f), 200), random_state=1).reset_index(drop=True) for n, f in frames.items()}
    return vt.Study.infer(frames, "day30", name="gusto").with_changes(screen={"ask": False}), frames


KINDS: dict[str, dict[str, Any]] = {
    "": {},
    "linear": {"network": {"kind": "linear"}},
    "ten times the rate": {"training": {"lr": 0.02}},
    "adam": {"training": {"optimiser": "adam", "lr": 0.002}},
}


def cases() -> Iterator[tuple[str, Any]]:
    for attack in ATTACKS:
        for checks in (False, True) if attack != "honest" else (True,):
            for seed in SEEDS if attack != "honest" else (1,):
                yield (
                    f"attack {attack} {'on' if checks else 'off'} {seed}",
                    lambda a=attack, c=checks, s=seed: attacked(a, c, s),
                )
    for name in [
        n for n, kind in vt.methods.TABLE.items() if not kind.catalogue.pools_rows and not kind.catalogue.required_net
    ]:
        yield f"honest heart {name}", lambda n=name: alarms(heart(training={"rounds": 100}), heart_disease(), n)
    try:
        study, frames = gusto()
    except VitrailError:
        return
    for kind, changes in KINDS.items():
        for name in ("fedavg", "ifedavg", "scaffold", "weight_erosion"):
            changed = study.with_changes(**{**changes, "training": {"rounds": 50, **changes.get("training", {})}})
            yield f"honest gusto {name} {kind}".strip(), lambda s=changed, n=name: alarms(s, frames, n)


def alarms(study: vt.Study, tables: dict[str, Any], method: str) -> dict[str, Any]:
    return {"alarms": honest(resolve(study, method, None)[0], tables)[0], "sites": len(tables)}


def report(known: dict[str, Any]) -> str:
    lines = ["# A coordinator that crafts its weights", "", "Made by `benchmarks/attacks/crafted.py --report`.", ""]
    lines += ["| coordinator | checks | rows read (by seed) | of | rounds answered | stopped by |", "| --- " * 6 + "|"]
    for attack in ATTACKS:
        for on in ("off", "on"):
            said = [v for k, v in known.items() if k.startswith(f"attack {attack} {on} ")]
            if said:
                got, asked = ", ".join(str(v["read"]) for v in said), ", ".join(str(v["rounds"]) for v in said)
                why = next((v["stopped"] for v in said if v["stopped"]), "")
                lines.append(f"| {attack} | {on} | {got} | {said[0]['of']} | {asked} | {why} |")
    lines += ["", "Honest studies, all sites, all rounds:", "", "| study | sites | alarms | what |", "| --- " * 4 + "|"]
    for key, v in known.items():
        if key.startswith("honest"):
            what = "; ".join(f"{site}: {why}" for site, why in v["alarms"].items())
            lines.append(f"| {key.removeprefix('honest ')} | {v['sites']} | {len(v['alarms'])} | {what} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("crafted.json"))
    parser.add_argument("--only", default="", help="cases whose name begins like this")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(given.cache.read_text()) if given.cache.exists() else {}
    for name, case in () if given.report else cases():
        if name not in known and name.startswith(given.only):
            known[name] = case()
            print(name, known[name], flush=True)
            given.cache.write_text(json.dumps(known))
    RESULTS.write_text(report(known)) if given.report else None


if __name__ == "__main__":
    main()
