"""The study: what the sites agreed on, as one TOML file. Typed, validated, every problem at once with its line."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError

from vitrail import methods
from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.core.toml import key_lines, toml_key, toml_value
from vitrail.data.schema import Cell, Feature, Split, Strict, Table, Target, canon

if TYPE_CHECKING:
    import pandas as pd

CLASS_METRICS = ("balanced_accuracy", "accuracy", "f1", "auc", "log_loss")
NUMBER_METRICS = ("rmse", "mae", "r2")
SHARES = frozenset({"balanced_accuracy", "accuracy", "f1", "auc"})  # between 0 and 1
LOWER_IS_BETTER = frozenset({"log_loss", "rmse", "mae"})
SEEDS = (2934384, 10231938, 8273, 2019231, 62739)  # those of the iFedAvg paper
DEEPEST = 8  # sections within sections; a study needs four


class Network(Strict):
    kind: Literal["mlp", "linear", "cnn", "resnet18"] = "mlp"  # the last two: of pictures
    hidden: tuple[int, ...] = (128, 64)  # units of the mlp's layers, or of the two between cnn's convolutions and head
    width: int = Field(default=32, ge=1, le=1024)  # channels of cnn's first convolution
    dropout: float = Field(default=0.2, ge=0, lt=1)


class TrainingSpec(Strict):
    rounds: int = Field(default=100, ge=1)
    epochs: int = Field(default=1, ge=1)
    batch: int = Field(default=16, ge=1)
    lr: float = Field(default=0.002, gt=0)
    momentum: float = Field(default=0.5, ge=0, lt=1)
    decay: float = Field(default=0.9, gt=0, le=1)
    decays: int = Field(default=50, ge=0)
    loss: Literal["likelihood", "evidence"] = (
        "likelihood"  # evidence: of classes, by a model that says how unsure it is
    )
    kl: float = Field(default=0.1, ge=0)  # of evidence: how much of it for wrong classes costs, in the end
    anneal: int = Field(default=10, ge=0)  # epochs until then
    total: Literal["sum", "mean"] = "sum"  # of the losses of a batch's rows
    class_weights: Literal["inverse", "none"] = "inverse"
    optimiser: Literal["sgd", "adam"] = "sgd"  # momentum is SGD's
    weight_decay: float = Field(default=0.0, ge=0)
    rates: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})  # of lr, for a group of layers: head = 0.1
    memory: Literal["fresh", "own", "kept"] = "own"  # of the optimiser, what outlives a round: none, own layers', all


class Study(Table):
    """Features, target, split, network, training, method, seeds, metrics."""

    name: str = "study"
    description: str = ""
    network: Network = Network()
    training: TrainingSpec = TrainingSpec()
    method: dict[str, Any] = Field(default_factory=lambda: {"name": methods.DEFAULT})  # and hyperparameters
    seeds: tuple[int, ...] = SEEDS
    metrics: tuple[str, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any], source: str = "study", where: Callable[..., str] | None = None) -> Study:
        """A study from nested dictionaries; all problems at once."""
        place = where or (lambda *path: ".".join(str(p) for p in path))
        problems: list[Problem] = []
        plain = _plain(raw, (), place, problems)
        said = {p.where for p in problems}
        _settle(plain)
        study = None
        try:
            study = cls.model_validate(plain)
        except ValidationError as error:
            found = dict.fromkeys(_explain(e, place) for e in error.errors())  # a union says it more than once
            problems += [p for p in found if p.where not in said]
        said = {p.where for p in problems}
        problems += [p for p in _inconsistencies(plain, place) if p.where not in said]
        if problems or study is None:
            raise VitrailError(f"{source} is not a valid study ({len(problems)} to correct)", problems)
        metrics = study.metrics or (CLASS_METRICS[:4] if study.target.kind == "classes" else NUMBER_METRICS)
        return study.model_copy(update={"metrics": metrics})

    @classmethod
    def load(cls, path: str | Path) -> Study:
        """Read a study file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            what, hint = f"expected a study file, but: {reason}.", "Draft one with `vitrail init DATA --target COLUMN`."
            raise VitrailError("cannot read the study", [Problem(str(path), what, hint)]) from None
        try:
            raw = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits are a plain ValueError
            what = f"expected TOML: {error}."
            raise VitrailError(f"{path} is not TOML", [Problem(str(path), what, "Correct that line.")]) from None
        lines = key_lines(text)

        def where(*keys: str | int) -> str:
            named = [str(k) for k in keys]
            shown = ".".join(named)
            for n in range(len(named), 0, -1):
                if tuple(named[:n]) in lines:
                    return f"{path}:{lines[tuple(named[:n])]} {shown}"
            return f"{path} {shown}"

        return cls.parse(raw, str(path), where)

    @classmethod
    def infer(cls, sites: Mapping[str, pd.DataFrame], target: str, **given: Any) -> Study:
        """Draft a study from tables: kinds, ranges and categories are guesses to be read by a person."""
        from vitrail.data.infer import infer_table

        drafted = infer_table(sites, target, str(given.get("site_column", "")))
        return cls.parse({**drafted, **given}, "the inferred study")

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    def to_toml(self) -> str:
        """The study as a file a person can read; defaults are written out."""
        plain = self.model_dump()
        out = [f"{k} = {toml_value(plain[k])}" for k in ("name", "description", "seeds", "metrics", "standardise")]
        if self.site_column:
            out.append(f"site_column = {toml_value(self.site_column)}")
        for section in ("target", *["images"] * bool(self.images), "split", "network", "training", "method"):
            out += ["", f"[{section}]"]
            fields = getattr(type(getattr(self, section)), "model_fields", {})  # a method has none
            empty = {k: f.default for k, f in fields.items() if f.default in (None, "", (), {})}
            said = {k: v for k, v in plain[section].items() if k not in empty or v != empty[k]}
            out += [f"{toml_key(k)} = {toml_value(v)}" for k, v in said.items()]
        defaults = Feature(kind="numeric").model_dump()
        for name, feature in plain["features"].items():
            out += ["", f"[features.{toml_key(name)}]", f"kind = {toml_value(feature['kind'])}"]
            out += [f"{k} = {toml_value(v)}" for k, v in feature.items() if k != "kind" and v != defaults[k]]
        return "\n".join(out) + "\n"

    def build_method(self) -> methods.AnyMethod:
        return methods.build(self.method["name"], {k: v for k, v in self.method.items() if k != "name"})

    def with_changes(self, **changes: Any) -> Study:
        """A copy with these fields replaced (sections as dictionaries of what changes), validated again."""
        plain = self.model_dump()
        for name, value in changes.items():
            before: Any = plain.get(name)
            merge = isinstance(before, dict) and isinstance(value, dict) and name != "method"
            plain[name] = {**before, **value} if merge else value
        return Study.parse(plain)


