"""What a site earns that cheats, by each rule for rewards, and what it earned when it was honest.

    python benchmarks/verdicts/rewards.py           # results/rewards.csv, and the report; about six minutes on one core
    python benchmarks/verdicts/rewards.py report    # results/rewards.md

The rules are those of the contribution page (studies/contribution/rewards.py). Shares are among the sites other than
the user, by coalitions trained again. Two federations of the heart patients: five sites alike (rows dealt anew with each
seed; the user is the first, the cheat the last, and it copies the one before), and the four hospitals (the user is
Cleveland, the cheat Long Beach, and it copies Budapest).

    copies         its rows are those of another site; nothing of its own
    noise rows     beside its own rows as many with every column and the outcome shuffled by itself
    noise labels   beside its own rows the same rows again with shuffled outcomes
    shows up       twenty shuffled rows and nothing else; it answers in every round
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.special import stdtrit

import vitrail as vt
from vitrail.studies.contribution.rewards import RULES

RESULTS = Path(__file__).parent / "results"
TABLE, PAGE = RESULTS / "rewards.csv", RESULTS / "rewards.md"
SEEDS, SITES, ROUNDS, FEW = range(8), 5, 30, 20
CHEATS = ("honest", "copies", "noise rows", "noise labels", "shows up")
FEDERATIONS = ("alike", "hospitals")
Tables = dict[str, pd.DataFrame]


def federation(name: str, seed: int) -> tuple[Tables, str, str, str]:
    """Tables; the user, the cheat, and the site that it copies."""
    if name == "hospitals":
        return vt.datasets.heart_disease(), "cleveland", "va", "hungarian"
    rows = pd.concat(vt.datasets.heart_disease().values(), ignore_index=True)
    sites = vt.partition.iid(rows, SITES, seed)
    names = list(sites)
    return sites, names[0], names[-1], names[-2]


def shuffled(frame: pd.DataFrame, rng: np.random.Generator, columns: list[str]) -> pd.DataFrame:
    return frame.assign(**{c: frame[c].to_numpy()[rng.permutation(len(frame))] for c in columns})


def cheated(frame: pd.DataFrame, copied: pd.DataFrame, cheat: str, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, CHEATS.index(cheat)])
    match cheat:
        case "copies":
            return copied.copy()
        case "noise rows":
            return pd.concat([frame, shuffled(frame, rng, list(frame.columns))], ignore_index=True)
        case "noise labels":
            return pd.concat([frame, shuffled(frame, rng, ["disease"])], ignore_index=True)
        case "shows up":
            return shuffled(frame, rng, list(frame.columns)).head(FEW).reset_index(drop=True)
    return frame


def measure() -> None:
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    study = study.with_changes(method={"name": vt.methods.DEFAULT}, training={"rounds": ROUNDS}, screen={"ask": False})
    rows, began = [], time.process_time()
    for name in FEDERATIONS:
        for seed in SEEDS:
            honest, user, cheat, victim = federation(name, seed)
            for kind in CHEATS:
                sites = {**honest, cheat: cheated(honest[cheat], honest[victim], kind, seed)}
                with tempfile.TemporaryDirectory() as folder:
                    vt.federate(study, sites, seed=1000 + seed, out=f"{folder}/run")
                    result = vt.contribution(f"{folder}/run", user, sites, "shapley", retrain=True, seeds=1)
                if not len(result.rewards):
                    print(name, seed, kind, result.unpaid(), flush=True)
                    continue
                shares = result.rewards.set_index("site")
                for role, site in (("cheat", cheat), ("copied", victim)):
                    values = {rule: float(shares.loc[site, rule]) for rule in RULES}
                    rows.append({"federation": name, "seed": seed, "cheat": kind, "role": role, **values})
                print(name, seed, kind, {k: round(v, 3) for k, v in rows[-2].items() if k in RULES}, flush=True)
    pd.DataFrame(rows).assign(seconds=round(time.process_time() - began)).round(5).to_csv(TABLE, index=False)


def spread(values: pd.Series) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"


def change(values: pd.Series) -> str:
    """A mean over seeds with its 95 % interval."""
    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.3f} ({values.mean() - half:+.3f} to {values.mean() + half:+.3f})"


def report() -> None:
    t = pd.read_csv(TABLE)
    lines = ["# What a site earns that cheats", "", f"{time.strftime('%Y-%m-%d')}, {t.seed.nunique()} seeds."]
    lines += ["", *(__doc__ or "").strip().split("\n\n", 2)[2].splitlines()]
    for name in FEDERATIONS:
        mine = t[t.federation == name].set_index(["cheat", "seed"])
        for role, words in (("cheat", "The share of the cheat"), ("copied", "The share of the site that is copied")):
            part = mine[mine.role == role]
            kinds = CHEATS if role == "cheat" else CHEATS[:2]
            lines += ["", f"## {name.capitalize()}: {words.lower()}", ""]
            lines += [
                "| | " + " | ".join(rule.name for rule in RULES.values()) + " |",
                "| --- |" + " ---: |" * len(RULES),
            ]
            for kind in kinds:
                cells = [spread(part.loc[kind, rule]) for rule in RULES]
                lines.append(f"| {kind} | " + " | ".join(cells) + " |")
            for kind in kinds[1:]:
                cells = [change((part.loc[kind, rule] - part.loc["honest", rule]).dropna()) for rule in RULES]
                lines.append(f"| {kind}, less honest | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Mean ± standard deviation over seeds; of differences the mean and its 95 % interval over seeds, within seeds.",
    ]
    lines += [f"Processor seconds: {t.seconds.iloc[0]}."]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("measure", "report"), default="measure")
    torch.set_num_threads(1)
    if parser.parse_args().what == "measure":
        measure()
    report()
