"""Do the tests bite? Small wrongs are put into a copy of the source, one at a time, and the tests named for each must
fail. `make mutants`, or `make mutants SAMPLE=10` for some of them.

The mutants are in tests/mutants/*.toml, each with

    name       what a bug like this would do
    file       below src/vitrail
    in         qualified name of the function or class ("Site.answer"), "" for the module's own statements
    old, new   expressions, statements or headers, compared by syntax tree (tests/support/anchors.py); `old` must be
               there exactly once, else the mutant has rotted and is an error
    text       instead of `in`, true for what is no Python: `old` and `new` are texts, anywhere in the file
    tests      files or single tests, small and quick, at least one of which must fail
    survives   only where the change cannot be told apart: why. It then must survive, else the mark is stale

Exit code 0 only if all tests pass without a mutant, at least 95 % of the mutants die and every survivor is marked.
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
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from tests.support.anchors import AnchorError, locate, mutated  # noqa: E402

NEEDED = ("src", "tests", "pyproject.toml")
SECONDS = 120.0  # for one mutant's tests: one that hangs is found out too
ENOUGH = 0.95  # of the mutants must die
UNTRIED = "not tried: its tests do not pass without it"
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
    scope: str | None = None  # None where old and new are texts
    survives: str = ""
    area: str = ""

    @property
    def path(self) -> str:
        return f"src/vitrail/{self.file}"

    def applied(self, source: str) -> str:
        """The source with this mutant in it; AnchorError where it does not fit."""
        if self.scope is not None:
            return mutated(source, self.scope, self.old, self.new)
        if source.count(self.old) != 1:
            raise AnchorError(f"its old text is there {source.count(self.old)} times, not once")
        return source.replace(self.old, self.new)

    def problems(self) -> list[str]:
        """What is wrong with the mutant itself."""
        file, out = ROOT / self.path, []
        source = file.read_text(encoding="utf-8") if file.exists() else ""
        try:
            if self.scope is None:
                self.applied(source)
            else:
                locate(source, self.scope, self.old, self.new)
        except (AnchorError, SyntaxError) as error:
            out.append(f"{self.path}: {error}")
        out += [f"there is no {t}" for t in self.tests if not (ROOT / t.partition("::")[0]).exists()]
        out += ["it names no test"] if not self.tests else []
        return out + (["it changes nothing"] if self.old == self.new else [])


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
    return [
        make_mutant(entry, file.stem)
        for file in sorted((HERE / "mutants").glob("*.toml"))
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    ]


def make_mutant(entry: dict[str, Any], area: str) -> Mutant:
    fields = {"tests": tuple(entry["tests"]), "scope": entry.get("in"), "area": area}
    if ("in" in entry) == entry.get("text", False):
        sys.exit(f"{area}: {entry['name']}: a mutant has either `in` or `text = true`")
    return Mutant(**{k: v for k, v in entry.items() if k not in ("in", "text", "tests")}, **fields)


def rotten(mutants: list[Mutant]) -> list[str]:
    names = [m.name for m in mutants]
    by_file = sorted(mutants, key=lambda m: m.file)  # each file is parsed once
    problems = [f"{m.area}: {m.name}: {problem}" for m in by_file for problem in m.problems()]
    return problems + [f"{n}: two have this name" for n in sorted({n for n in names if names.count(n) > 1})]


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
    paths = [str(copy / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # the copy's own sources first, whatever is installed
    sys.path[:] = [str(copy / "src"), *(p for p in sys.path if Path(p) not in (HERE, ROOT, ROOT / "src"))]
    code = pytest.main(["-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests])
    sys.stdout.flush()
    os._exit(int(code))


def try_mutant(mutant: Mutant, copy: Path, number: int) -> Outcome:
    place, began = copy / mutant.path, time.monotonic()
    right = place.read_text(encoding="utf-8")
    try:
        place.write_text(mutant.applied(right), encoding="utf-8")
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
    with tempfile.TemporaryDirectory(prefix="mutants-") as base, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(jobs):
            copies.put(make_copy(Path(base) / str(i)))
        failing = failing_tests(mutants, pool, copies)
        sound = [m for m in mutants if not failing.intersection(m.tests)]
        out = [Outcome(m, UNTRIED, 0.0) for m in mutants if m not in sound]
        print(f"The tests of {len(sound)} of {len(mutants)} mutants pass without them.\n", flush=True)

        def one(job: tuple[int, Mutant]) -> Outcome:
            copy = copies.get()
            try:
                return try_mutant(job[1], copy, 1 + job[0])
            finally:
                copies.put(copy)

        for done in as_completed([pool.submit(one, job) for job in enumerate(sound)]):
            o = done.result()
            out.append(o)
            mark = "  " if o.good else "! "
            print(f"{mark}{o.how[:200]:9} {o.seconds:5.1f} s  {o.mutant.area}: {o.mutant.name}  {o.by}", flush=True)
    return out


def failing_tests(mutants: list[Mutant], pool: ThreadPoolExecutor, copies: SimpleQueue[Path]) -> set[str]:
    """The named tests that fail on the source as it is: they would fail on every mutant. All tests of a file in one
    process; where one of them fails, each in its own."""

    def code_of(tests: tuple[str, ...]) -> int | None:
        copy = copies.get()
        try:
            code, output = run_tests(copy, tests, None)
        finally:
            copies.put(copy)
        if code != 0 and len(tests) == 1:
            print(f"! fails without a mutant: {tests[0]}: {' '.join(output.split())[-300:]}", flush=True)
        return code

    by_file: dict[str, list[str]] = {}
    for test in dict.fromkeys(t for m in mutants for t in m.tests):
        by_file.setdefault(test.partition("::")[0], []).append(test)
    files = [tuple(tests) for tests in by_file.values()]
    failed = [tests for tests, code in zip(files, pool.map(code_of, files), strict=True) if code != 0]
    single = [(test,) for tests in failed for test in tests]
    return {tests[0] for tests, code in zip(single, pool.map(code_of, single), strict=True) if code != 0}


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
    many = len(mutants)
    if problems := rotten(mutants):
        sys.exit("\n".join(["Mutants to repair:", *problems]))
    word = given.only.lower()
    mutants = [m for m in mutants if word in f"{m.area} {m.name} {m.path}".lower()]
    if given.sample:
        mutants = random.Random(given.seed).sample(mutants, min(given.sample, len(mutants)))
    if not mutants:
        sys.exit("No mutant has that word.")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: the tests' tensors are small
    began = time.monotonic()
    well = tell(try_all(mutants, max(1, given.jobs)), whole=len(mutants) == many)
    print(f"\n{time.monotonic() - began:.0f} s")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
