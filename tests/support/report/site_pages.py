"""A made-up site's private page."""

from __future__ import annotations

import numpy as np
import pandas as pd

import vitrail as vt
from vitrail.data.encoding import fit_encoders
from vitrail.data.readers.tables import clean
from vitrail.quality.repair.effective_values import InputLayers
from vitrail.quality.repair.inspection import SiteInspection, inspect_site
from vitrail.quality.screening.result import Finding

STUDY = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
NAME = "St. <b>Mary's</b> & Söhne"


def told(site: str = NAME, frame: pd.DataFrame | None = None) -> SiteInspection:
    """Every kind of picture: numbers with an outline, codes, the label, a column without a value."""
    frame = vt.datasets.heart_disease()["switzerland"] if frame is None else frame
    encoder = fit_encoders({site: clean(frame, STUDY)}, STUDY)[site]
    one = np.ones(len(encoder.columns))
    marks = [("oldpeak", "unit", {"factor": 0.5}), ("cp", "recoded", {"levels": {"1": "2", "2": "1"}})]
    marks += [("(label)", "label flip", {}), ("thalach", "differs", {})]
    findings = [Finding(site, f, k, k != "differs", 1.0, f"{site}, {f}: something", n) for f, k, n in marks]
    ends = InputLayers(0.3 * one, 1.4 * one, 0 * one, one, 3)
    return inspect_site(
        site, frame, STUDY, encoder, findings, ["chol", "exang"], ends=ends, same=False, study=STUDY.name
    )
