"""What the third form's further numbers give away, and how long it takes: beside what was published before.

    VITRAIL_DATA=... python benchmarks/faults/relations_leaks.py --rows 50 --shown published    # one figure at a time
    VITRAIL_DATA=... python benchmarks/faults/relations_leaks.py --timing
    python benchmarks/faults/relations_leaks.py --report                                        # writes results/

The attacker and the controls are those of fault_leaks.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fault_leaks import attack, timing

OUT = Path(__file__).parent / "results" / "relations_leaks.md"
SHOWN = ("published", "without ratios")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--shown", choices=SHOWN, default=SHOWN[0])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--cache", type=Path, default=Path("scratch/relations_leaks.json"))
    args = parser.parse_args()
    kept = json.loads(args.cache.read_text()) if args.cache.exists() else {}
    if args.rows:
        auc, error, numbers = attack("heart", args.rows, args.shown, args.trials)
        kept[f"{args.rows} {args.shown}"] = f"{auc:.2f} +- {1.96 * error:.2f} ({numbers})"
    if args.timing:
        kept["time"] = timing(1)[0]
    args.cache.parent.mkdir(parents=True, exist_ok=True)
    args.cache.write_text(json.dumps(kept))
    if args.report:
        sizes = sorted({int(k.split()[0]) for k in kept if k[0].isdigit()})
        lines = ["# What the further numbers of the third form give away", ""]
        lines += [
            "AUC of members against others, heart, with a 95 % interval over trials; in brackets how many published"
        ]
        lines += ["numbers vary.", "", f"| shown | {' | '.join(f'{n} rows' for n in sizes)} |"]
        lines += ["| --- " * (1 + len(sizes)) + "|"]
        for shown in SHOWN:
            lines.append(f"| {shown} | {' | '.join(kept.get(f'{n} {shown}', '-') for n in sizes)} |")
        OUT.write_text("\n".join([*lines, "", "## Time", "", kept.get("time", "not measured"), ""]))
        print(OUT.read_text())


if __name__ == "__main__":
    main()
