"""docs/study.md: every key of a study file, from the types that read it. A key is described by the comment beside or
above it.

python scripts/make_study_reference.py            # writes docs/study.md
python scripts/make_study_reference.py --check    # says whether it is current
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import sys
import textwrap
import tokenize
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from vitrail.core.declarations import hyperparameters
from vitrail.core.errors import VitrailError
from vitrail.data.schema import Cell
from vitrail.methods import PARTIES, TABLE
from vitrail.storage.toml import toml_value
from vitrail.study.model import Study

PAGE = Path(__file__).parent.parent / "docs" / "study.md"
LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
ANY = "NAME"  # of a feature or a party, in a heading

WHOLE = """\
name = "Deaths on the ward"
metrics = ["balanced_accuracy", "auc"]

[target]
column = "died"
classes = ["no", "yes"]
positive = "yes"

[features.age]
kind = "numeric"
unit = "years"
range = [18, 110]

[features.sex]
kind = "binary"
categories = ["f", "m"]

[features.ward]
kind = "categorical"
categories = ["A", "B", "C"]
missing = ["?"]

[training]
rounds = 60

[method]
name = "fedavg"
"""
NUMBER = 'target = {column = "days", kind = "number", unit = "days"}\nfeatures = {age = {kind = "numeric"}}\n'
PICTURES = 'target = {column = "finding", classes = ["no", "yes"]}\nimages = {size = [32, 32]}\n'
PROTOTYPES = PICTURES + 'network = {kind = "prototypes"}\n'
PRETRAINED = PICTURES + 'network = {kind = "prototypes", weights = "some.pth"}\n'
COMPANIES = """\
target = {column = "died", classes = ["no", "yes"]}
features = {age = {kind = "numeric"}}
parties = {hospital = {role = "host", id = "patient"}, lab = {role = "guest", id = "number"}}
"""
TIMES = """\
target = {kind = "time", time = "days", event = "died", cuts = [30, 90, 365]}
features = {age = {kind = "numeric"}}
"""
DATED = WHOLE + '[split]\nby = "date"\ncolumn = "admitted"\ntest_from = "2020-01-01"\n'
HORIZON = TIMES.replace("cuts = [30, 90, 365]", "horizon = 365")
NOISY = WHOLE + "[protect]\nclip = 1.0\nrows = {epsilon = 4.0}\nsites = {epsilon = 8.0}\n"
STATED = WHOLE + "[energy]\nwatts = 8.0\n"
KNOWN = WHOLE + '[known.north-age]\nsite = "north"\ncolumn = "age"\nwhy = "other examiner, real"\n'
BASES = (
    KNOWN,
    WHOLE,
    STATED,
    NUMBER,
    TIMES,
    HORIZON,
    PICTURES,
    PROTOTYPES,
    PRETRAINED,
    COMPANIES,
    NOISY,
    DATED,
)  # an example must be accepted in one of them

# by path; where none is given, one is made from the type and the default
EXAMPLES: dict[str, Any] = {
    "target.threshold": 0.1,
    "paper": "ifedavg",
    "name": "Deaths on the ward",
    "description": "Who dies within 30 days? Five hospitals, 2019 to 2023.",
    "seeds": [1, 2, 3],
    "metrics": ["auc", "log_loss"],
    "site_column": "hospital",
    "weight_column": "stands_for",
    "person": "patient_id",
    "target.column": "died",
    "target.classes": ["no", "yes"],
    "target.positive": "yes",
    "target.time": "days_followed",
    "target.event": "died",
    "target.horizon": 365.0,
    "target.intervals": 12,
    "target.cuts": [30.0, 90.0, 365.0],
    "target.unit": "days",
    "target.center": 7.5,
    "target.scale": 3.0,
    "features.NAME.unit": "mg/dL",
    "features.NAME.range": [18, 110],
    "features.NAME.categories": ["A", "B", "C"],
    "features.NAME.missing": [-9, "unknown"],
    "features.NAME.aliases": ["Alter", "age_years"],
    "features.NAME.description": "age at admission",
    "known.NAME.site": "north",
    "known.NAME.column": "age",
    "known.NAME.why": "other examiner, real",
    "known.NAME.who": "Dr. Weber",
    "known.NAME.when": "2026-11-19",
    "known.NAME.cause": "offset",
    "known.NAME.numbers": {"here": 61.5, "elsewhere": 54.0},
    "images.size": [64, 64],
    "images.column": "file",
    "images.bits": 16,
    "images.augment": ["flip", "shift"],
    "images.person": "(p[0-9]+)_",
    "split.test": 0.2,
    "split.at_least": 30,
    "split.at_most": 0.25,
    "split.by": "date",
    "split.column": "admitted",
    "split.test_from": "2021-01-01",
    "network.kind": "linear",
    "network.hidden": [32, 16],
    "network.width": 16,
    "network.dropout": 0.0,
    "network.prototypes": 5,
    "network.latent": 32,
    "network.weights": "efficientnet-lite0.safetensors",
    "network.backbone": "vgg19",
    "network.similarity": "cosine",
    "network.frozen": False,
    "training.rounds": 60,
    "training.epochs": 2,
    "training.batch": 32,
    "training.lr": 0.005,
    "training.momentum": 0.9,
    "training.decay": 0.95,
    "training.decays": 20,
    "training.kl": 0.05,
    "training.anneal": 20,
    "training.weight_decay": 0.01,
    "training.rates": {"head": 0.1},
    "method": {"name": "fedprox", "mu": 0.5},
    "energy.watts": 8.0,
    "energy.grid": 120.0,
    "share.least": 0.05,
    "share.most": 0.5,
    "protect.least": 4,
    "protect.clip": 1.0,
    "protect.rows_least": 50,
    "protect.rows": {"epsilon": 4.0},
    "protect.sites": {"epsilon": 8.0, "delta": 1e-5},
    "parties.NAME.id": "patient",
    "parties.NAME.answer": 2,
    "parties.NAME.bits": 4,
    "parties.NAME.noise": 0.5,
    "parties.NAME.ration": {"training": 10, "after": 500},
    "match.at_least": 200,
    "match.ratio": 5.0,
}


class Key(NamedTuple):
    """One key of a study file."""

    path: str
    takes: str
    default: str
    words: str
    example: Any


class Part(NamedTuple):
    """One section."""

    heading: str
    words: str
    keys: list[Key]


def parts() -> list[Part]:
    """The top of the file, then its sections, those within others behind them."""
    top: list[Key] = []
    out = [Part("Top of the file", "Before the first section.", top)]
    for key in keys_of(Study, ""):
        inner = section_of(Study.model_fields[key.path].annotation)
        if key.path == "method":
            out.append(Part("[method]", _method_words(), [key._replace(path="method.name", example=TABLE_NAME)]))
        elif inner is None:
            top.append(key)
        else:
            out += _sections(key.path, *inner, words_of(Study)[key.path])
    return out


TABLE_NAME = "fedavg"


def _sections(path: str, kind: type[BaseModel], many: bool, said: str) -> Iterator[Part]:
    path = f"{path}.{ANY}" if many else path
    keys = list(keys_of(kind, path))
    doc = inspect.cleandoc(kind.__doc__ or "") if kind.__doc__ != BaseModel.__doc__ else ""
    yield Part(f"[{path}]", " ".join(filter(None, [doc, _sentence(said)])), keys)
    for key in keys:
        name = key.path.rpartition(".")[2]
        if inner := section_of(kind.model_fields[name].annotation):
            yield from _sections(key.path, *inner, words_of(kind)[name])


def section_of(hint: Any) -> tuple[type[BaseModel], bool] | None:
    """The type of a section, and whether there are many by name; None of a plain value."""
    if get_origin(hint) in (types.UnionType, typing.Union):
        found = [s for arg in get_args(hint) if (s := section_of(arg))]
        return found[0] if found else None
    if get_origin(hint) is dict:
        inner = section_of(get_args(hint)[1])
        return (inner[0], True) if inner else None
    return (hint, False) if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def keys_of(kind: type[BaseModel], path: str) -> Iterator[Key]:
    words = words_of(kind)
    for name, field in kind.model_fields.items():
        at = f"{path}.{name}".lstrip(".")
        if at == "method":
            yield Key(at, "text", '"fedavg"', words[name], EXAMPLES[at])
            continue
        yield Key(at, takes_of(field.annotation, field), default_of(field), words[name], example_of(at, field))


def words_of(kind: type[BaseModel]) -> dict[str, str]:
    """Key -> the comment beside it or above it, in this class or in the one that it is inherited from."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        source = textwrap.dedent(inspect.getsource(base))
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type"))
        }
        full_lines = {n for n, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
        for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                first = node.lineno
                while first - 1 in full_lines:
                    first -= 1
                lines = range(first, (node.end_lineno or node.lineno) + 1)
                found[node.target.id] = " ".join(comments[n] for n in lines if n in comments)
    return {name: found.get(name, "") for name in kind.model_fields}


def takes_of(hint: Any, field: FieldInfo | None = None) -> str:
    """What a value may be, in words."""
    if {*get_args(hint)} - {type(None)} == {*get_args(Cell)}:
        return "text, number, true or false"
    origin, inner = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return takes_of(inner[0]) + _limits(inner[1:])
    if origin is Literal:
        said = ", ".join(f"`{toml_value(v)}`" for v in inner)
    elif origin in (types.UnionType, typing.Union):
        said = " or ".join(takes_of(a) for a in inner if a is not type(None))
    elif origin is tuple:
        one = takes_of(inner[0])
        many = re.sub(r"\b(number)\b", r"\1s", one, count=1) if one.split(",")[0].endswith("number") else one
        said = f"list of {many}" if inner[-1] is Ellipsis else f"[{', '.join(map(takes_of, inner))}]"
    elif origin is dict:
        said = f"section: name = {takes_of(inner[1])}"
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        said = "section"
    else:
        said = {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(hint, str(hint))
    return said + (_limits(field.metadata) if field else "")


def _limits(metadata: Any) -> str:
    """Also of a Field within Annotated, which keeps them for itself."""
    each = [m for told in metadata for m in (told.metadata if isinstance(told, FieldInfo) else [told])]
    said = [f"{words} {getattr(m, name):,.12g}" for m in each for name, words in LIMITS.items() if hasattr(m, name)]
    return f", {', '.join(said)}" if said else ""


def default_of(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "must be given"
    if isinstance(value, BaseModel) or value in (None, "", (), {}):
        return ""
    return f"`{toml_value(value)}`"


def example_of(path: str, field: FieldInfo) -> Any:
    """One that was written down, or one made from type and default."""
    if path in EXAMPLES:
        return EXAMPLES[path]
    default = field.get_default(call_default_factory=True)
    choices = [v for v in _choices(field.annotation) if v != default]
    if choices:
        return choices[-1] if isinstance(default, bool) else choices[0]
    if default not in (PydanticUndefined, None) and not isinstance(default, BaseModel):
        return default
    plain = next((a for a in (field.annotation, *get_args(field.annotation)) if a in (str, int, float)), None)
    return {str: "column", int: 1, float: 1.0}.get(plain)


def _choices(hint: Any) -> list[Any]:
    if hint is bool:
        return [True, False]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [v for arg in get_args(hint) for v in _choices(arg)] if get_origin(hint) is not tuple else []


def accepted(path: str, value: Any) -> bool:
    """Whether some study of ours is read with this value at this place."""
    if isinstance(value, BaseModel) or (value is None and path):
        return True  # a section: its keys have examples of their own
    for base in BASES:
        said = tomllib.loads(base)
        first, *rest = path.split(".")
        for name in said.get(first, {}) if ANY in rest else [""]:
            changed = _put(said, [name if part == ANY else part for part in (first, *rest)], value)
            try:
                Study.parse(changed)
            except VitrailError:
                continue
            return True
    return False


def _put(said: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    inner = _put(dict(said.get(path[0], {})), path[1:], value) if path[1:] else value
    return {**said, path[0]: inner}


def page() -> str:
    out = [
        "# Every key of a study file",
        "",
        "`vitrail init` drafts a study file. A key that is not on this page is refused, and the message names the "
        "nearest one. The smallest useful file names the target and the features. This one says a little more:",
        "",
        "```toml",
        WHOLE.rstrip(),
        "```",
        "",
        "If no default is shown, a key that is left out is empty, or means what its description says. A section with "
        "NAME in its heading is written once for each column or party. `scripts/make_study_reference.py` makes this "
        "page from the types that read the file; a test keeps it current and reads every example. Words with a special "
        "meaning are in the [glossary](glossary.md).",
    ]
    for part in parts():
        out += ["", f"## {part.heading}", "", *([part.words, ""] if part.words else [])]
        out += ["| key | takes | default | meaning | example |", "| --- | --- | --- | --- | --- |"]
        for key in part.keys:
            name = key.path.rpartition(".")[2]
            shown = "" if key.takes.startswith("section") and isinstance(key.example, BaseModel | None) else key.example
            line = f"`{name} = {toml_value(shown)}`" if shown != "" or isinstance(shown, bool) else ""
            out.append(f"| `{name}` | {key.takes} | {key.default} | {_sentence(key.words)} | {line} |")
    out += ["", *_methods()]
    return "\n".join(out) + "\n"


def _method_words() -> str:
    return (
        "How the sites learn. The method's own settings are written beside its name "
        f"(`{toml_value(EXAMPLES['method'])}` as a section): [below](#settings-of-each-method)."
    )


def _methods() -> Iterator[str]:
    """Each method's settings, by types and defaults; the top of its file says what they do."""
    yield "## Settings of each method"
    yield ""
    yield (
        "`vitrail methods` says what each method does, and `vitrail tune` finds values. Every method that is not for "
        "vertical studies also takes `lr` and `momentum`, in place of those of `[training]`. If no default is shown, "
        "it follows from the study or the method."
    )
    yield ""
    yield "| `name` | settings, with their defaults |"
    yield "| --- | --- |"
    for name, kind in sorted({**TABLE, **PARTIES}.items()):
        hints = hyperparameters(kind)
        given = [
            f"`{f.name}`: {takes_of(hints[f.name])}" + ("" if f.default is None else f" (`{toml_value(f.default)}`)")
            for f in dataclasses.fields(kind)
            if f.name not in ("lr", "momentum") or f.default is not None
        ]
        yield f"| `{name}` | {'; '.join(given) or 'none'} |"


def _sentence(words: str) -> str:
    words = words.strip().replace("|", "\\|").replace("None:", "left out:")
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', ':', '?')) else '.'}" if words else ""


def main() -> None:
    made = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == made else "docs/study.md is not current.")
    PAGE.write_text(made, encoding="utf-8")
    print(f"{PAGE.name}: {sum(len(part.keys) for part in parts())} keys in {len(parts())} sections.")


if __name__ == "__main__":
    main()
