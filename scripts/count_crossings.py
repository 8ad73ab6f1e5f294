"""How often the way of one run changes from one package to another: functions in the order in which they are first
called, from `vitrail run` with a file for each site to the page.

    python scripts/count_crossings.py SOURCE

SOURCE is the folder that holds the package vitrail: src, or that of another commit. A crossing is a pair of functions
that follow each other in this order and are in different packages (the first folder below vitrail). The order is that
of the processor, so that it also counts what a reader would pass over; the same script on two commits tells how they
compare.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from types import FrameType

SOURCE = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE))
order: dict[tuple[str, str], str] = {}  # (file, function) -> package


def note(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(str(SOURCE / "vitrail")) or code.co_name == "<module>":
        return
    inside = Path(code.co_filename).relative_to(SOURCE / "vitrail")
    if code.co_name.startswith("<"):  # comprehensions and lambdas belong to the function around them
        return
    order.setdefault((str(inside), code.co_qualname), inside.parts[0])


def main() -> None:
    import vitrail as vt
    from vitrail.cli import app

    with tempfile.TemporaryDirectory() as base:
        place = Path(base)
        (place / "data").mkdir()
        sites = vt.datasets.heart_disease()
        for name, frame in sites.items():
            frame.to_csv(place / "data" / f"{name}.csv", index=False)
        (place / "study.toml").write_text(vt.Study.infer(sites, target="disease").to_toml(), encoding="utf-8")
        threading.setprofile(note)
        sys.setprofile(note)
        words = ["run", str(place / "study.toml"), "--data", str(place / "data"), "--out", str(place / "run")]
        app([*words, "--rounds", "2"], standalone_mode=False)
        sys.setprofile(None)
    packages = list(order.values())
    crossings = sum(a != b for a, b in pairwise(packages))
    files = len({file for file, _ in order})
    print(f"{len(order)} functions, {files} files, {len(set(packages))} packages, {crossings} crossings")


main()
