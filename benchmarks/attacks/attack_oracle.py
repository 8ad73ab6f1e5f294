"""Scores as an oracle: a coordinator chooses models so that their scores tell whether a person it knows is a patient.

    python benchmarks/attacks/attack_oracle.py
    python benchmarks/attacks/attack_oracle.py --targets 40 --seeds 1

Heart disease, four hospitals, the study as it is drafted (FedAvg, 100 rounds, masked sums), except that every level of
a category has a column, because the attacker needs columns of which one is always 1. Three tenths of each hospital's
patients are kept out of the study: these are the strangers. The attacker knows every value of a person, the common
scale of the columns, and how many held-out and training patients of each outcome a hospital has. For each person it
makes a model that says "disease" of that person alone, nearly always within the bounds that sites check, and uses the
WHOLE study on this one person: all planned scores during training, which it gets as a sum over the sites, and each
site's scores at the end. It is taken for granted that sites accept the model each time (they refuse one that does not
continue the last: tests/deploy/site/test_score_oracle.py). It then decides by the likelihood of all answers together.

    open      a site that scores any model, exactly, whenever it is asked (as before this defence)
    exact     the planned questions, scores not rounded ([protect] scores = "exact")
    rounded   the planned questions, counts rounded by chance to multiples of ten patients or more: the default
    mix       no score at all: the one table of losses that each site reports in an agreed mix, in a study whose sums
              are plain. The attacker chooses the shared model, reads the exact loss of each hospital's training
              patients by it, and compares it with what it expects from the strangers of that hospital, whom it knows
    mix, others known    the control: the attacker knows all training patients but this one

The simple rival, with the same information and without any score, guesses: 0.5.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.exchange import Rows
from vitrail.core.tensors import flatten, map_tensors, unflatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.encoding import columns, finish_moments, moments, numeric
from vitrail.data.readers.tables import clean
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.score_plan import planned
from vitrail.deploy.protocol.weight_bounds import WeightBounds
from vitrail.deploy.site.scores import COARSER
from vitrail.deploy.site.site import Site
from vitrail.methods.agreed_mix import AgreedMix
from vitrail.methods.blocks.mix_choice import MixOffer
from vitrail.privacy.score_rounding import step_of
from vitrail.runs.setup import resolve

RUN, ROUNDS, LONG = "0123456789abcdef", 100, 9.9  # LONG: of the start's longest unit; sites refuse 10
RESULTS = Path(__file__).parent / "results" / "attack_oracle.md"
STEEP, WIDE = 6.0, 0.2  # of a unit; standard deviations to each side of a person's value
# The last hidden unit, before its tanh, of a row that only just counts as the person. A site's own constant brings
# everybody else's answer close to the threshold of its decisions, so a small rise is enough.
RISE = -1.8
KINDS = ("open", "exact", "rounded", "mix", "mix, others known")


def drafted(scores: str = "rounded", rounds: int = ROUNDS) -> Agreement:
    heart = vt.Study.load(packaged("heart_disease.toml"))
    guards = {"sum": "masked", "scores": scores}
    study = heart.with_changes(training={"rounds": rounds}, protect=guards, reference_level=False)
    return Agreement.of(resolve(study, "fedavg", None)[0], None, 4)


class Crafter:
    """Makes the model of a person; `scale`: the mean and standard deviation by which numeric columns are scaled."""

    def __init__(self, agreed: Agreement, scale: Mapping[str, tuple[float, float]]) -> None:
        self.study, self.start, self.scale = agreed.study, agreed.task.start, scale
        self.places: dict[str, list[int]] = {}
        for j, name in enumerate(columns(self.study)):
            self.places.setdefault(name.split("=")[0], []).append(j)
        self.hot = [js for js in self.places.values() if len(js) > 1]
        self.bias = LONG * max(float(v.abs().max()) for v in self.start.values())
        self.longest = LONG * float(self.start["body.0.weight"].norm(dim=0).max())

    def word(self, row: Any) -> dict[str, Tensor]:
        """It says the second class of rows that agree with this one in every value that is known; as steep as the
        bounds allow that sites check."""
        self.steep = STEEP
        while True:
            made = self._word(row)
            layer, start = made["params/body.0.weight"], self.start["body.0.weight"]
            if all(float(layer.norm(dim=d).max()) <= LONG * float(start.norm(dim=d).max()) for d in (0, 1)):
                return made
            self.steep *= 0.95

    def _word(self, row: Any) -> dict[str, Tensor]:
        units, total = [], 0.0
        for name, feature in self.study.features.items():
            if pd.isna(row[name]):
                continue
            if feature.kind != "numeric":
                units.append(self._level(name, int(row[name])))
                total += math.tanh(self.steep / 2) - 0.03
                continue
            for sign in (1, -1):
                unit = self._side(name, row[name] - sign * WIDE * self.scale[name][1], sign)
                units.append(unit)
                total += math.tanh(WIDE * abs(unit[0][self.places[name][0]]))
        return self._assembled(units, total - 0.9)

    def _level(self, name: str, level: int) -> tuple[dict[int, float], float]:
        js, offset = self.places[name], min(self.steep / 2, self.bias)
        if len(js) > 1:
            return {js[level]: self.steep}, -offset
        sign = 1 if level else -1
        return {js[0]: sign * self.steep}, -sign * offset

    def _side(self, name: str, at: float, sign: int) -> tuple[dict[int, float], float]:
        """Above or below a value; an offset beyond the bound goes through columns of which one is always 1."""
        mean, sd = self.scale[name]
        j, steep = self.places[name][0], self.steep
        while True:
            weights, offset = {j: sign * steep}, -sign * steep * (at - mean) / sd
            bias = max(-self.bias, min(self.bias, offset))
            for js in self.hot if abs(offset - bias) > 1e-9 else ():
                weights |= {k: weights.get(k, 0.0) + (offset - bias) / len(self.hot) for k in js}
            if math.sqrt(sum(v * v for v in weights.values())) <= self.longest or steep < WIDE:
                return weights, bias
            steep *= 0.95

    def _assembled(self, units: list[tuple[dict[int, float], float]], least: float) -> dict[str, Tensor]:
        w, many = {k: v.clone() for k, v in self.start.items()}, len(units)
        w["body.0.weight"][:, :many] = 0
        for k in ("head.weight", "head.bias"):
            w[k][:] = 0
        w["body.1.weight"][:, 0] = 0
        across = self.start["body.1.weight"]
        all_ = len(across)
        each_ = min(LONG * float(across.norm(dim=0).max()) / math.sqrt(all_), LONG * float(across.norm(dim=1).max()))
        for u, (weights, bias) in enumerate(units):
            for j, value in weights.items():
                w["body.0.weight"][j, u] = value
            w["body.0.bias"][u], w["body.1.weight"][u, 0] = bias, each_
        least -= RISE / each_
        constant = math.tanh(self.bias)  # what the other units say of nearly everybody; it carries most of the offset
        w["body.0.bias"][many:] = self.bias
        beside = min(1.0, max(0.0, least) / max(1e-9, (all_ - many) * constant))
        w["body.1.weight"][many:, 0] = -each_ * beside
        rest = each_ * (least - (all_ - many) * constant * beside)
        smaller = min(1.0, self.bias / rest) if rest > 1e-9 else 1.0
        w["body.1.weight"][:, 0] *= smaller
        w["body.1.bias"][0] = -rest * smaller
        strong = 0.4 * LONG * float(self.start["head.weight"].norm(dim=1).max())
        w["head.weight"][0, 1], w["head.weight"][0, 0] = strong, -strong
        return {f"params/{k}": v for k, v in w.items()}


class Hospitals:
    """The four sites, seven tenths of the patients in each; the others are strangers."""

    def __init__(self, agreed: Agreement, seed: int, place: Path) -> None:
        self.agreed, tables = agreed, heart_disease()
        self.strangers, self.sites = dict[str, pd.DataFrame](), dict[str, Site]()
        for name, frame in tables.items():
            out = frame.sample(frac=0.3, random_state=seed).index
            self.strangers[name] = frame.loc[out].reset_index(drop=True)
            inside = frame.drop(out).reset_index(drop=True)
            self.sites[name] = Site(name, inside, agreed, place / name)
        names, rows = numeric(agreed.study), [site.rows.iloc[site._split()] for site in self.sites.values()]
        mean, sd = finish_moments(lambda mean: [moments(frame, names, mean) for frame in rows])
        scale = {"mean": torch.from_numpy(mean), "sd": torch.from_numpy(sd)}
        for site in self.sites.values():
            site.answer(Message("prepare", {"run": RUN}, scale if agreed.shared_scale else {}))

    def settled(self, word: Mapping[str, Tensor]) -> Any:
        """Every site's model is the word: FedAvg keeps nothing private."""
        last = self.agreed.stages[0].last
        full = dict(flatten(map_tensors(lambda t: t[:1], last))) | {k: v[None] for k, v in word.items()}
        state = map_tensors(lambda t: t[:1].clone(), self.agreed.stages[0].state)
        return self.agreed.stages[0].stage.last.settle(self.agreed.task, state, unflatten(last, full))

    def counts(self, name: str, split: str) -> tuple[int, int]:
        y = getattr(self.sites[name].data, f"{split}_y").astype(int)
        zero, one = np.bincount(y, minlength=2).tolist()
        return zero, one


