"""The table of methods, one file each. One that is listed is a command-line name, a study key, and under every law.

A package of your own adds to it by an entry point of the group "vitrail.methods" (my_method = "package:Class"):
installed, its method is known to the command line and to deployed sites. vitrail.testing.check_method runs the laws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vitrail.core.declarations import LARGEST, describe, fits, hyperparameters
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.exchange import Method
from vitrail.methods.agreed_mix import AgreedMix
from vitrail.methods.apfl import APFL
from vitrail.methods.apple import APPLE
from vitrail.methods.centralized import Centralized
from vitrail.methods.centres import Centres
from vitrail.methods.cfl import CFL
from vitrail.methods.ditto import Ditto
from vitrail.methods.fed_rod import FedRoD
from vitrail.methods.fedavg import FedAvg
from vitrail.methods.fedper import FedPer
from vitrail.methods.fedprox import FedProx
from vitrail.methods.fine_tune import FineTune
from vitrail.methods.ifedavg import IFedAvg
from vitrail.methods.indisco import InDISCO, InDISCOCentral
from vitrail.methods.influence import Influence
from vitrail.methods.local import Local
from vitrail.methods.moon import Moon
from vitrail.methods.ripfl import RIPFL
from vitrail.methods.scaffold import Scaffold
from vitrail.methods.vertical import PARTIES, PARTIES_DEFAULT
from vitrail.methods.weight_erosion import WeightErosion
from vitrail.storage.toml import read_value

AnyMethod = Method[Any, Any, Any, Any, Any]


class _Methods(dict[str, type[AnyMethod]]):
    """By name; and as NAME:KEY=VALUE:... the same method with other hyperparameters, for a comparison with itself."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.partition(":")[0] if isinstance(name, str) else name)

    def __missing__(self, name: str) -> type[AnyMethod]:
        base, given = split_name(name)
        if not given:
            raise KeyError(name)
        kind = self[base]
        own = {k: hint for k, hint in hyperparameters(kind).items() if k in given}
        title = f"{kind.catalogue.title} ({', '.join(f'{k} {v}' for k, v in given.items())})"
        catalogue = dataclasses.replace(kind.catalogue, title=title)
        body = {"__module__": kind.__module__, "__annotations__": own, "catalogue": catalogue, "variant_of": kind}
        body |= given
        _variants[name] = dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), body))
        return _variants[name]

    def __getitem__(self, name: str) -> type[AnyMethod]:
        return _variants[name] if name in _variants else super().__getitem__(name)


_variants: dict[str, type[AnyMethod]] = {}  # made so far, so that each is one class


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
        "local": Local,
        "centralized": Centralized,
        "fedavg": FedAvg,
        "fedprox": FedProx,
        "fedper": FedPer,
        "apfl": APFL,
        "scaffold": Scaffold,
        "ditto": Ditto,
        "fine_tune": FineTune,
        "ifedavg": IFedAvg,
        "weight_erosion": WeightErosion,
        "influence": Influence,
        "moon": Moon,
        "fed_rod": FedRoD,
        "apple": APPLE,
        "cfl": CFL,
        "ripfl": RIPFL,
        "centres": Centres,
        "agreed_mix": AgreedMix,
        "indisco": InDISCO,
        "indisco_central": InDISCOCentral,
    }
)

DEFAULT = "fedavg"  # of a study that names no method

__all__ = ["DEFAULT", "PARTIES", "PARTIES_DEFAULT", "TABLE", "AnyMethod", *(kind.__name__ for kind in TABLE.values())]


GROUP = "vitrail.methods"  # of entry points
_origins: dict[str, tuple[str, str]] = {}  # method -> package and version that brought it
_broken: dict[str, str] = {}  # method -> why it could not be loaded


def add_installed(entries: Iterable[EntryPoint]) -> None:
    """What other packages bring. One that cannot be loaded is told when it is asked for; no name is taken twice."""
    for entry in entries:
        package = (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "")
        if entry.name in TABLE:
            _broken[f"{entry.name} of {package[0]}"] = f"there is a method {entry.name!r} already."
            continue
        try:
            kind = entry.load()
            if not (isinstance(kind, type) and issubclass(kind, Method) and dataclasses.is_dataclass(kind)):
                raise TypeError(f"{entry.value} is no dataclass of Method")
            TABLE[entry.name], _origins[entry.name] = kind, package
        except Exception as error:  # whatever a stranger's module raises
            _broken[entry.name] = f"{' '.join(filter(None, package))} brings it, but: {type(error).__name__}: {error}."


def origin(name: str) -> tuple[str, str] | None:
    """The package and version that brought a method; None for those of ours."""
    return _origins.get(name)


add_installed(entry_points(group=GROUP))


def name_of(method: AnyMethod) -> str:
    """The method's name in the table."""
    for name, kind in TABLE.items():
        if kind in (type(method), getattr(method, "variant_of", None)):
            return name
    what = f"{type(method).__name__} is not in the table of methods."
    raise VitrailError(
        "the method cannot be used", [Problem("method", what, 'List it: vt.methods.TABLE["name"] = ...')]
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
    fields, found = hyperparameters(table[name]), []
    for k, v in given.items():
        if k not in fields:
            found.append(Problem(f"{where}.{k}", f"{name} has no hyperparameter {k!r}.", nearest(k, fields)))
        elif not fits(v, fields[k]):
            found.append(Problem(f"{where}.{k}", f"expected {describe(fields[k])}, got {_shown(v)}.", f"Correct {k}."))
    if not found:
        try:
            table[name](**given)
        except ValueError as error:
            found.append(Problem(where, f"{error}.", "Remove or correct it."))
    return found


def build_party(name: str, given: Mapping[str, Any] | None = None) -> Any:
    """The method of parties of this name (vertical.py) with these hyperparameters.

    >>> build_party("split", {"hidden": (8,)}).hidden
    (8,)
    """
    if found := problems(name, given or {}, "method", PARTIES):
        raise VitrailError("the method cannot be used", found)
    return PARTIES[name](**(given or {}))


def build(name: str, given: Mapping[str, Any] | None = None) -> AnyMethod:
    """The method of this name with these hyperparameters.

    >>> build("fedprox", {"mu": 0.5}).mu
    0.5
    """
    found = problems(name, given or {}, "method")
    if found:
        raise VitrailError("the method cannot be used", found)
    return TABLE[name](**(given or {}))


def _shown(value: object) -> str:
    """What came, of a long one the beginning; and why a large number is none."""
    text = repr(value)
    text = text if len(text) <= 200 else f"{text[:200]}..."
    return f"{text}, which has more than 64 bits" if isinstance(value, int) and abs(value) > LARGEST else text
