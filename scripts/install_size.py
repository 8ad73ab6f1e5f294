"""What an installation weighs, and what of it a site can leave out.

python scripts/install_size.py       a table in Markdown, from the files of what is installed here (no caches)
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from closure import needed

SPARED = {"pyarrow": "Parquet files are then refused in words; CSV gives the same numbers"}
LARGE = 20  # megabytes, to be named


def weight(one: Distribution) -> float:
    """Megabytes of its files."""
    places = [Path(str(one.locate_file(f))) for f in one.files or () if not f.name.endswith(".pyc")]
    return sum(p.stat().st_size for p in places if p.is_file()) / 1e6


def main() -> None:
    kinds = {"one machine": (), "a site or coordinator": ("deploy",), "and pictures": ("deploy", "image")}
    print("| installed | packages | MB | largest |\n| --- | ---: | ---: | --- |")
    for words, extras in kinds.items():
        sizes = {name: weight(one) for name, one in needed(extras=extras).items()}
        large = ", ".join(f"{n} {s:.0f}" for n, s in sorted(sizes.items(), key=lambda x: -x[1]) if s > LARGE)
        extra = f"`vitrail[{','.join(extras)}]`" if extras else "`vitrail`"
        print(f"| {extra}, {words} | {len(sizes)} | {sum(sizes.values()):.0f} | {large} |")
    for name, cost in SPARED.items():
        print(f"\n`pip uninstall {name}` spares {weight(needed(extras=())[name]):.0f} MB: {cost}.")


if __name__ == "__main__":
    main()
