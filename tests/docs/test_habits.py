"""No text that a person reads has a phrase that never reads well here: the HABITS of scripts/list_texts.py."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import ROOT

SCRIPT = ROOT / "scripts" / "list_texts.py"
# How many such texts are left in folders that nobody has gone through yet. A number may only become smaller.
LEFT: dict[str, int] = {}
# Words that run folders keep, and by which their facts are found again.
STORED = {("src/vitrail/core/facts.py", "the user's model stands still")}


@pytest.fixture(scope="module")
def lister() -> ModuleType:
    spec = importlib.util.spec_from_file_location("list_texts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder_of(place: str) -> str:
    """The package of a source file or template, else the document itself."""
    return "/".join(place.split("/")[:3]) if place.startswith("src/") else place


def test_phrases_that_never_read_well_become_fewer(lister: ModuleType) -> None:
    found = [(text.place.partition(":")[0], text.text) for text in lister.texts(ROOT) if text.habits]
    assert set(found) >= STORED, "an exception that is no longer needed"
    counts = Counter(folder_of(place) for place, text in found if (place, text) not in STORED)
    assert dict(counts) == LEFT, "run scripts/list_texts.py --habits: rewrite what is new, lower what became fewer"


def test_such_a_phrase_is_found_wherever_a_person_reads_it(lister: ModuleType, tmp_path: Path) -> None:
    files = {
        "src/vitrail/data/source.py": '"""A docstring is told to nobody."""\nTEXT = "Nobody else is told this."\n',
        "src/vitrail/data/gaps.py": 'def say(n: int) -> str:\n    return f"Of {n} sites none is\\n told it."\n',
        "src/vitrail/cli/verb.py": 'def verb() -> None:\n    """Each site is told its part."""\n',
        "src/vitrail/report/templates/page.html": "<p>The <b>site</b></p>\n<p>Rows are drawn by lot here.</p>\n",
        "docs/page.md": "A site sees it with its own eyes.\n",
        "README.md": "Whether it comes true, it cannot be told.\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    found = {text.place.partition(":")[0]: text.habits for text in lister.texts(tmp_path) if text.habits}
    assert found == {
        "src/vitrail/data/source.py": ["is told"],
        "src/vitrail/data/gaps.py": ["is told"],
        "src/vitrail/cli/verb.py": ["is told"],
        "src/vitrail/report/templates/page.html": ["by lot"],
        "docs/page.md": ["own eyes"],
        "README.md": ["comes true", "it cannot be told"],
    }


def test_words_that_only_look_like_such_a_phrase_are_free(lister: ModuleType) -> None:
    assert lister.Text("a", "A lottery is toldless, and standby lots come truer.").habits == []
    assert all(lister.Text("a", f"What {habit} here").habits for habit in lister.HABITS)
