"""Containers: what their files promise, and that what compose.yaml prepares is a study that starts.

No builder is needed; `hadolint` reads the Containerfile in CI.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import yaml

from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import find_coordinator

PLACE = Path(__file__).parent.parent / "deploy"


def test_nobody_is_root_and_nothing_else_is_written() -> None:
    text = (PLACE / "Containerfile").read_text()
    last = text.split("\nFROM ")[-1]
    assert re.findall(r"^USER (\d+)", last, re.M)[-1:] not in ([], ["0"])
    assert "--no-cache-dir -c constraints.txt" in text
    told = yaml.safe_load((PLACE / "compose.yaml").read_text())
    for name, service in told["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "ports" not in service, name  # they meet in a network of their own
    root = {n: s for n, s in told["services"].items() if "user" in s or "cap_add" in s}
    assert list(root) == ["own"]  # which gives new volumes to the user, and does nothing else
    assert root["own"]["cap_add"] == ["CHOWN"]
    assert root["own"]["entrypoint"][:2] == ["chown", re.findall(r"^USER (\d+)", last, re.M)[-1]]
    begin = ("own", "prepare")
    mounts = {n: {v.split(":")[0] for v in s["volumes"]} for n, s in told["services"].items() if n not in begin}
    assert all(a == b or not mounts[a] & mounts[b] for a in mounts for b in mounts)  # nobody reads another's rows


def test_compose_prepares_a_study(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("prepare", PLACE / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = yaml.safe_load((PLACE / "compose.yaml").read_text())["services"]
    address, _, _, *names = told["prepare"]["command"]
    (tmp_path / "work").mkdir()
    module.prepare(address, tmp_path / "sites", tmp_path / "work", names)
    who = enrolment.load_coordinator(find_coordinator(tmp_path / "work" / "study.toml"))
    assert who.address == address
    assert address.split(":")[0] in told
    assert all(entry["approved"] for entry in who.sites.values())
    for name in names:
        kit = enrolment.load_kit(tmp_path / "sites" / name / f"{name}.kit")
        assert kit.approved
        assert (tmp_path / "sites" / name / "hash").read_text()
        assert told[name]["environment"]["SITE"] == name
    before = (tmp_path / "work" / "study.toml").stat().st_mtime_ns
    module.prepare(address, tmp_path / "sites", tmp_path / "work", names)
    assert (tmp_path / "work" / "study.toml").stat().st_mtime_ns == before


def test_compose_starts_every_site_it_prepares() -> None:
    told = yaml.safe_load((PLACE / "compose.yaml").read_text())
    sites = [n for n, s in told["services"].items() if "SITE" in s.get("environment", {})]
    assert sorted(sites) == sorted(told["services"]["prepare"]["command"][3:])
