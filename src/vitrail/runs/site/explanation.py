"""Why a site's own model says of its rows what it says (analysis/explanations/rows.py), by the study's features, in
their units.

Off is the typical row: the median of each number and the most frequent level of each other feature, over the site's
training rows; of a network that declares that it takes missing values, a row of these. Explained is the log odds of a
class, or the number that is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.analysis.explanations.rows import (
    NOTHING,
    Explanation,
    answers_of,
    columns_of,
    explain_rows,
    takes_missing,
)
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.encoding import fingerprint_rows, rows_as_text, typical_row
from vitrail.data.persons import as_numbers, one_row_each
from vitrail.data.readers.tables import clean, read_sites
from vitrail.data.splitting import hold_out
from vitrail.metrics.survival import end_words
from vitrail.runs.result import Model, Run
from vitrail.study.model import Study

TYPICAL = "the median of each number and the most frequent level of each other feature, over "
TRAINED = "the site’s training rows"
GIVEN = "the rows of this file, which are not those that the run saw"
NAMED = "the rows given as reference"


def explain_model(
    mine: Model,
    site: str,
    frame: pd.DataFrame,
    seen: str | None,
    rows: int | Sequence[Any],
    seed: int = 1,
    outcome: str | None = None,
    reference: pd.DataFrame | None = None,
) -> Explanation:
    """As `Run.explain` says; `seen`: the fingerprint of the rows that the run saw, where it is known."""
    study, target = mine.study, mine.study.target
    check_tables(study)
    cleaned = _features_of(frame, study)
    at, problems = _choose(cleaned, one_row_each(as_numbers(frame, study), study), rows, seed)
    if outcome is not None and outcome not in target.levels:
        hint = nearest(outcome, target.levels) if target.levels else f"It is a {target.kind}: leave --outcome out."
        problems.append(Problem("--outcome", f"{target.column} has no class {outcome!r}.", hint))
    back, whose = (
        _training_rows(mine, site, frame, seen) if reference is None else (_features_of(reference, study), NAMED)
    )
    if len(back) < 2:
        what = f"expected at least 2 rows to take the reference from, got {len(back)}."
        problems.append(Problem("reference", what, "Give the site's own file beside new rows: --reference FILE."))
    if problems:
        raise VitrailError("cannot explain", problems)
    off, means = typical_row(back, study), TYPICAL + whose
    source = mine.encoder.layout.source
    groups = [np.flatnonzero(source == i).tolist() for i in range(len(study.features))]
    task, scorer = mine.scorer()
    encoded = mine.encoder.matrix(off).astype(np.float32)
    if takes_missing(task.net):
        off, encoded, means = off * np.nan, np.full_like(encoded, np.nan), NOTHING
    scale, center = (target.scale, target.center) if target.kind == "number" else (1.0, 0.0)
    level = outcome if outcome is not None else target.levels[-1] if target.levels else None
    answers = answers_of(scorer, task.loss, target.levels.index(level) if level is not None else 0)
    explanation = explain_rows(
        lambda x: answers(x) * scale + center,  # the site's constant is in the answers already
        mine.encoder.matrix(cleaned.iloc[at]).astype(np.float32),
        encoded,
        list(study.features),
        groups,
        data=rows_as_text(cleaned.iloc[at], study),
        means=means,
        seed=seed,
    )
    unit = f" in {target.unit}" if target.unit else ""
    if target.kind == "time":
        answer = f"“{target.column}” by {end_words(target.ends, target.unit)[-1]}"
    else:
        answer = f"{target.column}{unit}" if level is None else f"{target.column} = {level}"
    event = target.kind == "time" or (len(target.levels) == 2 and level == target.levels[-1])
    return replace(
        explanation,
        answer=answer,
        scale="hazard" if target.kind == "time" else "odds" if level is not None else "number",
        chance="risk" if event else "probability",
        rows=tuple(str(name) for name in cleaned.index[at]),
        columns=columns_of(off, study),
        each=study.unit_word if study.person_column and isinstance(rows, int) else "",
    )


def explain_sites(
    run: Run, data: Path, rows: int, seed: int = 1, outcome: str | None = None, refuse: Sequence[str] = ()
) -> dict[str, Explanation]:
    """Of all sites whose files are there and that do not refuse, under the names by which they publish."""
    check_tables(run.study)
    frames = read_sites(data, run.study)
    problems = [
        Problem("--refuse", f"there is no site {s!r}.", nearest(s, run.sites)) for s in refuse if s not in run.sites
    ]
    problems += [
        Problem(f"--data, {s}", "the run has no such site.", nearest(s, run.sites))
        for s in frames
        if s not in run.sites
    ]
    if problems:
        raise VitrailError("cannot explain", problems)
    shown = [s for s in frames if s not in refuse]
    return {run.published_name(s): run.explain(s, frames[s], rows, seed, outcome) for s in shown}


def check_tables(study: Study) -> None:
    if study.images:
        what = "the study is of pictures, which have no columns."
        raise VitrailError(
            "cannot explain", [Problem("the study", what, "To see what a model looks at: vitrail look.")]
        )


def _features_of(frame: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Whether a row has a target does not matter."""
    return clean(frame.drop(columns=study.target.column, errors="ignore"), study, need_target=False)


def _choose(
    cleaned: pd.DataFrame, each: NDArray[np.int64], rows: int | Sequence[Any], seed: int
) -> tuple[NDArray[np.int64], list[Problem]]:
    """Places of the rows to be explained. Where they are drawn, they are drawn from `each`, in which no person has two
    rows: means, intervals and thresholds are then about persons."""
    if isinstance(rows, int):
        if rows < 1 or not len(cleaned):
            what = "there are no rows." if rows > 0 else f"expected at least 1, got {rows}."
            return np.zeros(0, np.int64), [Problem("--rows", what)]
        return np.sort(np.random.default_rng(seed).permutation(each)[:rows]), []
    names = {str(name): i for i, name in enumerate(cleaned.index)}
    bad = [r for r in rows if str(r) not in names]
    span = f"They go from {cleaned.index[0]} to {cleaned.index[-1]}." if len(cleaned) else "There are none."
    hint = f"{span} The header is line 1, and `vitrail predict` writes the line of each row."
    problems = [Problem("--row", f"there is no row {r}.", hint) for r in bad]
    return np.array([names[str(r)] for r in rows if str(r) in names], np.int64), problems


def _training_rows(mine: Model, site: str, frame: pd.DataFrame, seen: str | None) -> tuple[pd.DataFrame, str]:
    """Those that the run trained on, where the file holds them; else all of it."""
    with suppress(VitrailError):  # rows whose target does not fit the study are explained too
        whole = clean(frame, mine.study)
        if len(whole) > 1 and seen in (None, fingerprint_rows(whole)):
            return whole.iloc[hold_out(whole, mine.study, mine.seed, site)[0]], TRAINED
    return _features_of(frame, mine.study), GIVEN
