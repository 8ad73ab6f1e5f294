"""The glossary explains every word that has a special meaning here, once, and the documentation links to it."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT
from vitrail.studies import benefit

TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ", 1) for line in TEXT.splitlines() if re.match(r"\| (?!term|---)", line)]
TERMS = [term.strip() for row in ROWS for term in re.split(r", | / ", row[0])]
KEPT = (
    "site, coordinator, study, run, method, host, guest, exchange, stage, ledger, outbox, kit, doctor, invitation, "
    "request, approval, laws, guards, baseline, skill, refit, constant, person, screening, epsilon, threshold"
)


def test_no_term_is_explained_twice() -> None:
    assert len(set(TERMS)) == len(TERMS)
    assert all(meaning.rstrip().endswith(".") and len(meaning) > 20 for _, meaning in ROWS)


@pytest.mark.parametrize("term", KEPT.split(", "))
def test_words_that_are_kept_are_explained(term: str) -> None:
    assert term in TERMS


def test_every_verdict_is_explained() -> None:
    for verdict in (benefit.YES, benefit.NO, benefit.NO_HARM, benefit.UNSURE):
        assert verdict in TERMS


def test_it_is_in_the_documentation() -> None:
    assert "docs/glossary.md" in (ROOT / "README.md").read_text(encoding="utf-8")
