"""What a method declares beside its messages and its equations, grouped by what it is for.

    wire = WireRules(aggregation="sum", weight_fields={"weight"})    what its messages mean
    needs = Needs(row_indices=True)                                  what it needs at a site beyond batches
    catalogue = Catalogue("FedAvg", tuning_grid={...})               what lists and comparisons of methods show
    mu: Annotated[float, Ge(0)] = 0.1                                a hyperparameter and its bounds

A group that is left out has its defaults. `wire` and `needs` may be properties where they depend on hyperparameters.
Classes that declare something by a name of version 0.1, or a group as something else, are refused when they are made: a
declaration that nobody reads would be dangerous.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

TuningGrid = Mapping[str, tuple[Any, ...]]  # hyperparameter -> values


OutputLayer = Literal["no", "each", "scalar", "shift", "factor"]
WITH_SHIFT, WITH_FACTOR = frozenset({"each", "scalar", "shift"}), frozenset({"each", "scalar", "factor"})


class Adapters(NamedTuple):
    """Element-wise layers that a method wants before and after the network."""

    input: bool = False
    output: OutputLayer = "no"  # a shift and a factor for each output, or one factor for all; or one of the two alone


WITHOUT_ADAPTERS = Adapters()


def output_sizes(layer: OutputLayer, outputs: int) -> dict[str, int]:
    """The parameters of the layer after the network, and how many numbers each holds.

    >>> output_sizes("scalar", 3), output_sizes("factor", 3)
    ({'output.shift': 3, 'output.scale': 1}, {'output.scale': 3})
    """
    sizes = {"output.shift": outputs} if layer in WITH_SHIFT else {}
    return sizes | ({"output.scale": 1 if layer == "scalar" else outputs} if layer in WITH_FACTOR else {})


@dataclass(frozen=True)
class WireRules:
    """What an exchange declares about its messages; fields are named as in the report (Up), the message to sites (Down)
    or the state.

    >>> WireRules(weight_fields="weight")
    Traceback (most recent call last):
    ...
    TypeError: WireRules(weight_fields='weight'): expected a set of names of fields, such as {'weight'}
    """

    aggregation: Literal["sum", "each"] = "each"  # merge is given the total over sites, or each site's report
    weight_fields: Set[str] = frozenset()  # of a report: how much it counts, and no change
    score_fields: Set[str] = frozenset()  # of a report: how models do on a site's rows
    hit_fields: Set[str] = frozenset()  # of these, [..., 2]: how many rows a model predicts rightly, of how many
    may_be_nan: Set[str] = frozenset()  # tensors of a report that may hold what is no number
    step_fields: Set[str] = frozenset()  # of a word: steps in the space of the model's parameters, and no models
    final_fields: Set[str] = frozenset()  # of a word: what `settle` looks at; none named: all
    disclosed_state: Set[str] = frozenset()  # of a method's state: what its reports disclose; all else never leaves
    per_site_messages: bool = False  # of a method: messages hold something for every site, and grow with them

    def __post_init__(self) -> None:
        if self.aggregation not in ("sum", "each"):
            raise TypeError(f"WireRules(aggregation={self.aggregation!r}): expected 'sum' or 'each'")
        for name, names in ((f.name, getattr(self, f.name)) for f in fields(self)[1:-1]):
            if not isinstance(names, Set):
                such = f", such as {{{names!r}}}" if isinstance(names, str) else ""
                raise TypeError(f"WireRules({name}={names!r}): expected a set of names of fields{such}")
        if odd := self.hit_fields - self.score_fields:
            raise TypeError(f"WireRules(hit_fields=...): {sorted(odd)} must be among the score_fields too")


@dataclass(frozen=True)
class Needs:
    """What an exchange needs at a site beyond the rows of its batches."""

    row_indices: bool = False  # a batch says which rows it holds (Batch.at)
    holdout: bool = False  # it counts on the site's hold-out rows (Rows.holdout)
    validation_share: float = 0.0  # of a method: share of training rows kept out of training (Rows.validation)
    adapters: Adapters = WITHOUT_ADAPTERS  # of a method: private layers before and after the network


@dataclass(frozen=True)
class Catalogue:
    """What lists, comparisons and tuning show of a method, and need to know before it is built."""

    title: str = ""  # as a page writes it
    baseline: Literal["", "alone", "pooled"] = ""  # each site by itself; or all rows in one place: never deployed
    required_net: str = ""  # the kind of network that it is about, where it is about one (nets.TABLE)
    tuning_grid: TuningGrid = field(default_factory=dict)  # what `vitrail tune` tries, where nobody says
    tune_first: bool = False  # the defaults are no use before `vitrail tune`
    in_sums: str = (
        ""  # the name of a method that does the same and needs totals alone, where this one needs each report
    )
    in_short_comparison: bool = False  # shown in a short comparison, beside the baselines and the default

    def __post_init__(self) -> None:
        if self.baseline not in ("", "alone", "pooled"):
            raise TypeError(f"Catalogue(baseline={self.baseline!r}): expected 'alone' or 'pooled', or nothing")

    @property
    def federated(self) -> bool:
        return not self.baseline

    @property
    def alone(self) -> bool:
        """The baseline of joining: each site by itself."""
        return self.baseline == "alone"

    @property
    def pools_rows(self) -> bool:
        """The baseline that takes all rows to one place."""
        return self.baseline == "pooled"


GROUPS: dict[str, type] = {"wire": WireRules, "needs": Needs, "catalogue": Catalogue}
OF_METHODS = {"wire": ("disclosed_state", "per_site_messages"), "needs": ("validation_share", "adapters")}
_MOVED = {  # names of version 0.1 in every exchange, and where each is declared now
    "sees": "wire = WireRules(aggregation=...)",
    "counts": "wire = WireRules(weight_fields=...)",
    "judges": "wire = WireRules(score_fields=...)",
    "hits": "wire = WireRules(hit_fields=...)",
    "unsure": "wire = WireRules(may_be_nan=...)",
    "settles": "wire = WireRules(final_fields=...)",
    "places": "needs = Needs(row_indices=...)",
    "holds_out": "needs = Needs(holdout=...)",
}
_MOVED_OF_METHODS = {
    "told": "wire = WireRules(disclosed_state=...)",
    "grows": "wire = WireRules(per_site_messages=...)",
    "aside": "needs = Needs(validation_share=...)",
    "ends": "needs = Needs(adapters=...)",
    "title": "catalogue = Catalogue(title=...)",
    "federated": "catalogue = Catalogue(baseline=...)",
    "alone": 'catalogue = Catalogue(baseline="alone")',
    "pools_rows": 'catalogue = Catalogue(baseline="pooled")',
    "tune_first": "catalogue = Catalogue(tune_first=...)",
    "tries": "catalogue = Catalogue(tuning_grid=...)",
    "brief": "catalogue = Catalogue(in_short_comparison=...)",
    "knows": "the method `self_report`",
    "judged_by": "the method `training_loss`",
    "ruled_by": "the method `training_optimizer`",
    "clashes": "the method `incompatibilities`",
}


def check_declarations(kind: type, method: bool) -> None:
    """Refuse a class whose declarations nobody would read; all that is wrong at once.

    >>> check_declarations(type("Mine", (), {"sees": "sum"}), method=False)
    Traceback (most recent call last):
    ...
    TypeError: Mine: `sees` is now declared as wire = WireRules(aggregation=...)
    """
    if problems := list(_misplaced(kind, method)):
        raise TypeError(f"{kind.__name__}: {'; '.join(problems)}")


def _misplaced(kind: type, method: bool) -> Iterator[str]:
    annotations = [inspect.get_annotations(base) for base in kind.__mro__]
    declared = {name for base in kind.__mro__ for name in vars(base)}.union(*annotations)
    for old, place in (_MOVED | (_MOVED_OF_METHODS if method else {})).items():
        if old in declared:
            yield f"`{old}` is now declared as {place}"
    for name, group in GROUPS.items():
        if any("ClassVar" not in str(a[name]) for a in annotations if name in a):
            yield f"write `{name} = {group.__name__}(...)` without a type, or it becomes a hyperparameter"
        value = inspect.getattr_static(kind, name, group())
        if not isinstance(value, group) and (name == "catalogue" or not hasattr(value, "__get__")):
            yield f"`{name}` is {value!r}; expected {name} = {group.__name__}(...)"
        elif isinstance(value, group) and not method:
            for k in OF_METHODS.get(name, ()):
                if getattr(value, k) != getattr(group(), k):
                    yield f"`{k}` is declared by the method, not by one of its exchanges"


@dataclass(frozen=True)
class Ge:
    """A bound of a hyperparameter: at least. Bounds of annotated-types will do as well.

    These are no tuples: `Le(1) == Lt(1)` would hold for tuples, and `typing` keeps one of two equal annotations."""

    ge: float


@dataclass(frozen=True)
class Gt:
    """A bound of a hyperparameter: more than."""

    gt: float


@dataclass(frozen=True)
class Le:
    """A bound of a hyperparameter: at most."""

    le: float


@dataclass(frozen=True)
class Lt:
    """A bound of a hyperparameter: less than."""

    lt: float


BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": (">=", operator.ge),
    "gt": (">", operator.gt),
    "le": ("<=", operator.le),
    "lt": ("<", operator.lt),
}
LARGEST = 2**63 - 1  # whole number that a tensor can hold


_hints: dict[type, dict[str, Any]] = {}  # worked out so far


def hyperparameters(kind: type) -> dict[str, Any]:
    """The type of each field of a method, with its bounds."""
    if kind not in _hints:
        hints = get_type_hints(kind, include_extras=True)
        _hints[kind] = {f.name: hints[f.name] for f in fields(kind)}
    return _hints[kind]


def _bounds_in(metadata: tuple[Any, ...]) -> list[tuple[str, float]]:
    return [(name, getattr(m, name)) for m in metadata for name in BOUNDS if hasattr(m, name)]


def fits(value: object, hint: Any, metadata: tuple[Any, ...] = ()) -> bool:
    """Whether this is a value of the type and within its bounds; a number must be finite.

    >>> fits(0.5, Annotated[float, Ge(0), Le(1)] | None), fits(2, Annotated[float, Ge(0), Le(1)]), fits(-3, int)
    (True, False, True)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, inner[0], (*metadata, *hint.__metadata__))
    if origin is tuple:
        return isinstance(value, list | tuple) and all(fits(v, inner[0], metadata) for v in value)
    if inner:  # a Literal or alternatives
        return any(fits(value, choice, metadata) for choice in inner)
    if hint in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(value, int)
        finite = abs(value) <= LARGEST if whole else math.isfinite(value)
        return (
            finite
            and (whole or hint is float)
            and all(BOUNDS[name][1](value, limit) for name, limit in _bounds_in(metadata))
        )
    if hint in (bool, str):
        return isinstance(value, hint)
    return not isinstance(hint, type) and value == hint and type(value) is type(hint)


