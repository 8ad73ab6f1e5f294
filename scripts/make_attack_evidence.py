"""Write what attackers got out of reports, scores and sums into the source, from the results of the benchmarks.

    python scripts/make_attack_evidence.py            writes src/vitrail/deploy/consent/attack_evidence.json
    python scripts/make_attack_evidence.py --check    says whether that file is what the results give (a test does it)

The consent form quotes these numbers and no others. `older` names the results that were made with defaults that have
changed since; the form says so beside each of them.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "src" / "vitrail" / "deploy" / "consent" / "attack_evidence.json"
RESULTS = ROOT / "benchmarks"
TRIALS = 5
EPSILON, ROWS = 10, 10  # of the noise, and in a fold, in the cases that are quoted
MODELS = {"own": "the hospital's own, which travels", "shared": "the shared one of FedAvg"}
FOLDS = {"plain": f"{ROWS} rows in a fold", "masked": f"{ROWS} rows in a fold, under masks"}
# guard of a study -> the cases of attacks.json: honest attackers, by what they know of random draws; crafted weights
REPORTS = {
    "plain": ("plain", "draws secret", "no dropout", "plain"),
    "masked": ("total of three", "draws secret", "no dropout", "total of four"),
    "rows": (f"rows {EPSILON}", "draws known", "draws known", f"rows {EPSILON}"),
}
# results of before decision 053, and those that decisions 048 and 033 made before it and nobody repeated
OLDER = ("attacks.json", "attack_presence.md", "attack_oracle.md", "fold_leaks.md")
BEFORE = "2026-11-18"  # the day on which the defaults changed (docs/decisions/053-risks-that-come-true.md)


def row_of(file: str, *first: str) -> dict[str, str]:
    """The first row of the tables in that file that begins with these cells, by the names of its columns."""
    lines = (RESULTS / file).read_text(encoding="utf-8").splitlines()
    names: list[str] = []
    for line, after in pairwise([*lines, ""]):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and after.startswith("| ---"):
            names = cells
        elif tuple(cells[: len(first)]) == first:
            return dict(reversed([*zip(names, cells, strict=True)]))  # of columns of one name, the first
    raise SystemExit(f"{file} has no row {first}")


def leading(cell: str) -> float:
    """The number that a cell begins with."""
    found = re.match(r"[\d.]+", cell)
    if found is None:
        raise SystemExit(f"{cell!r} begins with no number")
    return float(found[0])


def reports() -> dict[str, Any]:
    cases = json.loads((RESULTS / "attacks/results/attacks.json").read_text(encoding="utf-8"))

    def tried(attack: str, case: str) -> dict[str, int]:
        found = [cases[f"{attack}|{case}|{trial}"] for trial in range(1, TRIALS + 1)]
        (rows,) = {one["rows"] for one in found}
        counts = [one["rebuilt"] for one in found]
        return {"of": rows, "least": min(counts), "most": max(counts), "trials": TRIALS}

    return {
        guard: {
            "dropout": tried("honest", f"{honest}, {dropout}"),
            "no dropout": tried("honest", f"{honest}, {bare}"),
            "crafted": tried("craft", f"{crafts}, no dropout"),
        }
        | ({"epsilon": EPSILON} if guard == "rows" else {})
        for guard, (honest, dropout, bare, crafts) in REPORTS.items()
    }


def evidence() -> dict[str, Any]:
    oracle, folds = "attacks/results/attack_oracle.md", "attacks/results/fold_leaks.md"
    published, lists = "attacks/results/published.md", "attacks/results/attack_presence.md"
    transfer = "attacks/results/attack_transfer.md"
    made = {form: row_of(transfer, form, "strangers") for form in ("rounded", "exact")}
    absent = row_of(lists, "nearly one word, one site left out in the second half")
    parties = {kind: row_of("vertical/results/vertical_leaks.md", "3", kind) for kind in ("defaults", "no noise")}
    guests = [row_of("vertical/results/vertical_leaks.md", columns, "defaults") for columns in ("3", "5")]
    scores = {kind: row_of(oracle, kind) for kind in ("rounded", "exact", "mix")}
    trained = {guard: row_of(folds, case) for guard, case in FOLDS.items()}
    columns = {str(rows): row_of(published, str(rows)) for rows in (20, 220)}
    return {
        "older": list(OLDER),
        "before": BEFORE,
        "attacks.json": reports(),
        "attack_oracle.md": {
            kind: {"persons": int(row["persons"]), "right": leading(row["right"])} for kind, row in scores.items()
        },
        "fold_leaks.md": {
            guard: {"rows": ROWS, "run": leading(row["run"]), "difference": leading(row["difference"])}
            for guard, row in trained.items()
        },
        "attack_transfer.md": {
            form: {"persons": int(row["persons"]), "right": leading(row["right"])} for form, row in made.items()
        }
        | {kind: leading(row_of(transfer, words)["right"]) for kind, words in MODELS.items()},
        "published.md": {
            rows: {"as agreed": leading(row["questions as they follow"]), "chosen": leading(row["chosen, guard"])}
            for rows, row in columns.items()
        },
        "attack_presence.md": {"rounds": int(absent["rounds"]), "error": leading(absent["best error"])},
        "vertical_leaks.md": {
            "columns alone": leading(parties["defaults"]["host's columns"]),
            "defaults": leading(parties["defaults"]["with answers"]),
            "no noise": leading(parties["no noise"]["with answers"]),
            "guest beyond its columns": [float(row["beyond columns"]) for row in guests],
        },
    }


def main() -> None:
    text = json.dumps(evidence(), indent=2, ensure_ascii=False) + "\n"
    if "--check" not in sys.argv[1:]:
        PLACE.write_text(text, encoding="utf-8")
    elif PLACE.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{PLACE.name} is not what the results give: run this script without --check")


if __name__ == "__main__":
    main()
