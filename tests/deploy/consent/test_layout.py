"""From markup to a text that prints well; and what is filled in is never markup."""

from __future__ import annotations

import pytest

from vitrail.deploy.consent.form import harmless
from vitrail.deploy.consent.layout import WIDTH, lay_out, literal, text_of

SMALL = """
= Title

| Name | Value

# first: The first clause

## It goes on
in a second line. See clause [[second]].
- one
- two

It ends.

# second: The second

## Alone.
"""


def test_clauses_paragraphs_and_items_are_numbered() -> None:
    assert lay_out(SMALL)[:4] == ["=" * WIDTH, "Title", "=" * WIDTH, ""]
    text = text_of(SMALL)
    for line in (
        "1   THE FIRST CLAUSE",
        "1.1   It goes on in a second line. See clause 2.",
        "      (a) one",
        "      (b) two",
        "      It ends.",
        "2   THE SECOND",
        "2.1   Alone.",
    ):
        assert line in text.splitlines()
    assert text.endswith("2.1   Alone.\n")


def test_items_beyond_z() -> None:
    text = text_of("# a: A\n\n## B\n" + "".join(f"- item {i}\n" for i in range(28)))
    assert "(z) item 25\n      (aa) item 26\n      (ab) item 27\n" in text


def test_a_number_stays_with_its_unit_and_no_line_is_too_long() -> None:
    text = text_of("# a: A\n\n## " + "1 458 numbers, 11.7 KB, 40 times. " * 30)
    assert max(map(len, text.splitlines())) <= WIDTH
    for line in text.splitlines():
        assert not line.endswith(("1", "458", "11.7", "40"))


def test_columns_of_a_table_stand_below_each_other_and_long_cells_go_on() -> None:
    text = text_of("|! Name | What\n| a | " + "word " * 40 + "\n| bcd | x\n")
    head, rule, first, *more, last = text.splitlines()
    assert head.index("What") == first.index("word") == last.index("x") == rule.index(" ") + 2
    assert more
    assert all(line.startswith(" " * head.index("What")) and len(line) <= WIDTH for line in more)


def test_an_empty_line_parts_two_tables() -> None:
    assert "long name  b" in text_of("| long name | b\n\n| a | b\n")
    assert "\na  b\n" in text_of("| long name | b\n\n| a | b\n")


@pytest.mark.parametrize("mark", ["= A", "# a: b", "## a", "- a", "~ a", "| a | b", "|! a", "[[x]]", "a\n# x: y"])
def test_what_is_filled_in_is_no_markup(mark: str) -> None:
    text = text_of(f"# c: Clause\n\n## Named\n{literal(mark)}\nso.")
    assert text == text_of("# c: Clause\n\n## Named\nMARK\nso.").replace("MARK", " ".join(mark.split()))


def test_nothing_filled_in_reaches_the_terminal_as_it_is() -> None:
    assert harmless(("\x1b[2J", 1, None)) == (literal("\x1b[2J"), 1, None)
    assert "\x1b" not in text_of(literal("\x1b[2J all is well"))
    assert "?[2J all is well" in text_of(literal("\x1b[2J all is well"))


def test_a_clause_that_is_not_there_cannot_be_referred_to() -> None:
    with pytest.raises(KeyError, match="gone"):
        lay_out("# a: A\n\n## See clause [[gone]].")
    with pytest.raises(ValueError, match="label"):
        lay_out("# a: A\n\n# a: B")
