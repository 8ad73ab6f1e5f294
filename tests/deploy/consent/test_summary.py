"""Ten lines before the consent form: each is true of the study at hand, and the form follows unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy import talking
from tests.support.small import opposed_tables
from vitrail.core.errors import VitrailError
from vitrail.deploy.consent.form import contract_text, declared, volume
from vitrail.deploy.consent.summary import TITLE, contract_summary, pact_summary
from vitrail.deploy.identity.enrolment import Kit
from vitrail.deploy.identity.participants import Participants
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.process import agree
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.study.model import Study

SITES = opposed_tables({"a": 60, "b": 60, "c": 60, "d": 60, "e": 60, "f": 60})
TITLES = ["Study", "Who", "What leaves", "How much", "Who reads it", "Who must collude", "What never leaves"]


def agreement(sites: int = 6, **protect: Any) -> Agreement:
    return Agreement.of(Study.infer(SITES, "sick", training={"rounds": 7}, protect=protect), 1, sites)


def read(text: str) -> dict[str, str]:
    """By its title, what each line says."""
    first, *lines = text.rstrip("\n").split("\n")
    assert first == TITLE
    assert all(len(line) <= 96 for line in lines)
    said, title, wide = dict[str, str](), "", len("  What never leaves  ")
    for line in lines:
        title = line[2:wide].strip() or title
        said[title] = f"{said.get(title, '')} {line[wide:]}".strip()
    assert len(said) == 10
    assert list(said)[:7] == TITLES
    assert list(said)[-1] == "To say yes"
    return said


@pytest.mark.parametrize(
    ("protect", "reads", "collude"),
    [
        ({"sum": "plain"}, "the coordinator reads each of your reports", "the coordinator alone"),
        ({"sum": "masked"}, "nobody a single report", "the coordinator and"),
        (
            {"sum": "two servers", "second": "g", "clip": 1.0},
            "the coordinator and g open totals",
            "the coordinator and g",
        ),
    ],
)
def test_who_reads_what(protect: dict[str, Any], reads: str, collude: str) -> None:
    names = [*SITES, *(["g"] if "second" in protect else [])]
    agreed = agreement(len(names), **protect)
    said = read(contract_summary(agreed, "a", names, True))
    assert reads in said["Who reads it"]
    assert collude in said["Who must collude"]
    assert ("g as second server" in said["Who"]) == ("second" in protect)


def test_bytes_rounds_and_hash_are_the_form_s_own() -> None:
    agreed = agreement(sum="masked")
    said = read(contract_summary(agreed, "a", list(SITES), True))
    out, came = (volume(sum(x.bytes * x.rounds for x in lines)) for lines in declared(agreed, True))
    assert said["How much"] == f"up to {out} leave this site in all, about {came} come in."
    assert f"In all up to {out} of numbers" in " ".join(contract_text(agreed, "a", list(SITES), True).split())
    assert "7 rounds" in said["What leaves"]
    assert "summaries of your columns" in said["What leaves"]
    assert "a (you), b, c, d, e and 1 other" in said["Who"]
    assert said["To say yes"].endswith(f"--accept {agreed.hash}")
    quiet = Agreement.of(agreed.study.with_changes(screen={"ask": False}), 1, 6)
    assert "summaries" not in read(contract_summary(quiet, "a", list(SITES), True))["What leaves"]
    assert "No noise is added." in said["Main risk"]


def test_parties_have_one_too() -> None:
    given, _ = talking.papers(("clinic", "lab", "insurer"))
    pact = PartyAgreement(talking.study(), talking.SEED, given)
    guest, host = (read(pact_summary(pact, party, (9, 900), 2.0, "-2")) for party in ("lab", "clinic"))
    assert "each row at most 9 times in training, 900 rows afterwards" in guest["How much"]
    assert "the coordinator and clinic" in guest["Who must collude"]
    assert "the coordinator and a guest" in host["Who must collude"]
    assert guest["To say yes"].endswith(f"--accept {pact.hash}-2")
    assert "lists over 2 times yours are refused" in guest["Ids"]


def test_it_comes_before_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agreed = agreement(sum="masked")
    SITES["a"].to_csv(tmp_path / "a.csv", index=False)
    listed = Participants(dict.fromkeys(SITES, "0000"), [])
    kit = Kit(tmp_path, "a", "a-1", agreed.study, 1, list(SITES), "h:1", tmp_path / "home", True, {}, listed)
    with pytest.raises(VitrailError, match="nobody agreed"):
        agree(kit, tmp_path / "a.csv", "", True)
    printed = capsys.readouterr().out
    assert printed.index(TITLE) < printed.index("THE STUDY") < printed.index("TO ACCEPT")
