"""Files, wire table, consent form, messages and page of five studies under four methods are as they were committed."""

from __future__ import annotations

import difflib

import pytest

from tests.snapshots import METHODS, PLACE, STUDIES, case


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("study", STUDIES)
def test_nothing_changed_unseen(study: str, method: str) -> None:
    """Where the change is wanted: python tests/snapshots.py, look at the difference, and commit it."""
    before = (PLACE / f"{study}-{method}.txt").read_text(encoding="utf-8")
    now = case(study, method)
    changes = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "committed", "now", lineterm="", n=0))
    assert not changes, "\n".join(changes[:40])


def test_no_snapshot_is_of_a_study_that_is_gone() -> None:
    assert {p.stem for p in PLACE.glob("*.txt")} == {f"{s}-{m}" for s in STUDIES for m in METHODS}
