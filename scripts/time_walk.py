"""How long docs/first_hour.md takes: every block in a process of its own, in an empty folder.

python scripts/time_walk.py              # what needs no network
python scripts/time_walk.py --install    # also the clone (of this checkout) and the installation
"""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "first_hour.md"
BLOCK = re.compile(r"^(<!-- install -->\n)?```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED = re.compile(r"# exit code (\d)")


class Block(NamedTuple):
    kind: str  # python or sh
    code: str
    install: bool  # needs a network

    @property
    def lines(self) -> list[tuple[str, int]]:
        """Each command with the exit code that it ends with."""
        found = []
        for line in self.code.strip().splitlines():
            code = EXPECTED.search(line)
            found.append((line.partition("  #")[0].strip(), int(code[1]) if code else 0))
        return found


def blocks() -> list[Block]:
    found = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return [Block(kind, code, bool(mark)) for mark, kind, code in found]


def run(block: Block, folder: Path, env: dict[str, str]) -> None:
    if block.kind == "python":
        subprocess.run([sys.executable, "-c", block.code], cwd=folder, env=env, check=True)
        return
    for line, code in block.lines:
        line = line.replace("git clone REPOSITORY", f"git clone -q file://{ROOT.resolve()}")
        place = folder / "vitrail" if block.install and (folder / "vitrail").exists() else folder
        done = subprocess.run(["bash", "-euc", line], cwd=place, env=env, stdout=subprocess.DEVNULL)
        if done.returncode != code:
            sys.exit(f"{line}: exit code {done.returncode}, expected {code}")


def main() -> None:
    chosen = [block for block in blocks() if not block.install or "--install" in sys.argv]
    print(f"# The first hour, timed\n\n`python scripts/{Path(__file__).name} {' '.join(sys.argv[1:])}`".rstrip())
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} when it began.")
    print("\n| block | seconds | of processor |\n| --- | ---: | ---: |")
    total = 0.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tools = folder / "vitrail" / ".venv" / "bin" if "--install" in sys.argv else Path(sys.executable).parent
        env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
        for block in chosen:
            began, used = time.monotonic(), _used()
            run(block, folder, env)
            took = time.monotonic() - began
            total += took
            said = block.lines[0][0] if block.kind == "sh" else "(makes up four hospitals)"
            print(f"| `{said[:90]}` | {took:.1f} | {_used() - used:.1f} |", flush=True)
    print(f"\nIn all {total:.0f} seconds.")


def _used() -> float:
    told = resource.getrusage(resource.RUSAGE_CHILDREN)
    return told.ru_utime + told.ru_stime


if __name__ == "__main__":
    main()
