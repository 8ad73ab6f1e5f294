"""The hashes of what a release is installed from: constraints-hashed.txt.

    python scripts/hash_constraints.py           write it: asks the package index (PIP_INDEX_URL, or the usual one)
    python scripts/hash_constraints.py --check   offline: does it name every package of constraints.txt that is needed,
                                                 in that version, with hashes?

Versions are those of constraints.txt, the packages what `vitrail[deploy,image]` needs. Every file that the index has of
a version is listed, so that the same list serves other systems.

torch is not in it, but all that it needs is. What the index offers for Linux is built for NVIDIA's cards and needs
their libraries; the build for processors, which we test with, comes from torch's own index, and no hash of the one fits
the other. docs/deploy.md says how to install it afterwards, by the hash of the file. Nor is setuptools, which every
virtual environment of Python 3.11 has.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.request
from html import unescape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from closure import ROOT, needed, plain

PLACE = Path(__file__).parent.parent
CONSTRAINTS, HASHED = PLACE / "constraints.txt", PLACE / "constraints-hashed.txt"
APART = ("torch", "setuptools")  # why: see above
HEAD = """\
# Made by scripts/hash_constraints.py from constraints.txt: what vitrail[deploy,image] needs, with the hash of every
# file that the index has of it; torch comes afterwards, from its own index (docs/deploy.md):
#   pip install --require-hashes --no-deps -r constraints-hashed.txt
"""


def pinned() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines())
    return {plain(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def wanted() -> dict[str, str]:
    """Packages and versions that belong into the list."""
    versions = pinned()
    without = {n for n in needed() if n != ROOT and n not in APART}
    missing = sorted(n for n in without if n not in versions)
    if missing:
        raise SystemExit(f"not in constraints.txt: {', '.join(missing)}")
    return {n: versions[n] for n in sorted(without)}


def files_of(page: str, name: str, version: str) -> set[str]:
    """The hashes of that version's files, from an index's page of one package."""
    found = set()
    for link in re.findall(r'href="([^"]+)"', page):
        file, _, mark = unescape(link).partition("#sha256=")
        last = urllib.request.unquote(file.rsplit("/", 1)[-1])
        stem = re.sub(r"(\.tar\.gz|\.zip)$", "", last)
        parts = last.split("-")[:2] if last.endswith(".whl") else stem.rpartition("-")[::2]
        if re.fullmatch(r"[0-9a-f]{64}", mark) and parts[1] == version and plain(parts[0]) == plain(name):
            found.add(mark)
    return found


def ask(name: str) -> str:
    index = os.environ.get("PIP_INDEX_URL", "").rstrip("/")
    if not index:
        raise SystemExit("expected PIP_INDEX_URL, the address of the index that pip asks; it is not set.")
    with urllib.request.urlopen(f"{index}/{name}/", timeout=60) as said:
        return str(said.read().decode())


def write() -> None:
    out, lost = [HEAD.rstrip()], []
    for name, version in wanted().items():
        marks = sorted(files_of(ask(name), name, version))
        lost += [] if marks else [name]
        out.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{mark}" for mark in marks)]))
    if lost:
        raise SystemExit(f"the index has no hashes of: {', '.join(lost)}. Nothing was written.")
    HASHED.write_text("\n".join(out) + "\n", encoding="utf-8")
    print(f"{HASHED.name}: {len(out) - 1} packages")


def wrong() -> list[str]:
    """What is wrong with the list, without asking anybody."""
    text = HASHED.read_text(encoding="utf-8")
    told = re.findall(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.M)
    known, want = {name: version for name, version, _ in told}, wanted()
    out = [f"{n}=={v} is needed and not there with a hash" for n, v in want.items() if known.get(n) != v]
    out += [f"{n} is there and not needed" for n in known if n not in want]
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "    --hash="))]
    return out + ([f"{len(lines) - len(told)} lines have no hash"] if len(lines) != len(told) else [])


def main() -> None:
    if "--check" not in sys.argv:
        write()
    if problems := wrong():
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
