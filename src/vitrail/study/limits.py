"""How large a study can be. What is beyond that is refused in words before anything is made of it: a study may come
from a stranger. Every limit is far above what a study of hospitals needs; the largest networks that were tried have 12
million weights, the widest tables 100,000 columns.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.storage.untrusted_files import LONGEST_TEXT, read_text

if TYPE_CHECKING:
    from vitrail.study.model import Study

MOST_WEIGHTS = 250_000_000  # of a network: 1 GB for each copy of it
MOST_MAP = 2**28  # numbers in the first map of a convolution: 1024 x 1024 pixels, 256 channels
MOST_TOLD = 200  # problems that are told at once
COUNTS = {  # what a study lists, and the most that it may list
    ("features",): 120_000,
    ("target", "classes"): 10_000,
    ("network", "hidden"): 64,
    ("seeds",): 10_000,
    ("metrics",): 100,
    ("parties",): 100,
    ("known",): 10_000,
}
MOST_KEYS = 1_000  # in any other section
CATEGORIES = 100_000  # of one feature
LONGEST_NAME, LONGEST_WORDS = 500, 20_000  # characters of a name, and of any other text
MARKS = {"\n[": 120_000, "=": 500_000, ",": 300_000}  # in the text of a study: sections, keys, values of lists
LONGEST_LINE = 4_000_000  # characters


def read_study(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a study file, and what it says as TOML."""
    try:
        text = read_text(path, LONGEST_TEXT, "utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        what, hint = f"expected a study file, but: {reason}.", "Draft one with `vitrail init DATA --target COLUMN`."
        raise VitrailError("cannot read the study", [Problem(str(path), what, hint)]) from None
    if why := text_problem(text):
        what = f"expected a study file, but {why}."
        raise VitrailError("cannot read the study", [Problem(str(path), what, "Ask its author.")])
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are a plain ValueError
        what = f"expected TOML: {error}."
        raise VitrailError(f"{path} is not TOML", [Problem(str(path), what, "Correct that line.")]) from None
    if absurd := list(islice(count_problems(raw, lambda *keys: f"{path} {'.'.join(map(str, keys))}"), MOST_TOLD)):
        raise VitrailError(f"{path} is not a valid study ({len(absurd)} to correct)", absurd)
    return text, raw


def text_problem(text: str) -> str:
    """Before a text is read as TOML, which takes long where there is much of it; "" where it can be a study."""
    for mark, most in MARKS.items():
        if (count := text.count(mark)) > most:
            kinds = {"\n[": "sections", "=": "keys", ",": "values in lists"}
            return f"it has {count} {kinds[mark]}, and at most {most} are allowed"
    longest = max((len(line) for line in text.splitlines()), default=0)
    if longest > LONGEST_LINE:
        return f"a line of it has {longest} characters, and at most {LONGEST_LINE} are allowed"
    return ""


def count_problems(raw: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    """Lists that are far too long, of a study that was not looked at yet."""
    sections = {key: value for key, value in raw.items() if isinstance(value, Mapping) and (key,) not in COUNTS}
    for key, section in {"": raw, **sections}.items():
        if len(section) > MOST_KEYS:
            yield Problem(place(key), f"expected at most {MOST_KEYS} keys, got {len(section)}.", "Leave some out.")
    for path, most in COUNTS.items():
        value: Any = raw
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping | list | tuple) and len(value) > most:
            yield Problem(place(*path), f"expected at most {most}, got {len(value)}.", "Leave some out.")
    for key, most in (("name", LONGEST_NAME), ("description", LONGEST_WORDS)):
        if isinstance(text := raw.get(key), str) and len(text) > most:
            yield Problem(place(key), f"expected at most {most} characters, got {len(text)}.", "Shorten it.")
    features = raw.get("features")
    for name, feature in features.items() if isinstance(features, Mapping) else ():
        if len(str(name)) > LONGEST_NAME:
            what = f"expected a name of at most {LONGEST_NAME} characters, got {len(str(name))}."
            yield Problem(place("features"), what, "Rename it.")
        if isinstance(feature, Mapping) and len(feature) > MOST_KEYS:
            what = f"expected at most {MOST_KEYS} keys, got {len(feature)}."
            yield Problem(place("features", str(name)[:40]), what, "Leave some out.")
        for key in ("categories", "aliases", "missing"):
            entries = feature.get(key) if isinstance(feature, Mapping) else None
            if isinstance(entries, list | tuple) and len(entries) > CATEGORIES:
                what = f"expected at most {CATEGORIES}, got {len(entries)}."
                yield Problem(place("features", str(name)[:40], key), what, "Leave some out.")


def size_problems(study: Study, place: Callable[..., str]) -> Iterable[Problem]:
    """Of a study that is valid otherwise: a network that no machine of a hospital holds."""
    kind, hidden, outputs = study.network.kind, study.network.hidden, study.target.outputs
    if study.images:
        height, width = study.images.size
        first = study.network.width if kind != "resnet18" else 64
        if (numbers := first * height * width) > MOST_MAP:
            what = f"the first map of one picture would have {numbers} numbers, and at most {MOST_MAP} are allowed."
            yield Problem(place("network", "width"), what, "Use smaller pictures or a smaller width.")
        ends = (2 * first * (height // 4) * (width // 4), *hidden, outputs) if kind == "cnn" else ()
    else:
        given = sum(max(1, len(feature.categories)) for feature in study.features.values())
        ends = (given, *(hidden if kind == "mlp" else ()), outputs)
    if (weights := sum(a * b for a, b in pairwise(ends))) > MOST_WEIGHTS:
        what = f"the network would have about {weights} weights, and at most {MOST_WEIGHTS} are allowed."
        hint = "Write smaller numbers in hidden, or use fewer columns or pixels."
        yield Problem(place("network", "hidden"), what, hint)
