"""What is wrong with a study file, in words: the complaints of its validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from vitrail.core.errors import Problem, nearest
from vitrail.data.schema import Feature, Party, Ration

_EXPECTED = {
    "string_type": "expected a text in quotes",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "dict_type": "expected a section",
    "model_type": "expected a section",
    "tuple_type": "expected a list in [ ]",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
    "too_short": "expected {min_length} values",
    "too_long": "expected {max_length} values",
    "finite_number": "expected a finite number",
}


def explain(error: Any, place: Callable[..., str], model: Any) -> Problem:
    """Pydantic's complaint in our words; `model`: the class that was validated."""
    path, kind = list(error["loc"]), error["type"]
    union = path[:-1] == ["target", "positive"] or isinstance(path[-2:][0], int)  # a Cell: its types come last
    cell = union and path[-1] in ("bool", "int", "float", "str")
    short = kind == "missing" and isinstance(path[-1], int)  # a range of one number
    where = place(*(path[:-1] if cell or short else path))
    if kind == "extra_forbidden":
        fields = _fields_at(path[:-1], model)
        return Problem(where, f"unknown key {path[-1]!r}.", nearest(str(path[-1]), fields))
    if kind == "missing" and not short:
        return Problem(where, f"{path[-1]!r} is missing.", "Add it.")
    words = _EXPECTED[kind].format(**error.get("ctx", {})) if kind in _EXPECTED else error["msg"]
    if short:
        words = "expected more values"
    elif cell:
        words = "expected a text, a finite number, true or false"
    got = repr(list(error["input"]) if isinstance(error["input"], tuple) else error["input"])
    return Problem(where, f"{words}, got {got if len(got) < 60 else got[:57] + '...'}.", "Correct it.")


def _fields_at(path: list[Any], whole: Any) -> Iterable[str]:
    model = whole
    for step in path:
        if model is whole and step in ("features", "parties"):
            kind = Feature if step == "features" else Ration if path[2:] else Party
            return kind.model_fields if len(path) > 1 else ()
        annotation = model.model_fields[step].annotation if hasattr(model, "model_fields") else None
        model = next((a for a in (annotation, *get_args(annotation)) if hasattr(a, "model_fields")), None)
        if model is None:
            return ()
    return list(model.model_fields)