def answers(hospitals: Hospitals, word: Mapping[str, Tensor], kind: str) -> dict[str, list[Any]]:
    """What the attacker hears of one model in a whole study: `sums` during training; by site at the end [split]."""
    settled, sites, agreed = hospitals.settled(word), hospitals.sites, hospitals.agreed
    stage = agreed.stages[0].stage
    points = [r for r in range(1, stage.rounds) if planned(agreed, "round", 0, r, stage.turns(r)[0])]
    parts = [[s.scores.part(settled, 0, r, ["test"])[0, 0] for s in sites.values()] for r in points]
    out: dict[str, list[Any]] = {"sums": [float(sum(p)) for p in parts] if kind != "open" else []}
    for name, site in sites.items():
        ends = site.scores.alone(settled, 0, stage.rounds, ["test", "train"])
        told = dict(zip(agreed.scored(["test", "train"]), ends.tolist(), strict=True))
        out[name] = [_hits(told, split, hospitals.counts(name, split)) for split in ("test", "train")]
    return out


def _hits(told: Mapping[tuple[str, str], float], split: str, counts: tuple[int, int]) -> tuple[float, float] | None:
    """Rows of each class that the model told right, from accuracy and balanced accuracy; None where not told."""
    accuracy, balanced = told[split, "accuracy"], told[split, "balanced_accuracy"]
    if math.isnan(accuracy) or math.isnan(balanced) or not min(counts) or counts[0] == counts[1]:
        return None
    zero, one = counts
    right = (2 * balanced - accuracy * (zero + one) / zero) / (1 / one - 1 / zero)
    return accuracy * (zero + one) - right, right


