"""Phase C after a run: what a site needs of it to look at its own rows (quality/repair/inspection.py) or pictures
(album.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.analysis.images.gallery import Album, make_album, picture_title
from vitrail.analysis.images.picture_evidence import CasePicture, ViewedModel
from vitrail.analysis.images.prototype_evidence import make_seen
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.facts import ALONE, ENDS, INPUT_FACTOR, INPUT_SHIFT, OWN
from vitrail.core.losses import UncertaintyLoss, log_shares
from vitrail.data.encoding import fingerprint_rows
from vitrail.data.readers.images import MisfitError, fit_cells
from vitrail.data.readers.tables import clean
from vitrail.quality.known_findings import mark_known
from vitrail.quality.repair.effective_values import InputLayers
from vitrail.quality.repair.inspection import HeldOutView, SiteInspection, inspect_site
from vitrail.quality.screening.result import LABEL, Finding
from vitrail.runs.private_layers import SYMBOLS
from vitrail.runs.result import Model, Run
from vitrail.runs.setup import build_task
from vitrail.runs.site.holdout import summarise_own
from vitrail.runs.site.prototype_removal import OPTION, compare_without, correct, held_out_of, scores_beside
from vitrail.study.known_findings import KnownFinding
from vitrail.study.model import Study


class SiteBriefing(NamedTuple):
    """What a coordinator can tell one site about itself: enough for the site to look, and nothing of one other site."""

    findings: list[Finding]
    layers: dict[str, Tensor] = {}  # noqa: RUF012  the mean of the layers that the others published; empty without any
    others: int = 0  # how many did
    judged: bool = True  # whether the site was compared with the others at all
    pooled: dict[str, Any] = {}  # noqa: RUF012  what all sites published together


def behind(run: Run, site: str) -> SiteBriefing:
    public_name, table = run.published_name(site), run.shift_table
    means, others = dict[str, Tensor](), 0
    for key, layer in SYMBOLS.items() if table is not None and len(table) else ():
        assert table is not None
        there = table[(table.layer == layer) & (table.site != public_name)]
        if len(there):
            wide = there.pivot(index="site", columns="feature", values="value")
            values = wide[list(dict.fromkeys(there.feature))].dropna().to_numpy(dtype=np.float64)
            if others := len(values):
                means[key] = torch.from_numpy(values.mean(0))
    sites = run.screening.sites if run.screening else None
    judged = sites is not None and bool(sites.loc[sites["site"] == public_name, "judged"].eq(True).any())
    pooled = run.screening.pooled if run.screening else {}
    return SiteBriefing([f for f in run.findings() if f.site == public_name], means, others, judged, pooled)


def look_behind(
    run: Run,
    site: str,
    frame: pd.DataFrame,
    features: Sequence[str] = (),
    pictures: Sequence[str] = (),
    without: Sequence[str] = (),
    answers: Sequence[KnownFinding] = (),
) -> SiteInspection | Album:
    """The facts about this site's findings and about the columns it names, from its own table; or its pictures, and
    what its model says of them `without` some prototypes."""
    problems = []
    if site not in run.sites:
        problems.append(Problem("--site", f"there is no site {site!r}.", nearest(site, run.sites)))
    elif site not in run.models:
        what = f"the model of {site!r} is on its own machine."
        problems.append(Problem("--site", what, "Look there: vitrail look --kit KIT --data FILE."))
    if problems := problems + unknown(run.study, features, pictures, without):
        raise VitrailError("cannot look", problems)
    if run.study.images:
        return look_through(site, frame, run.model_of(site), run.info["fingerprints"].get(site), pictures, without)
    briefing = with_answers(behind(run, site), answers, run.study)
    return look_at(site, frame, run.model_of(site), briefing, features, run.info["fingerprints"].get(site))


def with_answers(briefing: SiteBriefing, answers: Sequence[KnownFinding], study: Study) -> SiteBriefing:
    """The findings, those marked that the site's own file answers."""
    return briefing._replace(findings=mark_known(briefing.findings, answers, study.target.column))


def unknown(
    study: Study, features: Sequence[str], pictures: Sequence[str] = (), without: Sequence[str] = ()
) -> list[Problem]:
    """Of the columns that somebody names, those that the study has not."""
    given = {"--picture": pictures, OPTION: without}
    if not study.images and any(given.values()):
        hint = "Leave it out, or name columns by --feature."
        return [Problem(flag, "the study is of tables.", hint) for flag, values in given.items() if values]
    if study.images and features:
        what = "the study is of pictures, and has no columns."
        return [Problem("--feature", what, "Leave it out: the pictures themselves are shown.")]
    columns = (*study.plain.features, study.target.column, LABEL)
    bad = [name for name in features if name not in columns]
    return [Problem("--feature", f"the study has no column {n!r}.", nearest(n, columns[:-1])) for n in bad]