def _settle(plain: Any) -> None:
    """Defaults that depend on other sections, and what was spelt otherwise before, in place."""
    if isinstance(training := plain.get("training"), dict) and training.get("loss") in ("sum", "mean"):
        training.setdefault("total", training.pop("loss"))
    if plain.get("images") is not None and isinstance(network := plain.setdefault("network", {}), dict):
        network.setdefault("kind", "cnn")
        network.setdefault("dropout", 0.0)


def _plain(value: Any, path: tuple[Any, ...], place: Callable[..., str], problems: list[Problem]) -> Any:
    """Dictionaries, tuples and single values; what no study can hold (TOML has 64-bit numbers) is told."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping | list | tuple) and len(path) > DEEPEST:
        problems.append(Problem(place(*path[:2]), "it is nested too deeply.", "Correct it."))
        return None
    if isinstance(value, Mapping):
        names = [_plain(k, path, place, problems) for k in value]
        return {k: _plain(v, (*path, k), place, problems) for k, v in zip(names, value.values(), strict=True)}
    if isinstance(value, list | tuple):
        return tuple(_plain(v, (*path, i), place, problems) for i, v in enumerate(value))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        problems.append(Problem(place(*path), "expected a number of at most 64 bits.", "Correct it."))
        return None
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):  # halves of characters; no file holds them
        problems.append(Problem(place(*path), f"expected Unicode text, got {value!a}.", "Correct it."))
        return "?"
    return value


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


def _explain(error: Any, place: Callable[..., str]) -> Problem:
    """Pydantic's complaint in our words."""
    path, kind = list(error["loc"]), error["type"]
    union = path[:-1] == ["target", "positive"] or isinstance(path[-2:][0], int)  # a Cell: its types come last
    cell = union and path[-1] in ("bool", "int", "float", "str")
    short = kind == "missing" and isinstance(path[-1], int)  # a range of one number
    where = place(*(path[:-1] if cell or short else path))
    if kind == "extra_forbidden":
        known = _fields_at(path[:-1])
        return Problem(where, f"unknown key {path[-1]!r}.", nearest(str(path[-1]), known))
    if kind == "missing" and not short:
        return Problem(where, f"{path[-1]!r} is missing.", "Add it.")
    words = _EXPECTED[kind].format(**error.get("ctx", {})) if kind in _EXPECTED else error["msg"]
    if short:
        words = "expected more values"
    elif cell:
        words = "expected a text, a finite number, true or false"
    got = repr(list(error["input"]) if isinstance(error["input"], tuple) else error["input"])
    return Problem(where, f"{words}, got {got if len(got) < 60 else got[:57] + '...'}.", "Correct it.")


