"""Errors are known by their class: no code compares their words, and the class declares what may leave a hospital."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vitrail.core import errors
from vitrail.core.errors import Leaves, Problem, RationSpent, TypedError, VitrailError
from vitrail.vertical.messages import Refused, Wanted
from vitrail.vertical.training.guest import GuestProgram

SRC = Path(errors.__file__).parents[1]
TREES = {str(p.relative_to(SRC)): ast.parse(p.read_text("utf-8")) for p in sorted(SRC.rglob("*.py"))}
KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, VitrailError)]
TYPED = [k for k in KINDS if issubclass(k, TypedError) and k is not TypedError]
ON_DISK = {"path", "folder", "home", "file", "place"}  # names of what holds a place on a site's disk

# Words of other programs, of which there is no class.
OTHERS = {
    ("cli/__init__.py", '"can\'t allocate memory" not in str(error)'),  # torch
    ("deploy/site/process.py", "sign == REFUSED"),  # FLARE's console
    ("deploy/site/process.py", "sign == AWAY"),
    ("deploy/site/process.py", "sign != AWAY"),
}
# Marks of several words that no person reads as a sentence.
MARKS = {
    ("report/pages/card/markdown.py", "text.startswith(MARK)"),  # of a file
    ("vertical/messages.py", "ROW in getattr(hint, '__metadata__', ())"),  # of a type
}
# Not of errors, and still compared. This list may only become shorter.
LEFT = {
    ("quality/causes.py", "IN_PART in flags"),
    ("quality/causes.py", "c.kind == IN_PART"),
    ("quality/repair/own_rows.py", "finding.kind != 'unit in part'"),
    ("quality/repair/own_rows.py", "finding.kind == 'unit in part'"),
    ("quality/repair/plan.py", "repair.cause == 'unit in part'"),
    ("quality/repair/remedies.py", "finding.kind in ('unit', 'unit in part')"),
    ("quality/repair/remedies.py", "repair.cause in ('unit', 'unit in part', 'offset')"),
    ("report/pages/vertical.py", "message == 'number in common'"),
    ("runs/training.py", "screening.sites['why not'] != REFUSED"),
    ("testing/laws.py", "f.means == AGREED"),
    ("vertical/shap.py", "means == MEDIAN"),
}


def is_sentence(value: object) -> bool:
    return isinstance(value, str) and len(value.split()) > 2


def sentences(tree: ast.Module) -> set[str]:
    """Names of a module's constants that are sentences."""
    named = (n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant))
    return {t.id for n in named if is_sentence(n.value.value) for t in n.targets if isinstance(t, ast.Name)}


CONSTANTS = {"vitrail." + f.removesuffix(".py").replace("/", "."): sentences(tree) for f, tree in TREES.items()}


def comparisons(tree: ast.AST) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """Each comparison by ==, !=, in or the two ends of a text, with what it compares."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops
        ):
            yield node, [node.left, *node.comparators]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("startswith", "endswith")
        ):
            yield node, [node.func.value, *node.args]


def by_sentence(tree: ast.Module, here: set[str]) -> Iterator[str]:
    """Comparisons with a sentence, written there or named by a constant."""
    known = here | {
        a.asname or a.name
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom)
        for a in n.names
        if a.name in CONSTANTS.get(n.module or "", ())
    }
    for node, sides in comparisons(tree):
        for side in sides:
            parts = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            if any(
                (isinstance(p, ast.Constant) and is_sentence(p.value)) or (isinstance(p, ast.Name) and p.id in known)
                for p in parts
            ):
                yield ast.unparse(node)


def by_words_of_an_error(tree: ast.Module) -> Iterator[str]:
    """Comparisons of the title, the problems or the text of what was caught."""
    for handler in (n for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.name):
        for node, sides in comparisons(ast.Module(handler.body, [])):
            for part in (p for side in sides for p in ast.walk(side)):
                words = isinstance(part, ast.Attribute) and part.attr in ("title", "problems", "args")
                text = (
                    isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in ("str", "repr")
                )
                if (words or text) and handler.name in {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}:
                    yield ast.unparse(node)


def test_no_comparison_of_titles_or_sentences() -> None:
    found = set()
    for file, tree in TREES.items():
        here = CONSTANTS["vitrail." + file.removesuffix(".py").replace("/", ".")]
        found |= {(file, text) for text in [*by_sentence(tree, here), *by_words_of_an_error(tree)]}
    assert found == OTHERS | MARKS | LEFT


@pytest.mark.parametrize(
    "code",
    [
        "try: f()\nexcept E as error:\n    if error.title == g(): pass",
        "try: f()\nexcept E as error:\n    if str(error).startswith(WORD): pass",
        "if what == 'a message was refused': pass",
        "if what in ('a message was refused', 'x'): pass",
        "SAID = 'no answer within'\nif what.startswith(SAID): pass",
    ],
)
def test_such_a_comparison_would_be_found(code: str) -> None:
    tree = ast.parse(code)
    assert [*by_sentence(tree, sentences(tree)), *by_words_of_an_error(tree)]


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield f"{file}:{node.lineno}", node


def test_a_title_that_a_class_stands_for_is_given_by_that_class_only() -> None:
    headings = {kind.heading for kind in TYPED}
    assert len(headings) == len(TYPED)
    plain = [
        where
        for where, call in calls("VitrailError")
        if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value in headings
    ]
    assert plain == []


def test_problems_that_leave_name_no_place_on_a_disk() -> None:
    wrong = []
    for kind in (k for k in KINDS if k.leaves_site is Leaves.PROBLEMS):
        for where, call in calls(kind.__name__):
            parts = [n for arg in [*call.args, *(k.value for k in call.keywords)] for n in ast.walk(arg)]
            named = {n.id for n in parts if isinstance(n, ast.Name)} | {
                n.attr for n in parts if isinstance(n, ast.Attribute)
            }
            wrong += [where] if named & ON_DISK else []
    assert wrong == []


def test_a_class_that_declares_nothing_lets_nothing_leave() -> None:
    assert VitrailError("/data/rows.csv cannot be read", [Problem("row 7", "x.")]).to_outside() == ""
    assert RationSpent("lab", Problem("prediction", "2 of 5 are left.")).to_outside() == (
        "the ration of lab is spent; prediction: 2 of 5 are left."
    )


@pytest.mark.parametrize("kind", TYPED)
def test_errors_of_worker_processes_arrive_whole(kind: type[TypedError]) -> None:
    made = kind("where", "what.", "hint")
    copy = pickle.loads(pickle.dumps(made))
    assert (type(copy), str(copy), copy.problems, copy.title) == (kind, str(made), made.problems, kind.heading)


def test_a_guest_tells_its_host_only_what_the_class_of_the_error_lets_leave() -> None:
    posted: list[Any] = []

    def program(error: Exception) -> GuestProgram:
        def fails(_: Any) -> None:
            raise error

        line: Any = SimpleNamespace(post=lambda host, letter: posted.append(letter))
        guest: Any = SimpleNamespace(reply=fails)
        return GuestProgram(line, "host", guest)

    spent = RationSpent("lab", Problem("prediction", "2 of 5 are left."))
    program(spent).on_wanted(Wanted(torch.tensor([0])))
    assert posted == [Refused(spent.to_outside())]
    private = VitrailError("/data/rows.csv cannot be read", [Problem("row 7", "age is 77.")])
    with pytest.raises(VitrailError, match="cannot be read"):  # it ends at the door, as a reference
        program(private).on_wanted(Wanted(torch.tensor([0])))
    assert len(posted) == 1