def look_at(
    site: str, frame: pd.DataFrame, mine: Model, briefing: SiteBriefing, features: Sequence[str], seen: str | None
) -> SiteInspection:
    """`seen`: the fingerprint of the rows that the run saw, where it is known."""
    study, ends = mine.study, None
    own, sides = mine.models()[OWN], [ENDS[what] for what in (INPUT_SHIFT, INPUT_FACTOR)]
    if briefing.layers:
        (b, w), (b_others, w_others) = (
            [layers[k].double().numpy().ravel() for k in sides] for layers in (own, briefing.layers)
        )
        ends = InputLayers(b, w, b_others, w_others, briefing.others)
    same = seen in (None, fingerprint_rows(clean(frame, study)))
    inspection = inspect_site(
        site,
        frame,
        study,
        mine.encoder,
        briefing.findings,
        features,
        ends=ends,
        # what a model expects of times to an event is not read the other way round
        expects=_Expects(mine, briefing.layers) if briefing.layers and study.target.kind != "time" else None,
        same=same,
        study=study.name,
        private=sides[0] in own,
        judged=briefing.judged,
        pooled=briefing.pooled,
    )
    return inspection._replace(performance=HeldOutView(study, summarise_own(mine, site, frame)) if same else None)


def look_through(
    site: str,
    frame: pd.DataFrame,
    mine: Model,
    fingerprint: str | None,
    pictures: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Album:
    """The site's own pictures beside what its model says of them, and what it looks at. `pictures`: those to be taken
    apart, of these or files of others; without any, the first of each gallery. `fingerprint` of the pictures that the
    run saw, where known. `without`: prototypes to take out of a copy of the model, CLASS:NUMBER."""
    study, rows = mine.study, clean(frame, mine.study)
    y = rows[study.target.column].to_numpy()
    held_out = held_out_of(site, rows, mine, fingerprint)
    names, levels = [picture_title(n) for n in rows.index], study.target.levels
    new = _other_pictures(study, [n for n in pictures if n not in names], names)
    correction = correct(mine, site, frame, fingerprint, without) if without else None
    task, scorer = mine.scorer()
    pixels = mine.encoder.matrix(rows)
    z = scorer(torch.from_numpy(pixels))
    assert isinstance(task.loss, UncertaintyLoss)  # of classes, and pictures are told apart by classes
    numbers = task.loss.predictions(z).double().numpy(), task.loss.uncertainty(z).double().numpy()
    about = site, study.name, study.target.column, levels
    album = make_album(*about, names, pixels, y, *numbers, held_out)
    cases = dict.fromkeys(n for n in pictures if n in names)
    if not pictures:
        cases = dict.fromkeys(g.shots[0].name for g in album.galleries)
    at = {name: i for i, name in enumerate(names)}
    taken = [*(CasePicture(n, pixels[at[n]], levels[y[at[n]]]) for n in cases), *new]
    held = mine.models()
    sights, beside = [ViewedModel("your model", scorer, held[OWN])], list[ViewedModel]()
    if ALONE in held:
        alone = {k: v[None] for k, v in held[ALONE].items()}
        sights.append(
            ViewedModel("trained on your pictures alone", lambda x: task.output(alone, x[None])[0], held[ALONE])
        )
    removal = None
    if correction is not None:
        removal = compare_without(mine, correction, rows, pixels, names, held_out)
        beside.append(ViewedModel(removal.title, scores_beside(mine, correction), {}))
    learned = np.ones(len(y), bool) if held_out is None else ~held_out
    seen = make_seen(task.net, sights, pixels, y, names, levels, learned, task.loss.predictions, taken, beside)
    return album._replace(seen=seen, removal=removal)


def _other_pictures(study: Study, places: Sequence[str], names: Sequence[str]) -> list[CasePicture]:
    """Files of pictures that are not among the site's, brought to what the sites agreed on."""
    assert study.images
    problems = list[Problem]()
    for place in places:
        if not Path(place).is_file():
            what = f"there is no picture {place!r} in --data, and no such file."
            problems.append(Problem("--picture", what, nearest(place, names)))
    files = [Path(place) for place in places if Path(place).is_file()]
    fitted = list(zip(files, fit_cells(files, study.images), strict=True)) if files else []
    wrong = [(file, cell) for file, cell in fitted if isinstance(cell, MisfitError)]
    problems += [Problem(f"--picture {file}", f"{cell.what}.", cell.hint) for file, cell in wrong]
    if problems:
        raise VitrailError("cannot look", problems)
    return [CasePicture(str(file), cell) for file, cell in fitted]


class _Expects:
    """The shared model, with the others' mean layers, on this site's rows."""

    def __init__(self, mine: Model, layers: dict[str, Tensor]) -> None:
        self.mine, self.task = mine, build_task(mine.study, mine.method, mine.seed)
        own = mine.models()[OWN]
        fitted = {k: layers[k].to(v).reshape(v.shape) if k in layers else v for k, v in own.items()}
        self.params = {k: v[None] for k, v in fitted.items()}

    def __call__(self, rows: pd.DataFrame) -> NDArray[np.float64]:
        x = torch.from_numpy(self.mine.encoder.matrix(rows)).float()[None]
        with torch.no_grad():
            z = self.task.output(self.params, x)[0].double()
        return np.asarray((z if self.mine.study.target.kind == "number" else log_shares(self.task.loss, z)).numpy())