def _fields_at(path: list[Any]) -> Iterable[str]:
    model: Any = Study
    for step in path:
        if model is Study and step == "features":
            return Feature.model_fields if len(path) > 1 else ()
        annotation = model.model_fields[step].annotation if hasattr(model, "model_fields") else None
        model = next((a for a in (annotation, *get_args(annotation)) if hasattr(a, "model_fields")), None)
        if model is None:
            return ()
    return list(model.model_fields)


def _inconsistencies(raw: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    """What types cannot say. Looks at raw values and passes over those that are of a wrong type."""
    found = (raw.get(section) for section in ("target", "features"))
    target, features = (section if isinstance(section, Mapping) else {} for section in found)
    yield from _target_problems(target, features, raw, place)
    images = raw.get("images")
    if images is None and isinstance(raw.get("features", {}), Mapping) and not features:
        hint = "Add a [features.NAME] section for each column, or [images] for pictures."
        yield Problem(place("features"), "there are no features.", hint)
    if images is not None:
        yield from _picture_problems(images, features, target, place)
    dummies = set()
    for name, feature in features.items():
        if isinstance(feature, Mapping):
            yield from _feature_problems(str(name), feature, place)
            if feature.get("kind") == "categorical" and isinstance(feature.get("categories"), list | tuple):
                dummies |= {f"{name}={canon(c)}" for c in feature["categories"]}
    for name in dummies & set(features):
        hint = "Rename one of the two."
        yield Problem(place("features", name), "a category of another feature has this name in the model.", hint)
    method = raw.get("method", {"name": methods.DEFAULT})
    if isinstance(method, Mapping):
        if "name" not in method:
            yield Problem(place("method"), "'name' is missing.", nearest("", methods.TABLE))
        else:
            given = {k: v for k, v in method.items() if k != "name"}
            for p in methods.problems(method["name"], given, "method"):
                yield p._replace(where=place(*p.where.split(".", 1)))
    network = raw.get("network", {})
    if isinstance(network, Mapping):
        yield from _network_problems(network, images, place)
    hidden = network.get("hidden", (1,)) if isinstance(network, Mapping) else (1,)
    if isinstance(hidden, list | tuple) and any(isinstance(h, int) and h < 1 for h in hidden):
        yield Problem(place("network", "hidden"), f"layers need at least one unit, got {list(hidden)}.", "Correct it.")
    seeds = raw.get("seeds", (1,))
    if isinstance(seeds, list | tuple):
        if not seeds or len({repr(s) for s in seeds}) < len(seeds):
            yield Problem(place("seeds"), f"expected different whole numbers, got {list(seeds)}.", "Correct the list.")
        elif any(isinstance(s, int) and not 0 <= s < 2**63 for s in seeds):
            yield Problem(place("seeds"), "expected whole numbers from 0 to 2^63 - 1.", "Correct the list.")
    training = raw.get("training", {})
    if isinstance(training, Mapping) and training.get("loss") == "evidence" and target.get("kind") == "number":
        hint = 'Write loss = "likelihood".'
        yield Problem(place("training", "loss"), "evidence is for classes, and the target is a number.", hint)
    aims = {"classes": CLASS_METRICS, "number": NUMBER_METRICS}
    kind, metrics = target.get("kind", "classes"), raw.get("metrics", ())
    if not isinstance(metrics, list | tuple) or kind not in tuple(aims):
        return
    valid = aims[kind]
    if len({repr(m) for m in metrics}) < len(metrics):
        yield Problem(place("metrics"), f"a metric is listed twice in {list(metrics)}.", "List each once.")
    for m in metrics:
        if m not in valid:
            aim = "a number" if valid is NUMBER_METRICS else "classes"
            yield Problem(place("metrics"), f"there is no metric {m!r} for {aim}.", nearest(str(m), valid))


def _target_problems(
    target: Mapping[str, Any], features: Mapping[str, Any], raw: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    column, site_column = target.get("column"), raw.get("site_column", "")
    if isinstance(column, str) and column in features:
        yield Problem(place("features", column), "the target is also a feature.", "Remove this section.")
    if isinstance(site_column, str) and site_column and site_column in features:
        yield Problem(place("features", site_column), "the site column is also a feature.", "Remove this section.")
    if site_column and site_column == column:
        yield Problem(place("site_column"), "the site column is the target.", "Name another column.")
    classes, kind = target.get("classes", ()), target.get("kind", "classes")
    if not isinstance(classes, list | tuple) or not target:
        return
    if kind == "number":
        if classes or target.get("positive") is not None:
            hint = 'Remove classes and positive, or write kind = "classes".'
            yield Problem(place("target"), "a number has no classes.", hint)
        return
    if kind != "classes":
        return
    names = [canon(c) for c in classes]
    if len(names) < 2:
        yield Problem(place("target", "classes"), f"expected two or more classes, got {list(classes)}.", "List them.")
    elif len(set(names)) < len(names):
        yield Problem(place("target", "classes"), f"a class is listed twice in {list(classes)}.", "List each once.")
    positive = target.get("positive")
    if positive is not None and names and canon(positive) not in names:
        what = f"{positive!r} is not one of the classes {list(classes)}."
        yield Problem(place("target", "positive"), what, nearest(canon(positive), names))


def _feature_problems(name: str, feature: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    def tell(key: str, what: str, hint: str) -> Problem:
        return Problem(place("features", name, key), what, hint)

    kind, categories = feature.get("kind"), feature.get("categories", ())
    bounds, missing = feature.get("range"), feature.get("missing", ())
    if isinstance(bounds, list | tuple) and len(bounds) == 2 and all(_is_number(b) for b in bounds):
        if not bounds[0] < bounds[1]:
            what = f"expected [low, high] with low < high, got {list(bounds)}."
            yield tell("range", what, "Swap or correct them.")
        if kind in ("binary", "categorical"):
            yield tell("range", f"a {kind} feature has no range.", "Remove it, or list categories.")
    if not isinstance(categories, list | tuple) or not isinstance(missing, list | tuple):
        return
    levels, listed = [canon(c) for c in categories], list(categories)
    if kind == "numeric" and levels:
        hint = 'Remove them, or write kind = "categorical".'
        yield tell("categories", "a numeric feature has no categories.", hint)
    if kind == "binary" and len(levels) != 2:
        yield tell("categories", f"a binary feature needs two categories, got {listed}.", "List both.")
    if kind == "categorical" and len(levels) < 2:
        yield tell("categories", f"a categorical feature needs two or more categories, got {listed}.", "List them.")
    if len(set(levels)) < len(levels):
        yield tell("categories", f"a category is listed twice in {listed}.", "List each once.")
    for code in missing:
        if canon(code) in levels:
            yield tell("missing", f"{code!r} is a category and also means missing.", "Remove one of the two.")


def _picture_problems(
    images: Any, features: Mapping[str, Any], target: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    if features:
        yield Problem(place("features"), "a study of pictures has no columns beside them.", "Remove these sections.")
    if target.get("kind", "classes") == "number":
        what = "pictures are told apart by classes, and the target is a number."
        yield Problem(place("target", "kind"), what, 'Write kind = "classes" and list them.')
    if not isinstance(images, Mapping):
        return
    if images.get("column", "picture") == target.get("column"):
        yield Problem(place("images", "column"), "the column of pictures is the target.", "Name another.")
    size = images.get("size")
    if isinstance(size, list | tuple) and any(isinstance(n, int) and not 8 <= n <= 1024 for n in size):
        what = f"expected height and width from 8 to 1024 pixels, got {list(size)}."
        yield Problem(place("images", "size"), what, "Correct it.")


def _network_problems(network: Mapping[str, Any], images: Any, place: Callable[..., str]) -> Iterable[Problem]:
    kind, hidden, pictures = network.get("kind", "mlp"), network.get("hidden", (128, 64)), images is not None
    if kind in ("cnn", "resnet18") and not pictures:
        hint = 'Write kind = "mlp" or "linear", or add [images].'
        yield Problem(place("network", "kind"), f"{kind} is for pictures, and the study has columns.", hint)
    elif kind in ("mlp", "linear") and pictures:
        yield Problem(place("network", "kind"), f"{kind} is for columns.", 'Write kind = "cnn" or "resnet18".')
    elif pictures:
        if network.get("dropout", 0):
            yield Problem(place("network", "dropout"), f"{kind} has none.", "Write dropout = 0.0.")
        size = images.get("size") if isinstance(images, Mapping) else None
        if kind == "cnn" and isinstance(size, list | tuple) and any(isinstance(n, int) and 8 <= n < 16 for n in size):
            what = f"cnn needs pictures of at least 16 x 16 pixels, and they are {list(size)}."
            yield Problem(place("network", "kind"), what, 'Agree on a larger size, or write kind = "resnet18".')
        if kind == "cnn" and isinstance(hidden, list | tuple) and len(hidden) != 2:
            what = f"cnn has two linear layers between convolutions and head, got {list(hidden)}."
            yield Problem(place("network", "hidden"), what, "Give two numbers of units.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


__all__ = ["Cell", "Feature", "Network", "Split", "Study", "Table", "Target", "TrainingSpec"]
