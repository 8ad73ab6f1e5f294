"""What travelling models and their losses tell of the patients of a site ([transfer] in a study).

    python benchmarks/attacks/attack_transfer.py
    python benchmarks/attacks/attack_transfer.py --targets 10 --seeds 1

Heart disease, four hospitals, the study as it is drafted. Three tenths of each hospital's patients are kept out of the
study: these are the strangers.

1. A made model, at one hospital made of the two largest. A participant that works with the coordinator makes a model of one known person, signs it, and both
   read its loss at another hospital. The attacker knows every value of the person, the scale of the columns and how
   many training patients of each outcome there are. `strangers`: what it expects of the others it takes from the
   strangers of that hospital; `others known`: it knows the others' losses. It says whether the person is among the
   training patients.
2. The model itself. Whoever is sent the model that a hospital trained alone is shown a training patient and a stranger,
   and points to the one with the lower loss. Beside it the same with the shared model of FedAvg.
3. What rounding costs. How often the best site for a user is the same by rounded losses as by exact ones, and how often
   a hospital whose outcomes are exchanged ranks last; with the hospitals as they are, and with each patient ten times.
4. Honest models that sites would refuse to judge, since they lie outside the bounds of weights.
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
from attack_oracle import RUN, Crafter, drafted

import vitrail as vt
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.encoding import SiteData, prepare
from vitrail.data.readers.tables import clean
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.weight_bounds import WeightBounds
from vitrail.deploy.site.site import Site
from vitrail.deploy.transfer.coordinator import MARGIN
from vitrail.deploy.transfer.site import TransferSite
from vitrail.metrics.scores import Floats
from vitrail.privacy.score_rounding import LARGEST_LOSS
from vitrail.studies.folds import folds_of
from vitrail.studies.own_models import OwnModels, alone_study, loss_weights, mean_loss, model_losses, train_alone
from vitrail.studies.transfer import chosen

RESULTS = Path(__file__).parent / "results" / "attack_transfer.md"
POOLED = ("cleveland", "hungarian")  # one hospital, large enough that rounded losses leave
STRONGER = 1.7  # times the head of a model made for hits: as long as the bounds allow
DRAWS = 200  # of the chance by which losses are rounded


def agreement() -> Agreement:
    plain = drafted()
    study = plain.study.with_changes(transfer={"losses": "rounded"}, protect={"sum": "plain"}, standardise="local")
    return Agreement.of(study, None, 4)


def made_models(
    agreed: Agreement, seed: int, targets: int, kept: list[tuple[int, int]]
) -> dict[tuple[str, str], list[tuple[bool, float]]]:
    """By how losses leave and what the attacker knows: whether the person is a training patient, and how often the
    attacker says so."""
    out, tables = dict[tuple[str, str], list[tuple[bool, float]]](), heart_disease()
    frame = pd.concat([tables[name] for name in POOLED], ignore_index=True)
    held = frame.sample(frac=0.3, random_state=seed).index
    strangers = clean(frame.loc[held].reset_index(drop=True), agreed.study)
    with tempfile.TemporaryDirectory() as place:
        site = Site("large", frame.drop(held).reset_index(drop=True), agreed, Path(place))
        site.answer(Message("prepare", {"run": RUN}))
        victim, trains = TransferSite(site), site.rows.iloc[site.splits[site.name][0]]
        assert site.data is not None
        encoder = site.data.encoder
        crafter = Crafter(agreed, {k: (encoder.mean[k], encoder.sd[k]) for k in encoder.mean})
        kept.append(within_bounds(agreed, crafter, trains.sample(min(targets, len(trains)), random_state=seed)))
        for member, rows in ((True, trains), (False, strangers)):
            for i, (at, row) in enumerate(rows.sample(min(targets, len(rows)), random_state=seed).iterrows()):
                others = strangers if member else strangers.drop(index=at)
                for where, said in _evidence(victim, crafter, row, others, member, f"{seed} {member} {i}").items():
                    out.setdefault(where, []).append((member, said))
    return out


def _evidence(
    victim: TransferSite, crafter: Crafter, row: Any, strangers: pd.DataFrame, member: bool, about: str
) -> dict[tuple[str, str], float]:
    """How often the attacker says that the person is among the training patients, by (losses, known): where what leaves
    is nearer to what would leave with the person than without."""
    (user,), study, task = victim._data(), victim.study, victim.agreed.task
    word = {k.removeprefix("params/"): v[None] for k, v in crafter.word(row).items()}
    word["head.weight"] = word["head.weight"] * STRONGER
    encoder, column = user.encoder, study.target.column
    own = np.asarray(encoder.matrix(row.to_frame().T.infer_objects()), np.float32)
    known_x, known_y = np.asarray(encoder.matrix(strangers), np.float32), strangers[column].to_numpy()
    here = model_losses(study, task, word, user.train_x, user.train_y)
    weights, out = loss_weights(study, user), dict[tuple[str, str], float]()
    for form, most in (("exact", math.inf), ("rounded", LARGEST_LOSS)):
        losses = model_losses(study, task, word, known_x, known_y)[0].clip(max=most)
        mine = float(model_losses(study, task, word, own, np.array([int(row[column])]))[0, 0].clip(max=most))
        by_class = [losses[known_y.astype(int) == k] for k in (0, 1)]
        counts = np.bincount(user.train_y.astype(int), minlength=2)
        total = float(here[0].clip(max=most).sum())
        usual = float(by_class[int(row[column])].mean())
        absent = {
            "strangers": sum(n * float(v.mean()) for n, v in zip(counts, by_class, strict=True)),
            "others known": total - (mine if member else usual) + usual,
        }
        left = [float(mean_loss(here[0], weights).value)]
        if form == "rounded":
            left = []
            for draw in range(DRAWS):
                victim.secret = f"{about} {draw}"
                left.append(victim._rounded(here, weights, user, ["x"])[0])
        for known, sum_ in absent.items():
            off, more = np.array(left) * len(weights) - sum_, mine - usual
            assert not np.isnan(off).any(), "a hospital for which nothing leaves shows nothing"
            out[form, known] = float((off**2 > (off - more) ** 2).mean())
    return out


def by_the_model(seed: int) -> tuple[list[float], list[float]]:
    """The share of pairs of a training patient and a stranger in which the training patient's loss is lower: by the
    hospital's own model, and by the shared one."""
    plain = vt.Study.load(packaged("heart_disease.toml"))
    inside, outside = dict[str, pd.DataFrame](), dict[str, pd.DataFrame]()
    for name, frame in heart_disease().items():
        outside[name] = frame.sample(frac=0.3, random_state=seed)
        inside[name] = frame.drop(outside[name].index).reset_index(drop=True)
    study = alone_study(plain)
    own = train_alone(study, prepare(inside, study, seed), folds_of(inside, study, seed, 2), seed)
    shared = vt.federate(plain.with_changes(screen={"ask": False}), inside, method="fedavg", seed=seed)
    assert shared.shared is not None
    both = dict(shared.shared)
    one, other = list[float](), list[float]()
    for i, site in enumerate(own.data):
        strangers = clean(outside[site.name], study)
        x, y = np.asarray(site.encoder.matrix(strangers), np.float32), strangers[study.target.column].to_numpy()
        mine = {k: v[i : i + 1] for k, v in own.params.items()}
        joint = {k: both[f"params/{k}" if f"params/{k}" in both else k][None] for k in own.params}
        for params, found in ((mine, one), (joint, other)):
            there = model_losses(study, own.task, params, site.train_x, site.train_y)[0]
            away = model_losses(study, own.task, params, x, y)[0]
            found.append(float((there[:, None] < away).mean() + (there[:, None] == away).mean() / 2))
    return one, other