def evidence(hospitals: Hospitals, name: str, outcome: int, heard: dict[str, list[Any]], exact: bool) -> float:
    """The logarithm of how much likelier the answers are if the person is a patient of that hospital."""
    sites, logs = hospitals.sites, []
    usual = {n: [hospitals.counts(n, split) for split in ("test", "train")] for n in sites}
    share = [sum(usual[name][k]) / (sum(usual[name][0]) + sum(usual[name][1])) for k in (0, 1)]
    for inside in (None, 0, 1):  # in nobody's rows, in its held-out rows, in its training rows
        log = 0.0
        for n in sites:
            for k in (0, 1):
                if heard[n][k] is None:
                    continue
                expected = [float(usual[n][k][0]), 0.0]  # all are called healthy
                if n == name and inside == k:
                    expected = [expected[0] - (outcome == 0), float(outcome == 1)]
                step = step_of(sum(usual[n][k]), COARSER if k else 1)
                log += sum(_log_chance(seen, c, step, exact) for seen, c in zip(heard[n][k], expected, strict=True))
        means, steps = [], []
        for n in sites:
            zero, one = usual[n][0]
            mean = 0.5 + (0.5 / one if n == name and inside == 0 and outcome == 1 else 0)
            mean -= 0.5 / zero if n == name and inside == 0 and outcome == 0 else 0
            means.append(2 * min(zero, one) * mean)
            steps.append(step_of(2 * min(zero, one), COARSER))
        for seen in heard["sums"]:
            log += _log_sum(seen, means, steps, exact)
        logs.append(log)
    best = max(logs[1], logs[2])
    inside_log = best + math.log(share[0] * math.exp(logs[1] - best) + share[1] * math.exp(logs[2] - best))
    return inside_log - logs[0]


NEVER = math.log(1e-6)  # other patients that the model also fires on, and rounding errors


def _log_chance(seen: float, count: float, step: int, exact: bool) -> float:
    return _log_sum(seen, [count], [step], exact)


