"""From the tables of a study with parties to a run folder: match, train with checkpoints, score, keep."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.runs.evaluation import decision_thresholds
from vitrail.runs.folder import PARTIES, Folder, versions
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.study.model import Study
from vitrail.vertical.guest_value import guest_values
from vitrail.vertical.local_guest import LocalGuest
from vitrail.vertical.matching.match import Match
from vitrail.vertical.matching.match import match as find_common
from vitrail.vertical.neighbour_model import NeighbourModel, knn_of
from vitrail.vertical.run import (
    LEDGER_FILE,
    PLACES,
    TABLES_AT,
    Sides,
    Tables,
    VerticalRun,
    build,
    read_crossed,
    read_info,
    tally,
)
from vitrail.vertical.training.dialogue import Dialogue, MessageCount, Wire, lines, write_tensors
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.host_model import HostModel
from vitrail.vertical.training.knn import Knn
from vitrail.vertical.training.party_side import keep_secret, make_host, scored

ALONE, TOGETHER = "host alone", "together"


def together(
    study: Study,
    tables: Tables,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    match: Match | None = None,
    data: str = "",
    progress: Callable[[int, int], None] | None = None,
    counted: Callable[[Match], None] | None = None,
) -> VerticalRun:
    """Match the parties (or take a match that was made before), train, score on held-out rows, keep.

    `study` names the parties, `tables` has the table of each; `seed` is the study's first where it is not given. With
    `out`, the run is kept in that folder, and `resume` goes on where it stopped. progress(step, of) is called as it
    goes. `counted` is told of the match before anything is trained; `data`: where the tables are, for later verbs.
    """
    if not study.parties:
        what = "the study has no parties."
        raise VitrailError("cannot train", [Problem("[parties]", what, "For sites with rows of their own: federate.")])
    chosen, folder, kept = study.seeds[0] if seed is None else seed, None, None
    path = None if out is None else Path(out)
    if path is not None:
        folder = Folder(path, resume=resume)
    begun = resume
    try:
        if folder is not None and resume:
            assert path is not None
            kept = _to_resume(path, study, chosen)
            match = Match.read([path / "parties" / p / PLACES for p in study.parties], str(path))
        found = match or find_common(study, tables)
        if counted is not None:
            counted(found)
        sides = build(study, tables, found, chosen, path / "parties" if path is not None and resume else None)
        run = _begin(study, found, sides, chosen, path, kept)
        if folder is not None and kept is None:
            begun = True
            _write_start(folder, run, sides, data)
        elif folder is not None and kept is not None and kept.get("finished"):
            return VerticalRun.load(folder.path)
        _train(run, sides, folder, progress, resume)
        if folder is not None:
            _write_end(folder, run, sides)
        return run
    finally:
        if folder is not None:
            folder.close()
            if not begun:  # what was refused leaves nothing behind
                (folder.path / ".lock").unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    folder.path.rmdir()


def _to_resume(path: Path, study: Study, seed: int) -> dict[str, Any]:
    info = read_info(path)
    if Study.load(path / "study.toml", kept=True) != study or info["seed"] != seed:
        what, hint = "it was begun with another study or seed.", "Choose another --out."
        raise VitrailError("this is another run", [Problem(str(path), what, hint)])
    return info


def _begin(
    study: Study, found: Match, sides: Sides, seed: int, path: Path | None, kept: dict[str, Any] | None
) -> VerticalRun:
    terms = sides.talk.terms
    said = asdict(terms) | {"offers": [list(o) for o in terms.offers]}
    info = kept or {
        "kind": PARTIES, "finished": False, "seed": seed, "method": dict(study.method), "host": study.host,
        "guests": study.guests, "common": found.common, "lists": found.rows, "mark": found.mark, "terms": said,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "versions": versions(), "left": {},
    }  # fmt: skip
    crossed: dict[tuple[str, str, str, str], MessageCount] = {}
    for one in found.crossed:
        way = ("match", one.sender, one.receiver, one.what)
        crossed[way] = MessageCount(1, found.rows.get(one.what.removeprefix("list of "), 0), one.bytes)
    model = HostModel.of(study, sides.host, {})
    return VerticalRun(study, info, terms, found, model, pd.DataFrame(), crossed, path, sides)


def _write_start(folder: Folder, run: VerticalRun, sides: Sides, data: str) -> None:
    """Before anything is trained: what was agreed, each party's own places, a guest's secret."""
    path = folder.path
    for name, side in sides.guests.items():
        keep_secret(path / "parties" / name, side.guest.secret)
        side.guest.ration.path = path / "parties" / name / "ration.json"
    for party in run.study.parties:
        run.match.write(party, private_folder(path / "parties" / party) / PLACES)
    write_atomically(path / "study.toml", run.study.to_toml())
    write_atomically(path / LEDGER_FILE, to_csv(run.ledger))
    write_atomically(path / "parties" / run.study.host / TABLES_AT, data, private=True)
    write_atomically(path / "run.json", json.dumps(run.info, indent=1))
    folder.log("matched", common=run.match.common)


def _train(
    run: VerticalRun, sides: Sides, folder: Folder | None, progress: Callable[[int, int], None] | None, resumed: bool
) -> None:
    if sides.knn is not None:
        _vote(run, sides, sides.knn)
        return
    talk, keep = sides.talk, None if folder is None else folder.path / "parties"
    if folder is not None and keep is not None and resumed:
        run.crossed = read_crossed(folder.path)
        folder.log("resumed", step=talk.resume(keep))

    def tick(done: int, of: int) -> None:
        tally(run.crossed, "training", talk.wire.ledger)
        if folder is not None:  # what crossed did so, even if this step will be repeated
            write_atomically(folder.path / LEDGER_FILE, to_csv(run.ledger))
        if progress is not None:
            progress(done, of)

    talk.train(keep=keep, tick=tick)
    test, off = scored(run.study, run.terms), {name: answer_scores(said)[0] for name, said in talk.off().items()}
    run.model = HostModel.of(run.study, sides.host, off)
    for name, side in sides.guests.items():
        run.model.learn(name, test, LocalGuest(run.study, talk, side))
    tally(run.crossed, "scoring", talk.wire.ledger)
    run.scores = score(run, sides)
    run.info["left"] = run.left()


def _vote(run: VerticalRun, sides: Sides, knn: Knn) -> None:
    """Nothing is trained; each guest away costs one answer of its own, and held-out rows are asked about once more."""
    rows, test, guests = sides.host.rows, scored(run.study, run.terms), run.study.guests
    assert rows.outcome is not None
    made = HostModel.of(run.study, sides.host, {})
    kept = {"k": torch.tensor([knn.k])}
    model = NeighbourModel(run.study, run.terms, made.encoder, kept, made.reference, made.people, {}, {}, {}, knn)
    x = sides.host.host.columns[test]
    own = knn_of(run.study, rows, sides.host.host.columns, run.terms, [], Wire())
    said = {ALONE: model.shares(own.predict(test)), TOGETHER: model.vote(x, test)}
    said |= {f"{name} away": model.vote(x, test, [name]) for name in guests}
    tally(run.crossed, "scoring", knn.wire.ledger)
    y = rows.outcome[rows.places][test.numpy()]
    known = ~np.isnan(y)
    run.model, run.info["left"] = model, run.left()
    run.scores = guest_values(run.study, y[known], {name: p[known] for name, p in said.items()}, run.seed)


def score(run: VerticalRun, sides: Sides, some: Tensor | None = None) -> pd.DataFrame:
    """On held-out rows whose outcome is known, or some of them: the host alone, together, and with each guest away. A
    guest that told nothing of a row is taken at its usual answer."""
    rows, test, model = sides.host.rows, scored(run.study, run.terms) if some is None else some, run.model
    assert rows.outcome is not None
    y = rows.outcome[rows.places][test.numpy()]
    known = ~np.isnan(y)
    alone = Dialogue(make_host(run.study, rows, run.terms, ()).host, [])
    alone.train()
    x, told = sides.host.host.columns[test], dict[str, Tensor]()
    for name, answers in model.told.items():
        told[name] = torch.where(answers[test].isnan(), model.usual[name], answers[test])
    said = {ALONE: alone.host.scores(alone.host.columns[test]), TOGETHER: model.scores(x, told)}
    for name in model.told:
        said[f"{name} away"] = model.scores(x, told | {name: model.usual[name].expand(len(test), -1)})
    trained = np.delete(rows.outcome[rows.places], test.numpy())
    levels = run.study.target.levels
    cut = decision_thresholds(run.study, trained[~np.isnan(trained)]) if levels else None
    shares = {name: model.answers(z)[known] for name, z in said.items()}
    return guest_values(run.study, y[known], shares, run.seed, thresholds=cut)


def _write_end(folder: Folder, run: VerticalRun, sides: Sides) -> None:
    """The finished run; run.json last, since it says so."""
    path = folder.path
    run.model.save(path / "parties" / run.study.host)
    for name, side in sides.guests.items():
        home = path / "parties" / name
        write_tensors(home / "model.safetensors", side.guest.state())
    wire = [{"party": p, **line._asdict()} for p in run.study.parties for line in lines(sides.talk, p)]
    for name, frame in (("scores", run.scores), ("ledger", run.ledger), ("wire", pd.DataFrame(wire))):
        write_atomically(path / f"{name}.csv", to_csv(frame))
    run.info["finished"] = True
    said = json.dumps(run.info, indent=1).encode()
    folder.seal("finished", {"run.json": said}, common=run.match.common)
    write_atomically(path / "run.json", said)
    folder.drop_checkpoints()