def cost_of_rounding(agreed: Agreement, times: int, seed: int, place: Path) -> tuple[float, float, float]:
    """The share of losses that leave; of users whose best site stays the best; of users for whom the hospital with
    exchanged outcomes ranks last."""
    tables = {n: pd.concat([f] * times, ignore_index=True) for n, f in heart_disease().items()}
    column = agreed.study.target.column
    flipped = clean(tables["hungarian"], agreed.study)
    labels = agreed.study.target.levels
    tables["hungarian"] = tables["hungarian"].loc[flipped.index]
    shares = list[tuple[float, float, float]]()
    for exchange in (False, True):
        here = dict(tables)
        if exchange:
            codes = 1 - flipped[column].to_numpy().astype(int)
            here["hungarian"] = here["hungarian"].assign(**{column: np.array(labels, dtype=object)[codes]})
        study = alone_study(agreed.study)
        own = train_alone(study, prepare(here, study, seed), folds_of(here, study, seed, 5), seed)
        shares.append(_ranked(agreed, own, here, place / f"{times} {seed} {exchange}", exchange))
    return shares[0][0], shares[0][1], shares[1][2]


def _ranked(agreed: Agreement, own: OwnModels, tables: Mapping[str, Any], place: Path, exchange: bool) -> Any:
    told, best, last = list[bool](), list[bool](), list[bool]()
    for user in own.data:
        names = [s.name for s in own.data if s.name != user.name]
        some = {k: v[[i for i, s in enumerate(own.data) if s.name != user.name]] for k, v in own.params.items()}
        rows, weights = model_losses(agreed.study, own.task, some, user.train_x, user.train_y), _weights(agreed, user)
        exact = [mean_loss(one, weights).value for one in rows]
        victim = TransferSite(Site(user.name, tables[user.name], agreed, place / user.name))
        for draw in range(DRAWS):
            victim.secret = f"{draw}"
            left = victim._rounded(rows, weights, user, names)
            told += [not math.isnan(v) for v in left]
            first, wanted = _order(names, left, own), _order(names, exact, own)
            best.append(bool(first) and first[0] == wanted[0])
            if exchange and user.name != "hungarian":
                last.append(bool(first) and first[-1] == "hungarian")
    return float(np.mean(told)), float(np.mean(best)), float(np.mean(last)) if last else math.nan


