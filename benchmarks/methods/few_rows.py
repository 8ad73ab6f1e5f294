"""Which sites of our benchmarks' tables have so few hold-out rows that their scores say little.

    python benchmarks/methods/few_rows.py            # seconds; VITRAIL_DATA names the folder of the tables that are not shipped

Nothing is trained: rows are split as a run would, under the study's first seed. The bar is that of every page and
results file (metrics/scores.py). Benchmarks that list sites say it by `few_line`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

import vitrail as vt
from vitrail.data.encoding import prepare
from vitrail.metrics.scores import FEW, RARE
from vitrail.runs.evaluation import sizes_of

SETS = {"vehicle": "label", "har": "activity", "gusto": "day30"}  # beside heart: what is predicted


def few_sites(study: vt.Study, sites: Mapping[str, pd.DataFrame], seed: int | None = None) -> dict[str, str]:
    """Site -> on how few hold-out rows its scores stand."""
    sizes = sizes_of(study, prepare(sites, study, study.seeds[0] if seed is None else seed))
    return {site: words for site, words in zip(sizes.site, sizes.few_rows, strict=True) if words}


def few_line(study: vt.Study, sites: Mapping[str, pd.DataFrame]) -> str:
    """For a results file that lists sites."""
    found = few_sites(study, sites)
    said = ", ".join(f"{site} ({words})" for site, words in found.items()) or "none"
    bar = f"fewer than {FEW} hold-out rows, or fewer than {RARE} of the rarest class"
    return f"Sites whose scores stand on few rows ({bar}): {said}."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "few_rows.md")
    args = parser.parse_args()
    import fed_heart  # which says its own line by `few_line`

    heart = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    told = {"heart": (heart, vt.datasets.heart_disease())}
    told["Fed-Heart-Disease"] = fed_heart.study(1), fed_heart.centres()
    for name, target in SETS.items():
        sites = getattr(vt.datasets, name)()
        told[name] = vt.Study.infer(sites, target), sites
    lines = ["# Sites with few hold-out rows", ""]
    for name, (study, sites) in told.items():
        found = few_sites(study, sites)
        lines += [f"## {name}: {len(found)} of {len(sites)} sites", "", few_line(study, sites), ""]
    args.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