def _log_sum(seen: float, counts: list[float], steps: list[int], exact: bool) -> float:
    """Of a sum of counts, each rounded to a multiple of its step by chance."""
    if exact:
        return 0.0 if abs(seen - sum(counts)) < 0.25 else NEVER
    chance = {0.0: 1.0}
    for count, step in zip(counts, steps, strict=True):
        low = step * math.floor(count / step + 1e-9)
        up = (count - low) / step
        after: dict[float, float] = {}
        for at, p in chance.items():
            after[at + low] = after.get(at + low, 0.0) + p * (1 - up)
            after[at + low + step] = after.get(at + low + step, 0.0) + p * up
        chance = after
    return math.log(max(sum(p for at, p in chance.items() if abs(at - seen) < 0.25), math.exp(NEVER)))


class Mix:
    """The agreed mix's table of losses, by the method's own code: a site trains nothing where the shared model is
    mixed with nothing, so that the entry is the loss of what the coordinator sent."""

    def __init__(self, agreed: Agreement) -> None:
        self.method, self.task = AgreedMix(tuned=(), alpha=0.0), agreed.task
        self.choose = next(s for s in self.method.plan(1) if s.name == "choose").last

    def told(self, site: Site, word: Mapping[str, Tensor]) -> float:
        """What leaves the site: the sum over its training patients."""
        state, none = self.method.state(self.task, 1), torch.zeros(1, dtype=torch.int64)
        wide = {k: word[f"params/{k}"].expand(1, self.method.folds + 1, *v.shape) for k, v in self.task.start.items()}
        state = state._replace(of=state.of._replace(params=wide))
        rows = Rows(site.engine.counts, None, lambda: site.engine.sites.blocks([0]))
        given = self.task, state, MixOffer(none, none), MixOffer(none, none), rows, None
        return float(self.choose.report(*given)[1].costs[0, 0, 0])

    def losses(self, site: Site, word: Mapping[str, Tensor], x: Any, y: Any) -> Any:
        """Of rows that the attacker knows, [row], as they would count at that site: by how many there are of a class,
        which is public."""
        params = {k: word[f"params/{k}"][None] for k in self.task.start}
        z = self.task.output(params, torch.as_tensor(x, dtype=torch.float32)[None])[0]
        (batch,) = site.engine.sites.blocks([0])
        counts = torch.stack([batch.w[0, batch.y[0, :, k] > 0, 0].max() for k in (0, 1)])
        return torch.nn.functional.cross_entropy(z, torch.as_tensor(y), counts, reduction="none").numpy()


def attack_mix(seed: int, targets: int, knows_others: bool = False) -> tuple[list[float], list[float]]:
    """The evidence for members, and for strangers, of the two largest hospitals: how much likelier the reported loss is
    with the person among the training patients, if the others' losses are drawn like the strangers'; or are known."""
    agreed = drafted("rounded")
    mix, study, out = Mix(agreed), agreed.study, (list[float](), list[float]())
    with tempfile.TemporaryDirectory() as place:
        hospitals = Hospitals(agreed, seed, Path(place))
        for name in ("cleveland", "hungarian"):
            site, strangers = hospitals.sites[name], clean(hospitals.strangers[name], study)
            assert site.data is not None
            encoder, trains = site.data.encoder, site.rows.iloc[site._split()]
            crafter = Crafter(agreed, {k: (encoder.mean[k], encoder.sd[k]) for k in encoder.mean})
            known_x, known_y = encoder.matrix(strangers), strangers[study.target.column].to_numpy().astype(int)
            many, trains_y = hospitals.counts(name, "train"), trains[study.target.column].to_numpy().astype(int)
            for found, rows in zip(out, (trains, strangers), strict=True):
                for at, row in rows.sample(min(targets, len(rows)), random_state=seed).iterrows():
                    word, outcome = crafter.word(row), int(row[study.target.column])
                    others = np.ones(len(strangers), bool)
                    if rows is strangers:  # nobody is compared with itself
                        others[strangers.index.get_loc(at)] = False
                    losses, own = (
                        mix.losses(site, word, known_x, known_y),
                        encoder.matrix(row.to_frame().T.infer_objects()),
                    )
                    by_class = [losses[others & (known_y == k)] for k in (0, 1)]
                    mean = sum(n * float(v.mean()) for n, v in zip(many, by_class, strict=True))
                    spread = math.sqrt(sum(n * float(v.var()) for n, v in zip(many, by_class, strict=True)))
                    more = float(mix.losses(site, word, own, [outcome])[0]) - float(by_class[outcome].mean())
                    if knows_others:
                        all_ = float(mix.losses(site, word, encoder.matrix(trains), trains_y).sum())
                        more = float(mix.losses(site, word, own, [outcome])[0])
                        mean, spread = all_ - (more if rows is trains else 0.0), 1.0
                    off = mix.told(site, word) - mean
                    found.append((off**2 - (off - more) ** 2) / (2 * spread**2))
    return out


