"""Do the tests bite? Small wrongs are put into a copy of the source, one at a time, and the tests named for each must
fail. `make mutants`, or `make mutants SAMPLE=10` for some of them.

The mutants are in tests/mutants/*.toml, each with

    name       what a bug like this would do
    file       below src/vitrail
    old, new   texts; `old` must be there exactly once, else the mutant has rotted and is an error
    tests      files or single tests, small and quick, at least one of which must fail
    survives   only where the change cannot be told apart: why. It then must survive, else the mark is stale

Exit code 0 only if all tests pass without a mutant, at least 90 % of the mutants die and every survivor is marked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NEEDED = ("src", "tests", "pyproject.toml")
SECONDS = 120.0  # for one mutant's tests: one that hangs is found out too
ENOUGH = 0.9  # of the mutants must die
FAILED = 1  # pytest's code for tests that failed; others mean that nothing was tested
FORKS = multiprocessing.get_context("forkserver")  # where loading torch and pandas is most of a quick test
FORKS.set_forkserver_preload(
    ["torch", "pandas", "pyarrow", "scipy.special", "scipy.cluster.hierarchy", "pydantic", "pytest"]
)


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""
    area: str = ""

    @property
    def path(self) -> str:
        return f"src/vitrail/{self.file}"

    def wrong(self) -> list[str]:
        """What is wrong with the mutant itself."""
        place = ROOT / self.path
        count = place.read_text(encoding="utf-8").count(self.old) if place.exists() else 0
        found = [f"{self.path}: its old text is there {count} times, not once"] if count != 1 else []
        found += [f"there is no {t}" for t in self.tests if not (ROOT / t.partition("::")[0]).exists()]
        found += ["it names no test"] if not self.tests else []
        return found + (["it changes nothing"] if self.old == self.new else [])


class Outcome(NamedTuple):
    mutant: Mutant
    how: str  # killed, survived, or what went wrong
    seconds: float
    by: str = ""  # the first test that failed

    @property
    def good(self) -> bool:
        return self.how == ("survived" if self.mutant.survives else "killed")

    @property
    def words(self) -> str:
        if self.how == "survived" and self.mutant.survives:
            return f"survives: {self.mutant.survives}"
        return f"{self.how}, marked as a survivor: the mark is stale" if self.mutant.survives else self.how


def read_mutants() -> list[Mutant]:
    found = []
    for file in sorted((HERE / "mutants").glob("*.toml")):
        for raw in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]:
            found.append(Mutant(**{**raw, "tests": tuple(raw["tests"])}, area=file.stem))
    return found


def make_copy(place: Path) -> Path:
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(ROOT / name, place / name)
    return place


def run_tests(copy: Path, tests: tuple[str, ...], seconds: float | None) -> tuple[int | None, str]:
    """pytest's code, None where it took too long; and what it said."""
    said = copy / "said.txt"
    child = FORKS.Process(target=_run_pytest, args=(copy, tests, said))
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return None, ""
    return child.exitcode, said.read_text(encoding="utf-8", errors="replace")