def _weights(agreed: Agreement, user: SiteData) -> Floats:
    return loss_weights(agreed.study, user)


def _order(names: list[str], losses: list[float], own: OwnModels) -> list[str]:
    gaps = {n: v - own.cv[n].value for n, v in zip(names, losses, strict=True)}
    return chosen(gaps, f"top:{len(names)}")


def outside_bounds(agreed: Agreement, seeds: int) -> tuple[int, int, int]:
    """Honest models outside the coordinator's bounds, outside the sites', and how many there are."""
    study, found = alone_study(agreed.study), list[tuple[bool, bool]]()
    for seed in range(1, seeds + 1):
        own = train_alone(study, prepare(heart_disease(), study, seed), folds_of(heart_disease(), study, seed, 2), seed)
        bounds = WeightBounds(agreed, own.task.start)
        for i in range(len(own.data)):
            mine = {k: v[i] for k, v in own.params.items()}
            found.append((bool(bounds.travelling_problems(mine, MARGIN)), bool(bounds.travelling_problems(mine))))
    return sum(a for a, _ in found), sum(b for _, b in found), len(found)


def within_bounds(agreed: Agreement, crafter: Crafter, rows: pd.DataFrame) -> tuple[int, int]:
    """How many models made for these persons sites would judge, and how many there are."""
    bounds, found = WeightBounds(agreed, agreed.task.start), list[bool]()
    for _, row in rows.iterrows():
        word = {k.removeprefix("params/"): v for k, v in crafter.word(row).items()}
        word["head.weight"] = word["head.weight"] * STRONGER
        found.append(not bounds.travelling_problems(word))
    return sum(found), len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=120, help="members and strangers")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    agreed = agreement()
    lines = [
        "# What travelling models and their losses tell",
        "",
        f"Printed by `python benchmarks/attacks/attack_transfer.py --targets {args.targets} --seeds {args.seeds}`.",
        "",
        "A made model, one question about each person, at a hospital made of two, so that rounded losses leave; guessing: "
        "0.5.",
        "",
        "| losses | the attacker knows | persons | right | members found | strangers taken for members |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    kept = list[tuple[int, int]]()
    all_ = dict[tuple[str, str], list[tuple[bool, float]]]()
    for seed in range(1, args.seeds + 1):
        for where, some in made_models(agreed, seed, args.targets, kept).items():
            all_.setdefault(where, []).extend(some)
        print("made models", seed, flush=True)
    for (form, known), some in all_.items():
        found, wrong = (float(np.mean([said for m, said in some if m is member])) for member in (True, False))
        right, error = (found + 1 - wrong) / 2, 1.96 * math.sqrt(0.25 / len(some))
        lines.append(f"| {form} | {known} | {len(some)} | {right:.3f} ± {error:.3f} | {found:.3f} | {wrong:.3f} |")
    inside, of = np.sum(kept, axis=0)
    lines += [
        "",
        f"{inside} of {of} models made for training patients lie within the bounds of weights; all are counted.",
    ]
    pairs = [by_the_model(seed) for seed in range(1, args.seeds + 1)]
    own, shared = (np.array([p[i] for p in pairs]) for i in (0, 1))
    lines += [
        "",
        "Whoever has the model points to the training patient, shown one and a stranger (mean over four hospitals and "
        f"{args.seeds} seeds, lowest and highest hospital); guessing: 0.5.",
        "",
        "| model | right |",
        "| --- | --- |",
        f"| the hospital's own, which travels | {own.mean():.3f} ({own.mean(0).min():.3f} to {own.mean(0).max():.3f}) |",
        f"| the shared one of FedAvg | {shared.mean():.3f} ({shared.mean(0).min():.3f} to {shared.mean(0).max():.3f}) |",
        "",
        f"Rounded losses, {DRAWS} draws and {args.seeds} seeds.",
        "",
        "| patients | losses that leave | the best site stays the best | exchanged outcomes rank last |",
        "| --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as place:
        for times in (1, 10):
            cost = np.mean([cost_of_rounding(agreed, times, s, Path(place)) for s in range(1, args.seeds + 1)], axis=0)
            words = "as they are" if times == 1 else "each ten times"
            lines.append(f"| {words} | {cost[0]:.3f} | {cost[1]:.3f} | {cost[2]:.3f} |")
            print("rounding", times, flush=True)
    careful, refused, many = outside_bounds(agreed, 2 * args.seeds)
    lines += [
        "",
        f"Honest models outside the coordinator's bounds: {careful} of {many}; outside the sites': {refused}.",
    ]
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
