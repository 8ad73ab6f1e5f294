"""How often calibration's alarm and "it helps" are wrong, how often right, and what our own studies look like.

    python benchmarks/verdicts/bedside.py            # a minute; VITRAIL_DATA names the folder of GUSTO, which is not shipped

Made-up sites: logit risk ~ N(0, 1.3^2) and events by it (calibrated), shifted by -0.5 (risks too high), or with slope
0.6 (too extreme); for "it helps", events that risks know nothing of. By counts: what leaves a site (groups of ten rows
or more). By rows: what a site's own card has. Nothing was tuned on these draws; edges and levels were set before.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

import vitrail as vt
from vitrail.analysis.calibration import FINE, LEVEL, counts_test, fit_line, judge, net_benefit, observed_expected
from vitrail.metrics.calibration import EDGES, RiskCounts, counted, merged
from vitrail.report.sections.calibration import read_risk_counts

CASES = {"calibrated": (1.0, 0.0), "too high": (1.0, -0.5), "too extreme": (0.6, 0.0)}


def draw(rows: int, slope: float, shift: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    z = rng.normal(0, 1.3, rows)
    return 1 / (1 + np.exp(-z)), rng.random(rows) < 1 / (1 + np.exp(-(shift + slope * z)))


def alarms(times: int) -> list[str]:
    out = ["| held-out rows | site | alarm by counts | alarm by rows |", "| --- | --- | --- | --- |"]
    for rows in (40, 100, 300, 1000):
        for name, given in CASES.items():
            rng, found = np.random.default_rng([38, rows]), np.zeros(2)
            for _ in range(times):
                risk, event = draw(rows, *given, rng)
                line = fit_line(risk, event)
                found += counts_test(merged(counted(risk, event, EDGES))) < LEVEL, line is not None and line.p < LEVEL
            out.append(f"| {rows} | {name} | {found[0] / times:.3f} | {found[1] / times:.3f} |")
    return out


def helps(times: int) -> list[str]:
    out = ["| held-out rows | model | said to help somewhere, by rows | by counts |", "| --- | --- | --- | --- |"]
    for rows in (40, 100, 300):
        for name in ("knows nothing", "calibrated"):
            rng, found = np.random.default_rng([39, rows]), np.zeros(2)
            for _ in range(times):
                if name == "calibrated":
                    risk, event = draw(rows, 1.0, 0.0, rng)
                else:
                    risk, event = np.clip(rng.normal(0.3, 0.1, rows), 0.01, 0.99), rng.random(rows) < 0.3
                whole, told = counted(risk, event, FINE), merged(counted(risk, event, EDGES))
                found += [net_benefit(c, 200).useful is not None for c in (whole, told)]
            out.append(f"| {rows} | {name} | {found[0] / times:.3f} | {found[1] / times:.3f} |")
    return out


def ours(name: str, target: str, sites: dict, rounds: int) -> list[str]:
    out = [
        f"| {name}, class_weights | sites | alarm | came for each expected: least, median, most |",
        "| --- | --- | --- | --- |",
    ]
    for weights in ("inverse", "none"):
        given = {"training": {"rounds": rounds, "class_weights": weights}, "bedside": {"tell": True}}
        study = vt.Study.infer(sites, target, **given, screen={"ask": False})
        told: dict[str, RiskCounts] = read_risk_counts(vt.federate(study, sites))
        ratios = [observed_expected(c).value for c in told.values()]
        off = sum(not judge(c).startswith("no sign") for c in told.values())
        spread = ", ".join(f"{v:.2f}" for v in (min(ratios), float(np.median(ratios)), max(ratios)))
        out.append(f"| {weights} | {len(told)} of {len(sites)} | {off} | {spread} |")
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "bedside.md")
    args = parser.parse_args()
    lines = ["# At the bedside: how often alarms are right", "", f"{args.times} made-up sites a line.", ""]
    lines += ["## Whether risks come true", "", *alarms(args.times), ""]
    lines += ["## Whether acting on the model helps", "", *helps(args.times // 2), ""]
    lines += ["## Our own tables", "", *ours("heart", "disease", vt.datasets.heart_disease(), 50), ""]
    if "VITRAIL_DATA" in os.environ:
        lines += [*ours("gusto", "day30", vt.datasets.gusto(), 20), ""]
    args.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
