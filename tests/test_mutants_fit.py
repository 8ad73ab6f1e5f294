"""The mutants of `make mutants` still fit the source: one that rots would be found out only when they are run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import vitrail

SOURCE = Path(vitrail.__file__).parent


def test_each_mutant_finds_its_place() -> None:
    files = sorted((Path(__file__).parent / "mutants").glob("*.toml"))
    mutants = [m for file in files for m in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]]
    assert len(mutants) >= 60
    lost = [m["name"] for m in mutants if (SOURCE / m["file"]).read_text(encoding="utf-8").count(m["old"]) != 1]
    assert lost == []
