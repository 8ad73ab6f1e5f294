"""Where in a source file a mutant's change is: by qualified name and expression, whatever the format and the comments.

`old` is one of these, compared by syntax tree:

    an expression       `len(rows) >= 10`
    statements          `self.count += 1`, or several lines that follow each other
    a header            `if here: ...`, `def f(x: int=1): ...`, `except OSError: ...`: with `...` as body it stands for
                        the first line alone, and so does `new`

It must be there exactly once in the definition that the anchor names, nested definitions of other names aside. The
empty name is the module itself.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Path = tuple[tuple[str, int | None], ...]  # from the module down: field, and place in a list


class AnchorError(ValueError):
    """An anchor that fits nowhere, or in several places."""


class Spot(NamedTuple):
    """A node, or so many statements that follow each other, with the way to it."""

    path: Path
    count: int | None = None  # of statements; None for a node


def parse_piece(text: str) -> ast.expr | list[ast.stmt]:
    """An expression, or statements; an exception handler is the one of a `try` without a body."""
    text = textwrap.dedent(text).strip()
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        pass
    if text.startswith("except"):
        return ast.parse(f"try: ...\n{text}").body
    return ast.parse(text).body


def _is_header(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    return isinstance(body, list) and len(body) == 1 and _is_dots(body[0])


def _is_dots(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def header(node: ast.AST) -> str:
    """The first line of a compound statement or of an exception handler, in normal form."""
    parts = {field: value for field, value in ast.iter_fields(node) if field not in ("body", "orelse", "finalbody")}
    blank = type(node)(**parts, body=[ast.Expr(ast.Constant(...))], **_rest(node))
    if isinstance(node, ast.ExceptHandler):
        whole = ast.Try(body=[ast.Pass()], handlers=[blank], orelse=[], finalbody=[])
        return ast.unparse(ast.fix_missing_locations(whole)).partition("except")[2].join(("except", ""))
    return ast.unparse(ast.fix_missing_locations(blank))


def _rest(node: ast.AST) -> dict[str, list[ast.stmt]]:
    return {field: [] for field in ("orelse", "finalbody") if field in node._fields}


def normal(piece: ast.AST | list[ast.stmt]) -> str:
    if isinstance(piece, list):
        return "\n".join(ast.unparse(node) for node in piece)
    return ast.unparse(piece)


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST, Path]]:
    """Qualified name, node and way of the module and of everything that is defined in it."""
    yield "", tree, ()

    def below(node: ast.AST, name: str, path: Path) -> Iterator[tuple[str, ast.AST, Path]]:
        for step, child in children(node):
            if isinstance(child, DEFINITIONS):
                whole = f"{name}.{child.name}".lstrip(".")
                yield whole, child, (*path, step)
                yield from below(child, whole, (*path, step))
            else:
                yield from below(child, name, (*path, step))

    yield from below(tree, "", ())


def children(node: ast.AST) -> Iterator[tuple[tuple[str, int | None], ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield (field, None), value
        elif isinstance(value, list):
            for i, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield (field, i), child


def own_nodes(node: ast.AST, path: Path) -> Iterator[tuple[ast.AST, Path]]:
    """A definition and what is below it, without definitions that have a name of their own."""
    yield node, path
    for step, child in children(node):
        if not isinstance(child, DEFINITIONS):
            yield from own_nodes(child, (*path, step))


def find(tree: ast.Module, scope: str, wanted: ast.expr | list[ast.stmt]) -> list[Spot]:
    """All places in that definition that have this form."""
    spots: list[Spot] = []
    for name, definition, path in definitions(tree):
        if name == scope:
            spots += [spot for node, at in own_nodes(definition, path) for spot in _fitting(node, at, wanted)]
    return spots


def _fitting(node: ast.AST, path: Path, wanted: ast.expr | list[ast.stmt]) -> list[Spot]:
    if isinstance(wanted, ast.expr):
        same = isinstance(node, ast.expr) and type(node) is type(wanted) and normal(node) == normal(wanted)
        return [Spot(path)] if same else []
    first = wanted[0].handlers[0] if isinstance(wanted[0], ast.Try) and _is_header(wanted[0]) else wanted[0]
    if len(wanted) == 1 and _is_header(first):
        return [Spot(path)] if type(node) is type(first) and header(node) == header(first) else []
    text, spots = normal(wanted), []
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        for i in range(len(block) - len(wanted) + 1) if isinstance(block, list) else ():
            if normal(block[i : i + len(wanted)]) == text:
                spots.append(Spot((*path, (field, i)), len(wanted)))
    return spots


def follow(tree: ast.AST, path: Path) -> ast.AST:
    node = tree
    for field, i in path:
        value = getattr(node, field)
        node = value if i is None else value[i]
    return node


@lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def locate(source: str, scope: str, old: str, new: str) -> tuple[Spot, ast.expr | list[ast.stmt]]:
    """Where the change is, and what comes there. AnchorError where `old` is not there exactly once."""
    wanted, instead = parse_piece(old), parse_piece(new)
    if isinstance(wanted, ast.expr) and not isinstance(instead, ast.expr):  # a call as a statement, and `pass`
        wanted = [ast.Expr(wanted)]
    spots = find(_parsed(source), scope, wanted)
    if len(spots) != 1:
        raise AnchorError(f"{old!r} is there {len(spots)} times in {scope or 'the module'}, not once")
    return spots[0], instead


def mutated(source: str, scope: str, old: str, new: str) -> str:
    """The source with that change, all else as it is written."""
    spot, instead = locate(source, scope, old, new)
    changed = ast.parse(source)
    statement = _replace(changed, spot, instead)
    text = _splice(source, _parsed(source), changed, spot, statement)
    same = text is not None and _dump(text) == ast.dump(ast.parse(ast.unparse(changed)))
    return text if same and text is not None else ast.unparse(changed) + "\n"


def _dump(text: str) -> str:
    try:
        return ast.dump(ast.parse(ast.unparse(ast.parse(text))))
    except SyntaxError:
        return ""


def _replace(tree: ast.Module, spot: Spot, new: ast.expr | list[ast.stmt]) -> Path:
    """Change the tree in place; the way to the statement that holds the change."""
    *above, (field, i) = spot.path
    parent = follow(tree, tuple(above))
    statements = [ast.Expr(new)] if isinstance(new, ast.expr) else new
    if spot.count is not None:
        getattr(parent, field)[i : (i or 0) + spot.count] = statements
    elif not isinstance(node := follow(tree, spot.path), ast.expr):  # a header: the body stays
        first = statements[0]
        changed = first.handlers[0] if isinstance(node, ast.ExceptHandler) and isinstance(first, ast.Try) else first
        keep = {f: getattr(node, f) for f in ("body", "orelse", "finalbody") if f in node._fields}
        for name, value in keep.items():
            setattr(changed, name, value)
        _put(parent, field, i, changed)
    else:
        _put(parent, field, i, new)  # type: ignore[arg-type]
    ast.fix_missing_locations(tree)
    path = spot.path
    while not isinstance(follow(tree, path), ast.stmt | ast.ExceptHandler) and spot.count is None:
        path = path[:-1]
    return path


def _put(parent: ast.AST, field: str, i: int | None, node: ast.AST) -> None:
    if i is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[i] = node


def _splice(source: str, tree: ast.Module, changed: ast.Module, spot: Spot, path: Path) -> str | None:
    """Only the lines of the changed statement are written anew; None where that cannot be done by lines."""
    lines = source.splitlines()
    if spot.count is not None:
        *above, (field, i) = spot.path
        block = getattr(follow(tree, tuple(above)), field)[i : (i or 0) + spot.count]
        many = len(getattr(follow(changed, tuple(above)), field)) - len(getattr(follow(tree, tuple(above)), field))
        fresh = getattr(follow(changed, tuple(above)), field)[i : (i or 0) + spot.count + many]
        first, last, text = _first_line(block[0]), block[-1].end_lineno, normal(fresh)
    else:
        before, after = follow(tree, path), follow(changed, path)
        body = getattr(before, "body", None)
        first = _first_line(before)
        if isinstance(body, list):
            last, text = _first_line(body[0]) - 1, header(after).rpartition("\n")[0]
            while lines[last - 1].lstrip().startswith("#"):
                last -= 1
            text = text.replace("if", "elif", 1) if lines[first - 1].lstrip().startswith("elif") else text
        else:
            last, text = before.end_lineno, normal(after)  # type: ignore[attr-defined]
    if last is None or last < first:
        return None
    margin = " " * (len(lines[first - 1]) - len(lines[first - 1].lstrip()))
    return "\n".join([*lines[: first - 1], textwrap.indent(text, margin), *lines[last:]]) + "\n"


def _first_line(node: ast.AST) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]
