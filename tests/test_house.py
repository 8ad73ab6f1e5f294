"""The house keeps its order: a class name is unique, a module is a noun, folders and files stay small.

Where the order is not kept yet there is a list of exceptions. Each list is compared for equality, so that it can only
shrink: an exception that is no longer needed has to be deleted.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

import vitrail

SOURCE = Path(vitrail.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST = 400  # lines of a file
LARGEST = 14  # modules of a folder
OF_A_METHOD = {"State", "Coord", "Work", "Down", "Up"}  # every method has its own

DEFINED_TWICE: set[str] = set()  # class names, besides those of methods
NO_NOUN: set[str] = set()  # modules, as paths below the source
TOO_LARGE = {"methods"}  # one file for each paper, nothing else: its number is that of the papers
TOO_LONG: set[str] = set()
VAGUE_NAMES = 38, 2  # variables (fields among them) and parameters that have one of the VAGUE words as a name

# participles and adverbs that were modules once, and others of their kind; what ends in -ed is found without the list
NOT_NOUNS = frozenset(
    {
        "told",
        "asked",
        "written",
        "sealed",
        "shown",
        "found",
        "heard",
        "named",
        "chosen",
        "taken",
        "given",
        "drawn",
        "made",
        "kept",
        "said",
        "seen",
        "known",
        "left",
        "lost",
        "hidden",
        "gone",
        "done",
        "sent",
        "cut",
        "near",
        "far",
        "once",
        "apart",
        "alone",
        "beside",
        "together",
        "among",
        "against",
        "after",
        "before",
        "worse",
        "clear",
        "outside",
        "own",
        "noisy",
        "wary",
        "two",
        "second",
    }
)
# they say that something was said or found, not what it is
VAGUE = frozenset({"told", "said", "found", "known", "kept", "heard"})
NO_PARTICIPLES = frozenset({"seed", "feed", "speed", "need", "bed"}) | {"shared"}  # what both ends of a protocol know


def classes_of(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Class names that several files define, or one file twice, with these files; those of methods left out."""
    found = defaultdict[str, list[str]](list)
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not (path.startswith("methods/") and node.name in OF_A_METHOD):
                found[node.name].append(path)
    return {name: set(paths) for name, paths in found.items() if len(paths) > 1}


def is_noun(module: str) -> bool:
    """Whether the last word of a module's name can be a noun: corrected_copy can, corrected cannot."""
    last = module.strip("_").rpartition("_")[2]
    return last not in NOT_NOUNS and (last in NO_PARTICIPLES or not re.fullmatch(r"\w+ed", last))


def large_folders(paths: Iterable[str]) -> set[str]:
    """Folders with more modules than one can survey; __init__ and __main__ do not count."""
    count = defaultdict[str, int](int)
    for path in paths:
        folder, _, name = path.rpartition("/")
        count[folder] += not name.startswith("__")
    return {folder for folder, modules in count.items() if modules > LARGEST}


def count_vague_names(tree: ast.AST) -> tuple[int, int]:
    """How many variables (fields among them) and how many parameters have a name in VAGUE."""
    nodes = list(ast.walk(tree))
    stores = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in VAGUE]
    patterns = [n for n in nodes if isinstance(n, ast.MatchAs | ast.MatchStar) and n.name in VAGUE]
    handlers = [n for n in nodes if isinstance(n, ast.ExceptHandler) and n.name in VAGUE]
    return len(stores + patterns + handlers), sum(isinstance(n, ast.arg) and n.arg in VAGUE for n in nodes)


def below(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_a_class_name_is_unique() -> None:
    texts = {below(file): file.read_text(encoding="utf-8") for file in FILES}
    assert len(texts) > 300
    found = classes_of(texts)
    assert set(found) == DEFINED_TWICE, found


def test_a_module_is_a_noun() -> None:
    names = {below(file) for file in FILES if not file.stem.startswith("__")}
    names -= {path for path in names if Path(path).parent.name == "methods"}  # which are called as their papers are
    folders = {below(folder) for folder in SOURCE.rglob("*") if (folder / "__init__.py").exists()}
    assert {path for path in names | folders if not is_noun(Path(path).stem)} == NO_NOUN


def test_a_folder_can_be_surveyed() -> None:
    assert large_folders(map(below, FILES)) == TOO_LARGE


def test_a_file_can_be_read_at_once() -> None:
    long = {below(file) for file in FILES if len(file.read_text(encoding="utf-8").splitlines()) > LONGEST}
    assert long == TOO_LONG


def test_a_folder_says_what_it_is() -> None:
    silent = [below(file) for file in FILES if file.name == "__init__.py" and not ast.get_docstring(_tree(file))]
    assert silent == []
    packages = {file.parent for file in FILES}
    assert [below(folder) for folder in packages if not (folder / "__init__.py").exists()] == []


def test_a_local_name_says_what_it_holds() -> None:
    counts = {below(file): count_vague_names(_tree(file)) for file in FILES}
    total = sum(stores for stores, _ in counts.values()), sum(parameters for _, parameters in counts.values())
    assert total == VAGUE_NAMES, {file: count for file, count in counts.items() if any(count)}


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"a.py": "class A: pass", "b.py": "class B: pass"}, set()),
        ({"a.py": "class A: pass", "b.py": "class A: pass"}, {"A"}),
        ({"a.py": "class A: pass\ndef f():\n    class A: pass"}, {"A"}),
        ({"methods/a.py": "class Up: pass", "methods/b.py": "class Up: pass"}, set()),
        ({"deploy/a.py": "class Up: pass", "runs/b.py": "class Up: pass"}, {"Up"}),
    ],
)
def test_what_is_defined_twice_is_found(texts: dict[str, str], found: set[str]) -> None:
    assert set(classes_of(texts)) == found


@pytest.mark.parametrize(
    ("module", "noun"),
    [
        ("told", False),
        ("site_told", False),
        ("screened", False),
        ("near", False),
        ("once", False),
        ("corrected_copy", True),
        ("masked", False),
        ("seed", True),
        ("training", True),
        ("shared", True),
    ],
)
def test_what_is_no_noun_is_found(module: str, noun: bool) -> None:
    assert is_noun(module) == noun


def test_a_large_folder_is_found() -> None:
    assert large_folders([f"a/m{i}.py" for i in range(LARGEST)] + ["a/__init__.py"]) == set()
    assert large_folders([f"a/m{i}.py" for i in range(LARGEST + 1)]) == {"a"}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("report = told(1)", (0, 0)),
        ("told = 1; said: int = 2; x.known = 3", (2, 0)),
        ("for found, (a, kept) in heard: pass", (2, 0)),
        ("[x for known in y if (said := known)]", (2, 0)),
        ("def found(told, *said, known=1, **heard): lambda kept: 0", (0, 5)),
        ("f(told=1, known=2)", (0, 0)),
        ("match x:\n    case {'a': told, **rest} | [*said]: pass", (2, 0)),
    ],
)
def test_a_vague_name_is_counted(text: str, count: tuple[int, int]) -> None:
    assert count_vague_names(ast.parse(text)) == count
