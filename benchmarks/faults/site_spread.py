"""How much sites really differ, by kind of quantity: the yardstick that the screening ships, from public multi-site tables.

    VITRAIL_DATA=... python benchmarks/faults/site_spread.py     # writes src/vitrail/quality/screening/site_spread.py

For each table with its real sites, each test of the screening has a variance between sites beyond chance (moments). By
family of tests and kind of column: the median over a table's tests, then over tables. Tables: heart disease (4
hospitals), GUSTO (16 regions), IMPACT (15 studies), ISIC (6 centres), COVID tests (41 clinics), Ebola (14 districts),
ABIDE (20 sites), where a quantity that is no patient's, such as a rater's note, is left out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import fault_tables as tables
import numpy as np
import pandas as pd
from fault_tables import Rows

import vitrail as vt
from vitrail.data.readers.tables import clean
from vitrail.quality.screening import coordinator
from vitrail.quality.screening.site_summaries import PREDICTED
from vitrail.quality.screening.statistics import SiteTests

OUT = Path(vt.__file__).parent / "quality" / "screening" / "site_spread.py"


def folder() -> Path:
    return Path(os.environ["VITRAIL_DATA"])


def impact() -> tuple[pd.DataFrame, str, str]:
    rows = pd.read_csv(folder() / "impact_tbi" / "impact_tbi.csv", keep_default_na=False, na_values=[""])
    return rows.drop(columns=["type"], errors="ignore"), "study", "mort"


def isic() -> tuple[pd.DataFrame, str, str]:
    rows = pd.read_csv(folder() / "fed_isic2019_table" / "fed_isic2019.csv")
    return rows[["center", "diagnosis", "age_approx", "gender", "anatom_site_general"]], "center", "diagnosis"


def covid() -> tuple[pd.DataFrame, str, str]:
    rows = pd.read_csv(folder() / "covid_testing_chop" / "covid_testing.csv")
    rows = rows.drop(columns=["subject_id", "ct_result"])
    rows = rows[rows.result.isin(["positive", "negative"])]
    return rows[rows.clinic_name.map(rows.clinic_name.value_counts()) >= 20], "clinic_name", "result"


def abide() -> tuple[pd.DataFrame, str, str]:
    """What follows from the diagnosis is left out."""
    rows = pd.read_csv(folder() / "abide1_phenotypes" / "abide1.csv")
    follows = ("ADI", "ADOS", "DSM", "SCQ", "SRS", "VINELAND", "AQ", "WISC", "COMORB", "CURRENT_MED", "MEDICATION")
    other = ("OFF_STIM", "SUB_ID", "X", "subject", "FILE_ID", "EYE", "qc_", "SUB_IN_SMP")
    return rows.drop(columns=[c for c in rows if c.startswith((*follows, *other))]), "SITE_ID", "DX_GROUP"


AS_THEY_ARE: dict[str, Callable[[], tuple[pd.DataFrame, str, str]]] = {
    "impact": impact,
    "isic": isic,
    "covid": covid,
    "abide": abide,
}


def sites_of(name: str, codes: bool = False) -> tuple[Rows, vt.Study]:
    """The cleaned rows of each real site, and the study; `codes`: those for missing values are left as numbers."""
    if name not in AS_THEY_ARE:
        return tables.natural(name), tables.study_of(name)
    rows, by, target = AS_THEY_ARE[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = vt.Study.infer({"all": rows.drop(columns=by)}, target)
        if codes:
            study = study.model_copy(update={"missing": ()})
        out = {str(k): clean(v.drop(columns=by).reset_index(drop=True), study) for k, v in rows.groupby(by)}
    return {k: v.reset_index(drop=True) for k, v in out.items()}, study


def spreads(rows: Rows, study: vt.Study) -> dict[str, float]:
    """{family, kind: the median variance between sites of a table's tests}."""
    kept: list[SiteTests] = []

    def note(published: object, alpha: float) -> tuple[list[object], pd.DataFrame]:
        kept.append(SiteTests(published, alpha))  # type: ignore[arg-type]
        return [], pd.DataFrame()

    judge, coordinator.judge = coordinator.judge, note  # type: ignore[assignment]
    try:
        coordinator.screen(rows, study)
    finally:
        coordinator.judge = judge
    tests = kept[0]
    kinds, out = np.array(tests.kinds()), dict[str, float]()
    for key in np.unique(kinds):
        t, df = tests.spread_between()[:, kinds == key], tests.freedom()[:, kinds == key]
        if (df > 0).any():
            out[str(key)] = max(0.0, float(np.median(t[df > 0])))
    return out


def main() -> None:
    found: dict[str, list[float]] = {}
    for name in ("heart", "gusto", "ebola", *AS_THEY_ARE):
        for key, value in spreads(*sites_of(name)).items():
            found.setdefault(key, []).append(value)
    lines = [
        '"""How much hospitals differ: made by benchmarks/faults/site_spread.py from public multi-site tables.',
        "",
        "{family of tests, kind of column: variance between sites beyond chance}, the median over tables; behind it, how",
        "many tables have such a column.",
        '"""',
        "",
        "SITE_SPREAD = {",
    ]
    for key, values in sorted(found.items()):
        if not key.startswith(PREDICTED):  # how well outcomes are predicted is compared among these sites alone
            lines.append(f'    "{key}": {np.median(values):.4g},  # {len(values)}')
    OUT.write_text("\n".join([*lines, "}", ""]))
    print(OUT.read_text())


if __name__ == "__main__":
    main()