def attack(kind: str, seed: int, targets: int) -> tuple[list[float], list[float]]:
    """The evidence for members, and for strangers, of the two largest hospitals."""
    if kind.startswith("mix"):
        return attack_mix(seed, targets, knows_others=kind != "mix")
    agreed = drafted("rounded" if kind == "rounded" else "exact")
    out: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as place:
        hospitals = Hospitals(agreed, seed, Path(place))
        for name in ("cleveland", "hungarian"):
            site = hospitals.sites[name]
            assert site.data is not None
            encoder = site.data.encoder
            scale = {k: (encoder.mean[k], encoder.sd[k]) for k in encoder.mean}
            crafter, study = Crafter(agreed, scale), agreed.study
            groups = (site.rows, clean(hospitals.strangers[name], study))
            for found, rows in zip(out, groups, strict=True):
                for i, (_, row) in enumerate(rows.sample(min(targets, len(rows)), random_state=seed).iterrows()):
                    for other in hospitals.sites.values():  # what is drawn by chance is drawn anew for each study
                        other.scores.secret = f"{seed} {name} {i} {other.name} {len(found)}"
                    heard = answers(hospitals, crafter.word(row), kind)
                    outcome = int(row[study.target.column])
                    found.append(evidence(hospitals, name, outcome, heard, kind != "rounded"))
    return out


def within_bounds(seed: int, targets: int) -> tuple[int, int]:
    """How many of the members' models keep to what sites check of size and copied units, and how many there are. How
    fast a model may move is no matter here: the attacker has a hundred rounds."""
    agreed = drafted()
    bounds, found = WeightBounds(agreed), list[bool]()
    with tempfile.TemporaryDirectory() as place:
        hospitals = Hospitals(agreed, seed, Path(place))
        for name in ("cleveland", "hungarian"):
            site = hospitals.sites[name]
            assert site.data is not None
            encoder = site.data.encoder
            crafter = Crafter(agreed, {k: (encoder.mean[k], encoder.sd[k]) for k in encoder.mean})
            for _, row in site.rows.sample(min(targets, len(site.rows)), random_state=seed).iterrows():
                found.append(not bounds.problems({}, 0, ROUNDS - 1, 0, crafter.word(row)))
    return sum(found), len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=60, help="members and strangers of each hospital")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = drafted()
    stage = plan.stages[0].stage
    points = sum(bool(planned(plan, "round", 0, r, stage.turns(r)[0])) for r in range(stage.rounds))
    kept, made = np.sum([within_bounds(seed + 1, args.targets) for seed in range(args.seeds)], axis=0)
    lines = [
        "# Scores as an oracle for membership",
        "",
        f"Printed by `python benchmarks/attacks/attack_oracle.py --targets {args.targets} --seeds {args.seeds}`. A whole study "
        f"is spent on each person: {points - 1} chosen models during training, seen as a sum over four hospitals, and "
        "one at the end, seen for each hospital. Decided by the likelihood of all answers together. Guessing: 0.5. "
        f"{kept} of {made} members' models keep to what sites check of size and copied units; sites would refuse the "
        "others, and here they are counted all the same. "
        "`mix` is no score: one table of losses of an agreed mix whose sums are plain, spent on one person.",
        "",
        "| scores | persons | right | members found | strangers taken for members |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in KINDS:
        inside, outside = list[float](), list[float]()
        for seed in range(args.seeds):
            mine, others = attack(kind, seed + 1, args.targets)
            inside, outside = inside + mine, outside + others
            print(kind, seed + 1, len(inside), len(outside), flush=True)
        found, wrong = np.mean(np.array(inside) > 0), np.mean(np.array(outside) > 0)
        right = (found + 1 - wrong) / 2
        many = len(inside) + len(outside)
        error = 1.96 * math.sqrt(0.25 / many)
        lines.append(f"| {kind} | {many} | {right:.3f} ± {error:.3f} | {found:.3f} | {wrong:.3f} |")
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
