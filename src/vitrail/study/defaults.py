"""What a study file means by what it leaves out: our defaults, a paper's protocol, or what an older format meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.methods.blocks.paper_protocols import BEFORE, OF_TIMES, OWN_SCALE, PROTOCOLS
from vitrail.storage import format_versions

CHANGED = "1.3"  # the format from which on our defaults are other than the first paper's


def fill_in(plain: dict[str, Any], of: Any) -> None:
    """In place; `of`: the format that the file states."""
    name = plain.get("paper") or (BEFORE if format_versions.is_newer(CHANGED, str(of)) else "")
    if isinstance(name, str):
        _set_defaults(plain, _protocol(name, plain))
    protect = plain.get("protect")
    if isinstance(protect, Mapping) and protect.get("rows"):  # sums over sites would need noise of their own
        plain.setdefault("standardise", OWN_SCALE)


def fill_in_times(plain: dict[str, Any]) -> None:
    """What is left out by a study about the time to an event (decision 054), in place. Under row-level privacy every
    further step costs noise, so a site goes through its rows once."""
    protect = plain.get("protect")
    noisy = isinstance(protect, Mapping) and bool(protect.get("rows"))
    network = plain.get("network")
    if isinstance(network, Mapping) and network.get("hazards") is None:
        plain["network"] = {k: v for k, v in network.items() if k != "hazards"}
    training = {"weight_decay": 0.1} | ({} if noisy else {"epochs": 4})
    _set_defaults(plain, {"network": {"hazards": "proportional"}, "training": training})


def _set_defaults(plain: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    for key, value in defaults.items():
        if not isinstance(value, dict):
            plain.setdefault(key, value)
        elif isinstance(section := plain.setdefault(key, {}), dict):
            plain[key] = {**value, **section}


def _protocol(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a protocol says to a study with this target."""
    protocol, target = PROTOCOLS.get(name, {}), raw.get("target")
    if not protocol or not isinstance(target, Mapping) or target.get("kind") != "time":
        return protocol
    return {**protocol, **{key: {**protocol.get(key, {}), **more} for key, more in OF_TIMES.items()}}


def left_to_before(raw: Mapping[str, Any]) -> list[str]:
    """Keys of which an older file leaves the value to the defaults of its time, where those have changed."""
    if "format" not in raw or not format_versions.is_newer(CHANGED, str(raw["format"])) or raw.get("paper"):
        return []
    out = []
    for key, value in _protocol(BEFORE, raw).items():
        if not isinstance(value, dict):
            out += [f"{key} = {_written(value)}"] * (key not in raw)
            continue
        section = raw.get(key)
        given = section if isinstance(section, Mapping) else {}
        out += [f"{key}.{name} = {_written(v)}" for name, v in value.items() if name not in given]
    return out


def changed_words(raw: Mapping[str, Any]) -> str:
    """For whoever runs such a file; "" where nothing has changed for it."""
    left = left_to_before(raw)
    if not left or raw.get("images") or raw.get("parties"):
        return ""
    return (
        f"this study file is of format {raw['format']} and keeps the defaults of that format for {', '.join(left)}. "
        f'Defaults have changed since. To use today\'s, write format = "{format_versions.STUDY}".'
    )


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
