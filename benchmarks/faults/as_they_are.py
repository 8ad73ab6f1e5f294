"""Real sites as they are, nothing planted: what does the screening call likely wrong, and is it?

    VITRAIL_DATA=... python benchmarks/faults/as_they_are.py      # writes results/as_they_are.md
    VITRAIL_DATA=... PYTHONPATH=OLD/src python benchmarks/faults/as_they_are.py --out as_they_are_before.md

OLD: a checkout of commit cc2ee8c0, the form before.

Each finding was looked at by eye; what was seen is below (SEEN). ABIDE has an answer key: -9999 for what was not measured.
It is screened as `vitrail init` would draft it, which reads that as missing, and with the numbers left as they are.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from fault_tables import Rows
from site_spread import AS_THEY_ARE, sites_of

import vitrail as vt
from vitrail.data.readers.tables import clean
from vitrail.quality.screening import Screening, screen

OUT = Path(__file__).parent / "results" / "as_they_are.md"
CODE = -9999
PUBLISHED = 5  # rows with one value, from which a site publishes it
SEEN = {
    ("heart", "switzerland", "chol"): "true: cholesterol was not measured there, and 0 was written in all 123 rows",
    (
        "ebola",
        "Pujehun",
        "delay",
    ): "not shown to be a fault: in this small district the delay goes otherwise with the day",
    ("chile", "SA", "population"): "real: the capital's region has one large town, written in every row",
    ("abide", "CALTECH", "anat_efc"): "true by the key: values of about -22, elsewhere about 1.7",
    ("abide", "CALTECH", "anat_snr"): "true by the key: values of about 303, elsewhere about 17",
    ("abide", "MAX_MUN", "FIQ_TEST_TYPE"): "true: the level -9999 is no test",
    ("abide", "OLIN", "FIQ_TEST_TYPE"): "true: the level -9999 is no test",
    ("abide", "UM_1", "HANDEDNESS_CATEGORY"): "true by the key: the level -9999 is no hand",
    ("abide", "PITT", "HANDEDNESS_CATEGORY"): "true by the key: the level -9999 is no hand",
    ("abide", "UM_2", "HANDEDNESS_CATEGORY"): "true by the key: the level -9999 is no hand",
    ("abide", "SBL", "FIQ"): "true by the key: 25 of 30 values are -9999",
    ("abide", "SBL", "VIQ"): "true by the key: 17 of 30 values are -9999",
    ("abide", "SBL", "PIQ"): "true by the key: 17 of 30 values are -9999",
    ("abide", "SBL", "BMI"): "true by the key: 22 of 30 values are -9999",
    ("abide", "CMU", "func_perc_fd"): "real: these people moved more; no other unit",
    ("abide", "CMU", "func_mean_fd"): "real: these people moved more; no other unit",
    ("abide", "CMU", "func_num_fd"): "real: these people moved more; no other unit",
    ("covid", "clinical lab", "drive_thru_ind"): "real: the laboratory of the drive-through",
    ("covid", "virology", "demo_group"): "real: who is tested there",
    ("abide", "NYU", "HANDEDNESS_SCORES"): "true by the key: 5 of 184 values are -9999",
}


def with_codes() -> tuple[Rows, vt.Study]:
    """ABIDE's rows with -9999 as a number."""
    rows, by, _ = AS_THEY_ARE["abide"]()
    _, study = sites_of("abide")
    features = {k: f.model_copy(update={"missing": (), "range": None}) for k, f in study.features.items()}
    study = study.model_copy(update={"features": features})
    return {str(k): clean(v.drop(columns=by).reset_index(drop=True), study) for k, v in rows.groupby(by)}, study


def told(name: str, result: Screening) -> list[str]:
    out = []
    for f in result.wrong:
        seen = SEEN.get((name, f.site, f.feature), "not looked at")
        out.append(f"| {f.site} | {f.feature} | {f.kind} | {f.strength:g} | {f.text} | {seen} |")
    return out


def key(rows: Rows, study: vt.Study, result: Screening) -> list[str]:
    """Each cell of ABIDE with the code, and the finding about it."""
    said = {(f.site, f.feature): (f.kind, "likely wrong" if f.wrong else "may be real") for f in result.findings}
    out, named = [], []
    for site, frame in rows.items():
        for column, feature in study.features.items():
            level = str(CODE) in feature.levels
            many = int((frame[column] == (list(feature.levels).index(str(CODE)) if level else CODE)).sum())
            if many:
                kind, how = said.get((site, column), ("-", "nothing"))
                named.append((many >= PUBLISHED, kind == "code"))
                out.append(f"| {site} | {column} | {many} of {len(frame)} | {kind} | {how} |")
    some = [code for enough, code in named if enough]
    head = [
        f"Cells with {CODE}: {len(named)}, named with the cause code: {sum(code for _, code in named)}; of the"
        f" {len(some)} with {PUBLISHED} such rows or more, which alone may be published: {sum(some)}.",
        "",
        "| site | column | rows | cause | said |",
        "| --- | --- | --- | --- | --- |",
    ]
    return [*head, *out, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=OUT.name)
    place = OUT.parent / parser.parse_args().out
    warnings.simplefilter("ignore")
    lines = ["# Real sites as they are: what is called likely wrong", "", *str(__doc__).strip().split("\n")[7:], ""]
    lines += ["| table | sites | rows | likely wrong | of them shown to be faults | may be real |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    details: list[str] = []
    for name in ("heart", "gusto", "titanic", "vehicle", "ebola", "chile", *AS_THEY_ARE, "abide, codes left"):
        rows, study = with_codes() if "codes" in name else sites_of(name)
        result, table = screen(rows, study), name.split(",")[0]
        true = sum(SEEN.get((table, f.site, f.feature), "").startswith("true") for f in result.wrong)
        counts = len(rows), sum(map(len, rows.values())), len(result.wrong), true
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {len(result.findings) - len(result.wrong)} |")
        if result.wrong:
            details += [f"## {name}", "", "| site | column | cause | times the bar | said | seen by eye |"]
            details += ["| --- | --- | --- | --- | --- | --- |", *told(table, result), ""]
        if table == "abide":
            details += key(rows, study, result)
    text = "\n".join([*lines, "", *details])
    place.write_text(text.rstrip() + "\n")
    print(text)


if __name__ == "__main__":
    main()
