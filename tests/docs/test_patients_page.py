"""Every block of docs/patients.md: Python runs, and what stands in a study is accepted in one."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import vitrail as vt
from tests.support import ROOT
from vitrail.cli.examples import examples_of

PAGE = ROOT / "docs" / "patients.md"
BLOCK = re.compile(r"^```(python|sh|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROWS: dict[str, Any] = {
    "target": {"column": "died", "classes": ["no", "yes"]},
    "features": {"age": {"kind": "numeric"}},
}


def test_the_page_runs() -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _ in blocks] == ["toml", "toml", "toml", "sh", "python"]
    for kind, code in blocks:
        if kind == "python":
            exec(code, {})
        if kind == "toml":
            said = tomllib.loads(code)
            rows = {k: v for k, v in ROWS.items() if k != "features" or "images" not in said}
            vt.Study.parse({**rows, **said})
    assert "--leave-one-site-out" in blocks[3][1]
    assert "compare" in examples_of("compare")
