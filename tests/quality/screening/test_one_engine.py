"""One engine: whatever verb or page is asked about a cell, it gives the answer of the screening, in the same words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from markupsafe import Markup

from tests.support.planted import SITE, kinds, planted
from vitrail.data.encoding import Encoder
from vitrail.deploy.protocol.closing_validation import read_findings
from vitrail.quality.repair.inspection import inspect_site
from vitrail.quality.repair.own_rows import own_cause
from vitrail.quality.screening.pooled_check import read_pooled, unlike_others
from vitrail.quality.screening.result import CAUSES, KNOWN, LABEL, Finding
from vitrail.quality.screening.text import cause_text, sentence, standing, to_text
from vitrail.report.pages.card import contents as card
from vitrail.report.sections.screening import contents_of
from vitrail.runs.screening import load_screening, save_screening


@pytest.mark.parametrize("kind", kinds())
def test_every_verb_gives_one_answer_about_a_cell(kind: str, tmp_path: Path) -> None:
    fault = planted(kind)
    if fault is None:
        pytest.skip("it cannot be planted in this federation")
    table, screening, file = fault.table, fault.screening, fault.file
    mine = [f for f in screening.findings if f.site == SITE]
    save_screening(tmp_path / "screen.json", screening)
    kept = load_screening(tmp_path / "screen.json")
    assert kept is not None
    answers = {f.feature: (standing(f), cause_text(f)) for f in mine}

    text = to_text(screening)  # the terminal
    for f in screening.wrong:
        assert sentence(f) in text

    page = contents_of(screening, Markup())  # the page
    shown = " ".join(str(f.sentence) for f in page["wrong"])
    assert len(page["wrong"]) == len(screening.wrong)
    assert sum(len(c.findings) for c in page["columns"]) == len(screening.maybe)
    for f in screening.wrong:
        assert str(Markup.escape(f.text.replace(" %", "\N{NO-BREAK SPACE}%"))) in shown

    said = {}  # check --pooled, which knows these rows by their digest
    for fault_found in unlike_others(file, table, read_pooled(tmp_path / "screen.json", table)):
        words, _, cause = fault_found.text.partition(": ")
        said[LABEL if fault_found.column == table.target.column else fault_found.column] = (words, cause)
    assert said == {name: (words, cause.rstrip(".")) for name, (words, cause) in answers.items()}

    views = inspect_site(
        SITE,
        file,
        table,
        Encoder(table, {}, {}),  # look
        kept.findings_of(SITE),
        pooled=kept.pooled,
    ).views
    assert {v.name: (v.wrong, v.trouble) for v in views} == {f.feature: (f.wrong, CAUSES[f.kind]) for f in mine}
    for f in mine:
        (view,) = [v for v in views if v.name == f.feature]
        assert view.said == f.text
        if f.wrong and f.kind not in ("other", "differs"):
            cause, repair = own_cause(f, file, table, kept.pooled)  # repair --from
            assert view.causes[0].kind in (f.kind, "unit in part")
            assert (repair.flags() if repair else "") == cause.command
            assert not cause.command or view.causes[0].command == cause.command

    words = {"findings": json.loads(json.dumps([list(f[1:]) for f in kept.findings_of(SITE)]))}  # what join is told
    private = read_findings(table, words, SITE)  # type: ignore[arg-type]
    assert {f.feature: (standing(f), cause_text(f)) for f in private} == answers

    for f in mine:  # the card
        assert card.finding_line(table.target.column, f).endswith(cause_text(f))


def test_most_kinds_are_found_at_all() -> None:
    """The positive control of the test above: it compares answers, and there are some."""
    found = [p.screening.wrong for kind in kinds() if (p := planted(kind))]
    assert sum(bool(f) for f in found) > 0.7 * len(found)


def test_the_words_of_a_standing() -> None:
    one = Finding("a", "b", "unit", True, 1.0, "Text.")
    assert standing(one) == "likely wrong"
    assert standing(one._replace(wrong=False)) == "may be real"
    assert standing(one._replace(wrong=False, numbers={KNOWN: {"why": "x"}})) == "known"