def describe(hint: Any, metadata: tuple[Any, ...] = ()) -> str:
    """The type in words, with its bounds.

    >>> describe(Annotated[int, Ge(1)] | None), describe(tuple[Annotated[float, Ge(0), Lt(1)], ...])
    ('a whole number >= 1', 'a list, each a number >= 0 and < 1')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return describe(inner[0], (*metadata, *hint.__metadata__))
    if origin is tuple:
        return f"a list, each {describe(inner[0], metadata)}"
    if inner:
        return " or ".join(describe(choice, metadata) for choice in inner if choice is not type(None))
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    if not isinstance(hint, type):
        return repr(hint)
    bounds = [f"{BOUNDS[name][0]} {limit:g}" for name, limit in _bounds_in(metadata) if hint in (int, float)]
    return f"{names.get(hint, repr(hint))} {' and '.join(bounds)}".rstrip()


def _has_bounds(hint: Any) -> bool:
    return get_origin(hint) is Annotated or any(map(_has_bounds, get_args(hint)))


def check_bounds(built: Any) -> None:
    """Raise ValueError where hyperparameters of a method that was built are beyond their bounds; all of them."""
    hints = {name: hint for name, hint in hyperparameters(type(built)).items() if _has_bounds(hint)}
    wrong = {name: v for name in hints if (v := getattr(built, name)) is not None and not fits(v, hints[name])}
    if wrong:
        raise ValueError("; ".join(f"{k}: expected {describe(hints[k])}, got {v!r}" for k, v in wrong.items()))