def _run_pytest(copy: Path, tests: tuple[str, ...], said: Path) -> None:
    """In a process of its own, which has the large libraries already and nothing of ours."""
    import pytest

    with said.open("w", encoding="utf-8") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # the copy's own sources first, whatever is installed
    sys.path[:] = [str(copy / "src"), *(p for p in sys.path if Path(p) not in (HERE, ROOT / "src"))]
    code = pytest.main(["-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests])
    sys.stdout.flush()
    os._exit(int(code))


def try_mutant(mutant: Mutant, copy: Path, number: int) -> Outcome:
    place, began = copy / mutant.path, time.monotonic()
    right = place.read_text(encoding="utf-8")
    try:
        place.write_text(right.replace(mutant.old, mutant.new), encoding="utf-8")
        os.utime(place, (number, number))  # compiled files are known by whole seconds: no two mutants share one
        code, said = run_tests(copy, mutant.tests, SECONDS)
    finally:
        place.write_text(right, encoding="utf-8")
        os.utime(place, (0, 0))
    seconds = time.monotonic() - began
    failed = next((line for line in said.splitlines() if line.startswith("FAILED ")), "")
    if code is None or code == FAILED or code < 0:
        why = "it took too long" if code is None else "it crashed"
        return Outcome(mutant, "killed", seconds, failed.removeprefix("FAILED ").partition(" - ")[0] or why)
    how = "survived" if code == 0 else f"nothing was tested (pytest's code {code}): {' '.join(said.split())[-300:]}"
    return Outcome(mutant, how, seconds)


def try_all(mutants: list[Mutant], jobs: int) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as base:
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(jobs):
            copies.put(make_copy(Path(base) / str(i)))
        first = copies.get()
        named = tuple(dict.fromkeys(t for m in mutants for t in m.tests))
        code, said = run_tests(first, named, None)
        if code != 0:
            sys.exit(f"{said}\nThe tests do not pass without a mutant: nothing can be said.")
        copies.put(first)
        print(f"The tests of {len(mutants)} mutants pass without them.\n", flush=True)

        def one(job: tuple[int, Mutant]) -> Outcome:
            copy = copies.get()
            try:
                return try_mutant(job[1], copy, 1 + job[0])
            finally:
                copies.put(copy)

        out = []
        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(one, job) for job in enumerate(mutants)]):
                o = done.result()
                out.append(o)
                mark = "  " if o.good else "! "
                print(f"{mark}{o.how[:200]:9} {o.seconds:5.1f} s  {o.mutant.area}: {o.mutant.name}  {o.by}", flush=True)
    return out


def tell(outcomes: list[Outcome], whole: bool) -> bool:
    """The closing table; whether all is well. Of a part of the mutants no share can be asked for."""
    print(f"\n{'':10} killed  survived  of")
    for area in sorted({o.mutant.area for o in outcomes}):
        mine = [o for o in outcomes if o.mutant.area == area]
        killed, survived = (sum(o.how == how for o in mine) for how in ("killed", "survived"))
        print(f"{area:10} {killed:6}  {survived:8}  {len(mine)}")
    killed = sum(o.how == "killed" for o in outcomes)
    print(f"{'all':10} {killed:6}  {sum(o.how == 'survived' for o in outcomes):8}  {len(outcomes)}\n")
    for o in outcomes:
        if o.how != "killed" or not o.good:
            print(f"{o.mutant.area}: {o.mutant.name} ({o.mutant.path}): {o.words}")
    return all(o.good for o in outcomes) and (not whole or killed >= ENOUGH * len(outcomes))


def main() -> None:
    parser = argparse.ArgumentParser(description="Put small wrongs into the source; the tests must notice.")
    parser.add_argument("--jobs", type=int, default=2, help="so many at once")
    parser.add_argument("--only", default="", metavar="WORD", help="those with this in their name, file or area")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many of them, drawn by lot; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the lot")
    given = parser.parse_args()
    mutants = read_mutants()
    names = [m.name for m in mutants]
    rotten = [f"{m.area}: {m.name}: {what}" for m in mutants for what in m.wrong()]
    rotten += [f"{n}: two are called so" for n in sorted({n for n in names if names.count(n) > 1})]
    if rotten:
        sys.exit("\n".join(["Mutants to repair:", *rotten]))
    word = given.only.lower()
    mutants = [m for m in mutants if word in f"{m.area} {m.name} {m.path}".lower()]
    if given.sample:
        mutants = random.Random(given.seed).sample(mutants, min(given.sample, len(mutants)))
    if not mutants:
        sys.exit("No mutant has that word.")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: the tests' tensors are small
    began = time.monotonic()
    well = tell(try_all(mutants, max(1, given.jobs)), whole=len(mutants) == len(names))
    print(f"\n{time.monotonic() - began:.0f} s")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
