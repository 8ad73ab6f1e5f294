"""A run folder that is written while a page follows it."""

from __future__ import annotations

import json
from pathlib import Path

import vitrail as vt
import vitrail.deploy
from tests.support.report.pages import HEART
from vitrail.data.datasets.catalogue import packaged
from vitrail.runs.folder import Folder
from vitrail.runs.identity import describe_run
from vitrail.storage.atomic_files import write_atomically


class Story:
    """A run folder written as the coordinator writes it, one event at a time."""

    def __init__(self, path: Path, names: tuple[str, ...] = HEART, deployed: bool = True) -> None:
        self.path, self.names = path, names
        self.study = vt.Study.load(packaged("heart_disease.toml"))
        self.folder = Folder(path, resume=False)
        self.log = self.folder.log
        if deployed:
            told = {"run": "r", "agreement": "a", "sites": list(names), "study": self.study.name}
            write_atomically(path / "deployed.json", json.dumps(told))
            self.log("transport started", address="127.0.0.1:8002")
        self.info = describe_run(
            self.study, 7, "deployed" if deployed else "vectorised", "cpu", dict.fromkeys(names, "f")
        )

    def begin(self) -> None:
        write_atomically(self.path / "study.toml", self.study.to_toml())
        write_atomically(self.path / "run.json", json.dumps(self.info))
        self.log("started", method=self.info["method"], seed=7)

    def round(self, r: int, *absent: str, total: int = 40) -> None:
        if absent:
            self.log("absent", stage=0, round=r, done=r, sites=list(absent))
        self.log("round", stage=0, round=r, done=r, total=total, seconds=0.5 * r, absent=list(absent))

    def score(self, r: int) -> float:
        return round(0.8 - 0.3 * 0.9**r, 4)

    def keep(self, rounds: int) -> None:
        metric = self.study.metrics[0]
        history = [
            [0, r, name, split, metric, self.score(r) - 0.02 * i - (split == "train")]
            for r in range(rounds + 1)
            for i, name in enumerate(self.names)
            for split in ("test", "train")
        ]
        counts = {"train|to site": [rounds] * len(self.names), "train|from site": [rounds - 1] * len(self.names)}
        kept = {"stage": 0, "round": rounds, "history": history, "ledger": counts, "names": list(self.names)}
        kept["sizes"] = {"train|to site": 1000, "train|from site": 500}
        write_atomically(self.path / "checkpoint.json", json.dumps(kept))
