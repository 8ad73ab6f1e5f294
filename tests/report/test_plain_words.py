"""Pages say it in plain words first; a symbol stands behind, in brackets. No code of a program reaches a reader."""

from __future__ import annotations

import re

import pytest

import vitrail as vt
from vitrail.core import facts as means
from vitrail.report.live.events import words
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.text import LAYERS
from vitrail.runs.plan import with_facts

SYMBOL = re.compile(rf"\b({'|'.join(LAYERS)})\b")
CODES = re.compile(r"\b(nats?|nan|NaN|None|null|undefined|[A-Z]+_[A-Z_]+)\b")


def read(html: str) -> str:
    """What a reader sees: without tags, styles and scripts."""
    return re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script).*?</\1>", " ", html, flags=re.DOTALL))


@pytest.fixture(scope="module")
def shown() -> str:
    """The page of a run whose sites publish private layers."""
    heart = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    study = heart.with_changes(training={"rounds": 1}, network={"hidden": [4]})
    small = {name: frame[:80] for name, frame in vt.datasets.heart_disease().items()}
    run = vt.federate(study, small, method=with_facts(study, means.INPUT_SHIFT).split(" or ")[0])
    return read(render(page_of(run)))


def test_a_symbol_stands_behind_its_words(shown: str) -> None:
    assert "(b_in)" in shown, "there is one to look at"
    bare = [shown[m.start() - 30 : m.end() + 5] for m in SYMBOL.finditer(shown) if shown[m.start() - 1] != "("]
    assert bare == []


def test_no_code_of_a_program_is_shown(shown: str) -> None:
    assert CODES.findall(shown) == []
    assert CODES.findall("in nats, EXECUTION_EXCEPTION or None") == ["nats", "EXECUTION_EXCEPTION", "None"]


def test_an_event_that_nobody_knows_is_told_as_it_was_written() -> None:
    assert (
        words("something new", {"site": "north", "time": "t", "event": "something new"}) == "Something new: site north."
    )
