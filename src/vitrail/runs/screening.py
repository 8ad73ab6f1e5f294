"""Whose data does not fit, before the first round of a run: asked where the rows are at hand, kept in its folder."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import clean_sites, fingerprint_rows
from vitrail.data.schema import TableSchema
from vitrail.engine.contract import WireEntry
from vitrail.quality.known_findings import with_known
from vitrail.quality.screening import parts
from vitrail.quality.screening.result import Finding, Screening, without_sites
from vitrail.runs.folder import read_json, unreadable
from vitrail.storage.atomic_files import write_atomically
from vitrail.study.model import Study

SCREEN = "screen.json"
SCREENING = "screen: "  # what the stages of the wire begin with
REFUSED = "it does not publish"
FILLED = ("why not", "same rows", "digest")
Ask = Callable[[], Screening | None]
CACHED = 64  # screenings
_CACHE: dict[str, Screening] = {}


def screens(study: Study) -> bool:
    """Whether sites are asked before the first round; pictures have no columns to compare."""
    return study.screen.ask and not study.images and not study.parties


def unscreened(study: Study) -> Study:
    """The same study for runs that are one of many on the same rows: these are screened once for all."""
    return study.model_copy(update={"screen": study.screen.model_copy(update={"ask": False})})


def screen_rows(
    study: Study,
    cleaned: Mapping[str, pd.DataFrame],
    refuse: Collection[str] = (),
    pseudonyms: Mapping[str, str] | None = None,
) -> Screening:
    """Sites whose rows are on this machine, under the names and in the order that they publish under.

    Methods, seeds and folds are tried on the same rows one after the other, and what screening says of rows is always
    the same: the last few screenings of this process are kept.
    """
    key = screening_key(study, cleaned, refuse, pseudonyms)
    screening = _CACHE.pop(key, None)
    if screening is None:
        screening = _screened(study, cleaned, refuse, pseudonyms)
        while len(_CACHE) >= CACHED:
            del _CACHE[next(iter(_CACHE))]
    _CACHE[key] = screening  # the last used is the last to go
    return with_known(copy.deepcopy(screening), study.known.values(), study.target.column)


def screening_key(
    study: Study,
    cleaned: Mapping[str, pd.DataFrame],
    refuse: Collection[str] = (),
    pseudonyms: Mapping[str, str] | None = None,
) -> str:
    """Of everything that a screening depends on: another cell, site, column, order or name gives another key."""
    schema = study.model_dump_json(include=set(TableSchema.model_fields))
    rows = [(site, len(frame), fingerprint_rows(frame)) for site, frame in cleaned.items()]
    names = sorted((pseudonyms or {}).items())
    return hashlib.sha256(json.dumps([schema, rows, sorted(refuse), names]).encode()).hexdigest()


def _screened(
    study: Study, cleaned: Mapping[str, pd.DataFrame], refuse: Collection[str], pseudonyms: Mapping[str, str] | None
) -> Screening:
    from vitrail.quality.screening import screen  # with scipy, which `vitrail wire` needs not

    public_name = {site: (pseudonyms or {}).get(site, site) for site in cleaned}
    ranked = sorted(cleaned, key=lambda site: public_name[site]) if pseudonyms else list(cleaned)
    screening = screen({public_name[site]: cleaned[site] for site in ranked if site not in refuse}, study)
    screening = with_silent(screening, {public_name[s]: REFUSED if s in refuse else "" for s in ranked})
    return _without_sizes(screening) if pseudonyms else screening


def _without_sizes(screening: Screening) -> Screening:
    """Without what would tell who a pseudonym is: how many rows a site has is written beside its own name, and shares
    of rows tell how many there are."""
    evidence = without_sites(screening.evidence)
    return screening._replace(sites=screening.sites.assign(rows=np.nan, digest=""), evidence=evidence)


def with_silent(screening: Screening, why: Mapping[str, str]) -> Screening:
    """With sites that published nothing, and why; all of them in this order."""
    silent = [{"site": site, "judged": False, "why not": reason} for site, reason in why.items() if reason]
    sites = pd.concat([screening.sites, pd.DataFrame(silent)], ignore_index=True) if silent else screening.sites
    sites = sites.set_index("site").reindex(list(why)).reset_index()
    sites = sites.assign(judged=sites["judged"].eq(True), **{k: sites[k].fillna("") for k in FILLED if k in sites})
    return screening._replace(sites=sites)


def screen_sites(study: Study, sites: Mapping[str, pd.DataFrame]) -> Screening:
    """Whose data does not fit, from raw tables; nothing is trained. The result prints itself as text.

    `study` describes the columns, `sites` has the table of each site. Pages show the `findings`, `cells`, `sites` and
    `pooled` of the result.
    """
    problems = []
    if study.images:
        problems.append(Problem("study", "it is of pictures, which have no columns to compare.", "Use vitrail check."))
    if study.parties:
        what = "its parties hold different columns of the same people, so there are no columns to compare."
        problems.append(Problem("parties", what, "Use vitrail check."))
    if problems:
        raise VitrailError("this cannot be screened", problems)
    return screen_rows(study, clean_sites(sites, study))


def screen_lines(study: Study) -> list[WireEntry]:
    """What a screening exchanges, leg by leg: nothing of a site that refuses."""
    if not screens(study):
        return []
    return [
        WireEntry(
            f"{SCREENING}{part.leg}",
            part.direction,
            part.name,
            part.shape,
            "float64",
            8 * math.prod(part.shape),
            1,
            "sum" if part.total else "each",
            words=part.means,
            asks=True,
        )
        for part in parts(study)
    ]


def save_screening(path: Path, screening: Screening) -> None:
    frames = {"cells": screening.cells, "sites": screening.sites}
    content: dict[str, Any] = {
        "format": 1,
        "alpha": screening.alpha,
        "findings": [f._asdict() for f in screening.findings],
    }
    content |= {k: {name: _plain(frame[name].tolist()) for name in frame} for k, frame in frames.items()}
    content |= {"pooled": screening.pooled, "evidence": screening.evidence}
    write_atomically(path, json.dumps(_plain(content)))


def as_kept(findings: list[Finding]) -> list[Finding]:
    """As they are when they are read again."""
    return [f._replace(strength=float(f.strength), numbers=_plain(f.numbers)) for f in findings]


def load_screening(path: Path) -> Screening | None:
    """What a run or `vitrail screen` kept; None where there is none."""
    if not path.exists():
        return None
    content = read_json(path)
    try:
        cells, sites = (pd.DataFrame(content[k]) for k in ("cells", "sites"))
        for frame, numbers in ((cells, ("strength",)), (sites, ("rows", "numbers"))):
            for name in numbers:
                frame[name] = frame[name].astype(float)  # None: unknown
        findings, evidence = [Finding(**f) for f in content["findings"]], content.get("evidence", {})
        return Screening(findings, cells, sites, content["alpha"], content["pooled"], evidence)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(path, error) from None


def _plain(value: Any) -> Any:
    """What JSON holds; None for what is no number."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
