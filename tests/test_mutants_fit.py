"""The mutants of `make mutants` still fit the source: one that rots would be found out only when they are run."""

from __future__ import annotations

import pytest

from tests.mutants import read_mutants, rotten
from tests.support.anchors import AnchorError, mutated

SOURCE = '''\
LEAST = 3


class Site:
    """A site."""

    def answer(self, rows, least=LEAST):
        # who may be asked
        if len(rows) < least:
            self.count += 1
            return None
        elif not rows:
            raise ValueError("none")
        try:
            self.check(rows)
        except ValueError:
            return None
        return [
            len(rows),  # of all
            least,
        ]


def answer(rows):
    return len(rows)
'''


def test_each_mutant_finds_its_place() -> None:
    mutants = read_mutants()
    assert len(mutants) >= 500
    assert rotten(mutants) == []


@pytest.mark.parametrize(
    ("scope", "old", "new", "line"),
    [
        ("Site.answer", "len( rows )<least", "False", "        if False:"),
        ("Site.answer", "if len(rows) < least: ...", "if rows: ...", "        if rows:"),
        ("Site.answer", "if not rows: ...", "if rows: ...", "        elif rows:"),
        ("Site.answer", "self.count += 1\nreturn None", "return 1", "            return 1"),
        ("Site.answer", "self.check(rows)", "pass", "            pass"),
        ("Site.answer", "except ValueError: ...", "except KeyError: ...", "        except KeyError:"),
        ("Site.answer", "[len(rows), least]", "[]", "        return []"),
        ("Site.answer", "def answer(self, rows, least=LEAST): ...", "def answer(self, rows, least=1): ...",
         "    def answer(self, rows, least=1):"),
        ("answer", "len(rows)", "0", "    return 0"),
        ("", "LEAST = 3", "LEAST = 2", "LEAST = 2"),
    ],
)  # fmt: skip
def test_a_change_is_made_where_the_anchor_says_and_nowhere_else(scope: str, old: str, new: str, line: str) -> None:
    changed = mutated(SOURCE, scope, old, new).splitlines()
    assert changed.count(line) == 1 + SOURCE.splitlines().count(line)
    outside = [one for one in SOURCE.splitlines() if one not in changed]
    assert len(outside) <= 4, "the other lines are as they were"
    assert "# who may be asked" in "".join(changed)


@pytest.mark.parametrize(
    ("scope", "old"),
    [
        ("Site.answer", "len(rows)"),
        ("Site", "len(rows)"),
        ("Site.ask", "LEAST"),
        ("Site.answer", "len(row)"),
        ("", "rows"),
    ],
)
def test_an_anchor_that_fits_twice_or_nowhere_is_refused(scope: str, old: str) -> None:
    with pytest.raises(AnchorError, match=r"[02] times"):
        mutated(SOURCE, scope, old, "0")


def test_comments_and_format_do_not_matter() -> None:
    header = "if (\n            len(\n                rows  # all\n            ) < least\n        ):"
    wide = SOURCE.replace("if len(rows) < least:", header)
    assert "if False:" in mutated(wide, "Site.answer", "len(rows) < least", "False")
