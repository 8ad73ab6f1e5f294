"""What five studies do under four methods, as text: the files of the run folder, the wire table, the consent form, the
messages that cross and what the page says. `python tests/snapshots.py` writes tests/snapshots/*.txt.

Numbers that come from training are replaced by #, since processors differ in the last digits: same_numbers.json holds
those. A change of layout or names must leave every file as it is; where one differs, somebody looks at the difference
and commits it."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import vitrail as vt  # noqa: E402
from tests.support.deploy.federation import Here  # noqa: E402
from tests.support.deploy.proofs import prove  # noqa: E402
from vitrail.deploy.consent.form import contract_text  # noqa: E402
from vitrail.deploy.coordinator.requests import Responses, SiteRequests  # noqa: E402
from vitrail.deploy.coordinator.session import conduct  # noqa: E402
from vitrail.deploy.protocol.agreement import Agreement  # noqa: E402
from vitrail.deploy.protocol.message import Message  # noqa: E402
from vitrail.deploy.site.site import Site  # noqa: E402
from vitrail.report.pages.builder import page_of  # noqa: E402
from vitrail.report.pages.run import render  # noqa: E402
from vitrail.runs.folder import Folder  # noqa: E402

PLACE, RUN = HERE / "snapshots", "0123456789abcdef"
METHODS = ("fedavg", "fedprox", "fedper", "ifedavg")
SITES = {"north": 60, "south": 48, "west": 45}
STUDIES: dict[str, dict[str, Any]] = {
    "classes": {},
    "masked": {"protect": {"sum": "masked"}, "training": {"refit": True}},
    "number": {"target": {"column": "weight", "kind": "number", "center": 70.0, "scale": 10.0}},
    "time": {"target": {"column": "sick", "kind": "time", "time": "days", "event": "sick", "horizon": 300.0}},
    "persons": {"person": "who", "screen": {"ask": True}, "bedside": {"tell": True}},
}


def tables() -> dict[str, pd.DataFrame]:
    out = {}
    for i, (name, rows) in enumerate(SITES.items()):
        rng = np.random.default_rng(i)
        x = rng.normal(size=(rows, 2)).round(2)
        sick = (x @ [1.0, -1.0] + rng.normal(size=rows) > 0).astype(int)
        out[name] = pd.DataFrame(x, columns=["a", "b"]).assign(
            ward=rng.choice(["in", "out", "day"], rows),
            sick=sick,
            weight=(70 + 8 * x[:, 0] + rng.normal(size=rows)).round(1),
            days=rng.integers(20, 400, rows),
            who=[f"P{k // 2:03d}" for k in range(rows)],
        )
    return out


def study_of(name: str, method: str) -> vt.Study:
    given = {"screen": {"ask": False}, **STUDIES[name]}
    plain: dict[str, Any] = {
        "name": name,
        "target": {"column": "sick", "classes": [0, 1], "positive": 1},
        "features": {
            "a": {"kind": "numeric", "range": [-5, 5], "unit": "mmol"},
            "b": {"kind": "numeric", "range": [-5, 5]},
            "ward": {"kind": "categorical", "categories": ["in", "out", "day"]},
        },
        "network": {"hidden": [4]},
        "method": {"name": method},
        **given,
        "training": {"rounds": 2, **given.get("training", {})},
    }
    return vt.Study.parse(plain)


class Watched(Here):
    """Keeps the form of every message: kind, words, and the names, shapes and types of tensors."""

    def __init__(self, sites: dict[str, Site]) -> None:
        super().__init__(sites)
        self.lines: list[str] = []

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        found = super().ask(questions, deadline)
        if not questions:
            return found
        first = min(questions)
        self.lines.append(f"to site    {form_of(questions[first])}")
        self.lines += [f"from site  {form_of(found.answers[first])}"] if first in found.answers else []
        return found


def form_of(message: Message) -> str:
    named = sorted(message.tensors.items())  # as unpacked, their order is by chance
    tensors = ", ".join(f"{k}{list(v.shape)} {v.dtype}".replace("torch.", "") for k, v in named)
    return f"{message.kind} ({', '.join(sorted(message.words))}): {tensors}"


def texts_of(name: str, method: str, folder: Path) -> str:
    """All of one study under one method."""
    sites, study = tables(), study_of(name, method)
    agreed = Agreement.of(study, 1, len(sites))
    run = vt.federate(study, sites, seed=1, out=folder / "run")
    files = sorted(str(p.relative_to(folder / "run")) for p in (folder / "run").rglob("*") if p.is_file())
    page = " ".join(re.sub(r"<(script|style|fieldset)[\s\S]*?</\1>|<[^>]+>", " ", render(page_of(run))).split())
    own = {n: Site(n, f, agreed, folder / n, True, prove(n, list(sites), folder / n)) for n, f in sites.items()}
    way = Watched(own)
    kept = Folder(folder / "far", resume=False, about=".lock")
    try:
        conduct(SiteRequests(way, agreed, list(sites), RUN, len(sites), 5.0), kept, resume=False)
    finally:
        kept.close()
    parts = {
        "files of a run": files,
        "wire": ["  ".join(map(str, line[:8])) for line in agreed.lines],
        "consent form": contract_text(agreed, "north", list(sites), True).splitlines(),
        "messages to and from one site": way.lines,
        "page": re.split(r"(?<=[.!?]) ", re.sub(r"[−+-]?\d[\d.,]*", "#", page)),
    }
    return "\n".join(f"== {title}\n" + "\n".join(lines) + "\n" for title, lines in parts.items())


def comparable(text: str) -> str:
    """Without what is different each time: the agreement's hash, and whether memory is in MB or GB."""
    return re.sub(r"\b[0-9a-f]{16,64}\b", "HASH", re.sub(r"# [KMG]B\b", "# bytes", text))


def case(name: str, method: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return comparable(texts_of(name, method, Path(folder)))


if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for study in STUDIES:
        for method in METHODS:
            (PLACE / f"{study}-{method}.txt").write_text(case(study, method), encoding="utf-8")
            print(study, method, flush=True)
