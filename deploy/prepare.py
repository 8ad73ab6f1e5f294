"""For compose.yaml: a study on the shipped data, and what people do by phone and mail before it, in one go.

    python prepare.py ADDRESS SITES COORDINATOR [SITE ...]

SITES/NAME gets that site's rows, its kit and the hash of the form it accepts; COORDINATOR the study and the authority.
A second time it changes nothing. In a real study every house does its own part and compares fingerprints.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vitrail.data.datasets import catalogue as datasets
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of, invitation_of
from vitrail.deploy.site.process import form_of
from vitrail.study.model import Study

ROUNDS = 10


def prepare(address: str, sites: Path, coordinator: Path, names: list[str]) -> None:
    file = coordinator / "study.toml"
    if file.exists():
        return
    shipped = Study.load(datasets.packaged("heart_disease.toml"))
    study = shipped.with_changes(training={"rounds": ROUNDS}, protect={"sum": "masked"})
    draft = file.with_name("draft.toml")
    study.save(draft)
    draft.rename(file)
    folder, tables = enrolment.invite(file, names, address), datasets.heart_disease()
    for name in names:
        home = sites / name
        home.mkdir(parents=True, exist_ok=True)
        tables[name].to_csv(home / f"{name}.csv", index=False)
        made = enrolment.request(invitation_of(folder, name), home / f"{name}.kit", home / f"{name}.home")
        enrolment.approve(folder, made.file)
        print(f"{name}: {made.fingerprint}")
    for name in names:  # the approvals name all participants when the last one is approved
        kit = enrolment.accept(sites / name / f"{name}.kit", approval_of(folder, name))
        (sites / name / "hash").write_text(form_of(kit).hash)


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
