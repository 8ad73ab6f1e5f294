"""From the tables of a study with parties to a run folder: match, train with checkpoints, score, keep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.runs.evaluation import decision_thresholds
from vitrail.runs.folder import Folder
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.study.model import Study
from vitrail.vertical.guest_value import WORTH, guest_values
from vitrail.vertical.matching.match import Match
from vitrail.vertical.matching.match import match as match_parties
from vitrail.vertical.neighbour_model import NeighbourModel, knn_of
from vitrail.vertical.run import Sides, Tables, VerticalRun, build
from vitrail.vertical.store import LEDGER_FILE, PLACES, read_crossed, read_info, write_end, write_start
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.host_model import HostModel
from vitrail.vertical.training.knn import Knn
from vitrail.vertical.training.party_side import make_host, scored
from vitrail.vertical.wire import Wire

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
        raise VitrailError(
            "cannot train", [Problem("[parties]", what, "For sites that have rows of their own, use federate.")]
        )
    chosen, folder, before = study.seeds[0] if seed is None else seed, None, None
    path = None if out is None else Path(out)
    if path is not None:
        folder = Folder(path, resume=resume)
    begun = resume
    try:
        if folder is not None and resume:
            before = _to_resume(folder.path, study, chosen)
            match = Match.read([folder.path / "parties" / p / PLACES for p in study.parties], str(path))
        places = match or match_parties(study, tables)
        if counted is not None:
            counted(places)
        sides = build(study, tables, places, chosen, folder.path / "parties" if folder is not None and resume else None)
        run = VerticalRun.begin(study, places, sides, chosen, HostModel.of(study, sides.host, {}))
        run.path, run.info = path, before or run.info
        if folder is not None and before is None:
            begun = True
            write_start(run, folder.path, data)
            folder.log("matched", common=places.common)
        elif folder is not None and before is not None and before.get("finished"):
            return VerticalRun.load(folder.path)
        _train(run, sides, folder, progress, resume)
        if folder is not None:
            _end(run, folder)
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
        what, hint = "it was started with a different study or seed.", "Choose another --out."
        raise VitrailError("this is another run", [Problem(str(path), what, hint)])
    return info


def _end(run: VerticalRun, folder: Folder) -> None:
    common = run.match.common
    write_end(run, folder.path, lambda text: folder.seal("finished", {"run.json": text}, common=common))
    folder.drop_checkpoints()


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
        run.tally("training")
        if folder is not None:  # what crossed did so, even if this step will be repeated
            write_atomically(folder.path / LEDGER_FILE, to_csv(run.ledger))
        if progress is not None:
            progress(done, of)

    talk.train(keep=keep, tick=tick)
    run.model = HostModel.of(run.study, sides.host, answers_off(talk))
    score_held_out(run, sides)


def answers_off(talk: Dialogue) -> dict[str, Tensor]:
    """[answer] of each guest that is there, with its columns at its reference."""
    return {name: answer_scores(answer)[0] for name, answer in talk.off().items()}


def _vote(run: VerticalRun, sides: Sides, knn: Knn) -> None:
    """Nothing is trained; each guest away costs one answer of its own, and held-out rows are asked about once more."""
    rows, test, guests = sides.host.rows, scored(run.study, run.terms), run.study.guests
    assert rows.outcome is not None
    k = {"k": torch.tensor([knn.k])}
    plain = run.model
    model = NeighbourModel(run.study, run.terms, plain.encoder, k, plain.reference, plain.people, {}, {}, {}, knn)
    x = sides.host.host.columns[test]
    own = knn_of(run.study, rows, sides.host.host.columns, run.terms, [], Wire())
    shares = {ALONE: model.shares(own.predict(test)), TOGETHER: model.vote(x, test)}
    shares |= {f"{name} away": model.vote(x, test, [name]) for name in guests}
    run.tally("scoring")
    y = rows.outcome[rows.places][test.numpy()]
    present = ~np.isnan(y)
    run.model, run.info["left"] = model, run.left()
    run.scores = guest_values(run.study, y[present], {name: p[present] for name, p in shares.items()}, run.seed)


def score_held_out(run: VerticalRun, sides: Sides) -> int:
    """Guests are asked about held-out rows whose outcome the host knows, of others nobody need be asked, as far as
    their rations go; then all is scored, on as many rows as all have told of. How many there were."""
    rows, test = sides.host.rows, scored(run.study, run.terms)
    assert rows.outcome is not None
    test = test[torch.from_numpy(~np.isnan(rows.outcome[rows.places][test.numpy()]))]
    fit, away = run.learn(test), sorted(sides.talk.mailbox.away)
    run.tally("scoring")
    some = test[: min((n for name, n in fit.items() if name not in away), default=len(test))]
    run.scores = score(run, sides, some) if len(some) else pd.DataFrame(columns=WORTH)
    run.info |= {"scored": len(some), "away": away, "left": run.left()}
    return len(test)


def score(run: VerticalRun, sides: Sides, test: Tensor) -> pd.DataFrame:
    """On these held-out rows: the host alone, together, and with each guest away. A guest that told nothing of a row is
    taken at its usual answer."""
    rows, model = sides.host.rows, run.model
    assert rows.outcome is not None
    alone = Dialogue(make_host(run.study, rows, run.terms, ()).host, [])
    alone.train()
    x, answers = sides.host.host.columns[test], dict[str, Tensor]()
    for name, of_all in model.guest_answers.items():
        answers[name] = torch.where(of_all[test].isnan(), model.usual[name], of_all[test])
    z = {ALONE: alone.host.scores(alone.host.columns[test]), TOGETHER: model.scores(x, answers)}
    for name in model.guest_answers:
        z[f"{name} away"] = model.scores(x, answers | {name: model.usual[name].expand(len(test), -1)})
    y = rows.outcome[rows.places]
    trained = np.delete(y, test.numpy())
    levels = run.study.target.levels
    cut = decision_thresholds(run.study, trained[~np.isnan(trained)]) if levels else None
    shares = {name: model.answers(one) for name, one in z.items()}
    return guest_values(run.study, y[test.numpy()], shares, run.seed, thresholds=cut)
