"""The table of methods, one file each. One that is listed is a command-line name, a study key, and under every law.

A package of your own adds to it by an entry point of the group "vitrail.methods" (my_method = "package:Class"):
installed, its method is known to the command line and to deployed sites. vitrail.testing.check_method runs the laws.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from vitrail.core.declarations import LARGEST, describe, fits, hyperparameters
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.methods.vertical import PARTIES
from vitrail.storage.toml import read_value

if TYPE_CHECKING:
    from vitrail.core.exchange import AnyMethod


class _Methods(MutableMapping[str, "type[AnyMethod]"]):
    """By name; and as NAME:KEY=VALUE:... the same method with other hyperparameters, for a comparison with itself.

    A method that is given as "module:Class" is loaded, and torch with it, when it is first looked at: what is about
    names alone does without.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places: dict[str, str | type[AnyMethod]] = {**places}
        self._variants: dict[str, type[AnyMethod]] = {}  # made so far, so that each is one class

    def __getitem__(self, name: str) -> type[AnyMethod]:
        if name in self._variants:
            return self._variants[name]
        if name not in self._places and ":" in name:
            self._variants[name] = self._variant(*split_name(name))
            return self._variants[name]
        place = self._places[name]
        if isinstance(place, str):
            module, _, kind = place.partition(":")
            place = self._places[name] = getattr(importlib.import_module(module), kind)
        return place

    def _variant(self, base: str, given: Mapping[str, Any]) -> type[AnyMethod]:
        kind = self[base]
        own = {k: hint for k, hint in hyperparameters(kind).items() if k in given}
        title = f"{kind.catalogue.title} ({', '.join(f'{k} {v}' for k, v in given.items())})"
        catalogue = dataclasses.replace(kind.catalogue, title=title)
        body = {"__module__": kind.__module__, "__annotations__": own, "catalogue": catalogue, "variant_of": kind}
        return dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), {**body, **given}))

    def __setitem__(self, name: str, kind: type[AnyMethod]) -> None:
        self._places[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.partition(":")[0] in self._places

    def place_of(self, name: str) -> str:
        """Where a method is defined, "module:Class"; it need not be loaded for this."""
        place = self._places[name]
        return place if isinstance(place, str) else class_place(place)


def class_place(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def split_name(name: str) -> tuple[str, dict[str, Any]]:
    """The name of a method, and the hyperparameters that stand behind it.

    >>> split_name("fedprox:mu=0.5")
    ('fedprox', {'mu': 0.5})
    """
    base, *rest = name.split(":")
    pairs = [item.partition("=") for item in rest]
    return base, {key.strip(): read_value(value) for key, _, value in pairs}


TABLE = _Methods(
    {
        "local": "vitrail.methods.local:Local",
        "centralized": "vitrail.methods.centralized:Centralized",
        "fedavg": "vitrail.methods.fedavg:FedAvg",
        "fedprox": "vitrail.methods.fedprox:FedProx",
        "fedper": "vitrail.methods.fedper:FedPer",
        "apfl": "vitrail.methods.apfl:APFL",
        "scaffold": "vitrail.methods.scaffold:Scaffold",
        "ditto": "vitrail.methods.ditto:Ditto",
        "fine_tune": "vitrail.methods.fine_tune:FineTune",
        "ifedavg": "vitrail.methods.ifedavg:IFedAvg",
        "weight_erosion": "vitrail.methods.weight_erosion:WeightErosion",
        "weight_erosion_sums": "vitrail.methods.erosion_sums:ErosionSums",
        "influence": "vitrail.methods.influence:Influence",
        "moon": "vitrail.methods.moon:Moon",
        "fed_rod": "vitrail.methods.fed_rod:FedRoD",
        "apple": "vitrail.methods.apple:APPLE",
        "cfl": "vitrail.methods.cfl:CFL",
        "ripfl": "vitrail.methods.ripfl:RIPFL",
        "centres": "vitrail.methods.centres:Centres",
        "agreed_mix": "vitrail.methods.agreed_mix:AgreedMix",
        "indisco": "vitrail.methods.indisco:InDISCO",
        "indisco_central": "vitrail.methods.indisco:InDISCOCentral",
    }
)

DEFAULT = "fedavg"  # of a study that names no method

GROUP = "vitrail.methods"  # of entry points
_origins: dict[str, tuple[str, str]] = {}  # method -> package and version that brought it
_broken: dict[str, str] = {}  # method -> why it could not be loaded


def add_installed(entries: Iterable[EntryPoint]) -> None:
    """What other packages bring. One that cannot be loaded is told when it is asked for; no name is taken twice."""
    for entry in entries:
        from vitrail.core.exchange import Method

        package = (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")
        if entry.name in TABLE:
            _broken[f"{entry.name} of {package[0]}"] = f"there is already a method {entry.name!r}."
            continue
        try:
            kind = entry.load()
            if not (isinstance(kind, type) and issubclass(kind, Method) and dataclasses.is_dataclass(kind)):
                raise TypeError(f"{entry.value} is not a dataclass derived from Method")
            TABLE[entry.name], _origins[entry.name] = kind, package
        except Exception as error:  # whatever a stranger's module raises
            _broken[entry.name] = (
                f"the package {' '.join(filter(None, package))} provides it, but loading it "
                f"failed: {type(error).__name__}: {error}."
            )


def origin(name: str) -> tuple[str, str] | None:
    """The package and version that brought a method; None for those of ours."""
    return _origins.get(name)


def name_of(method: AnyMethod) -> str:
    """The method's name in the table."""
    kinds = [kind for kind in (type(method), getattr(method, "variant_of", None)) if kind]
    places = {class_place(kind) for kind in kinds}
    for name in TABLE:
        if TABLE.place_of(name) in places and TABLE[name] in kinds:
            return name
    what = f"{type(method).__name__} is not in the table of methods."
    raise VitrailError(
        "the method cannot be used", [Problem("method", what, 'Register it: vt.methods.TABLE["name"] = ...')]
    )


def named(test: Callable[[type[AnyMethod]], bool]) -> list[str]:
    """Names of the methods that pass a test of what they declare, in the order of the table.

    >>> named(lambda kind: not kind.catalogue.federated and not kind.catalogue.required_net)
    ['local', 'centralized']
    """
    return [name for name, kind in TABLE.items() if test(kind)]


def settings(method: AnyMethod) -> dict[str, Any]:
    """Its hyperparameters, those left to the study omitted."""
    return {k: v for k, v in dataclasses.asdict(method).items() if v is not None}


def problems(
    name: object, given: Mapping[str, Any], where: str, table: Mapping[str, type[Any]] = TABLE
) -> list[Problem]:
    """What is wrong with this name and these hyperparameters."""
    if not isinstance(name, str) or name not in table:
        what = _broken.get(str(name), f"there is no method {name!r}.")
        return [Problem(f"{where}.name", what, nearest(str(name), table))]
    if ":" in name:
        base, beside = split_name(name)
        return problems(base, {**beside, **given}, where, table)
    if not given:
        return []  # its defaults, which need not be loaded for this
    fields, wrong = hyperparameters(table[name]), []
    for k, v in given.items():
        if k not in fields:
            wrong.append(Problem(f"{where}.{k}", f"{name} has no hyperparameter {k!r}.", nearest(k, fields)))
        elif not fits(v, fields[k]):
            wrong.append(Problem(f"{where}.{k}", f"expected {describe(fields[k])}, got {_shown(v)}.", f"Correct {k}."))
    if not wrong:
        try:
            table[name](**given)
        except ValueError as error:
            wrong.append(Problem(where, f"{error}.", "Remove or correct it."))
    return wrong


def build_party(name: str, given: Mapping[str, Any] | None = None) -> Any:
    """The method of parties of this name (vertical.py) with these hyperparameters.

    >>> build_party("split", {"hidden": (8,)}).hidden
    (8,)
    """
    if wrong := problems(name, given or {}, "method", PARTIES):
        raise VitrailError("the method cannot be used", wrong)
    return PARTIES[name](**(given or {}))


def build(name: str, given: Mapping[str, Any] | None = None) -> AnyMethod:
    """The method of this name with these hyperparameters.

    >>> build("fedprox", {"mu": 0.5}).mu
    0.5
    """
    wrong = problems(name, given or {}, "method")
    if wrong:
        raise VitrailError("the method cannot be used", wrong)
    return TABLE[name](**(given or {}))


def _shown(value: object) -> str:
    """What came, of a long one the beginning; and why a large number is none."""
    text = repr(value)
    text = text if len(text) <= 200 else f"{text[:200]}..."
    return f"{text}, which has more than 64 bits" if isinstance(value, int) and abs(value) > LARGEST else text
