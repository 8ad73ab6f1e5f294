"""Four sites over real FLARE, of which one attacks the others through FLARE's own channels."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vitrail as vt
from tests.support import ROOT
from tests.support.deploy.federation import Federation
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.identity import enrolment
from vitrail.runs.setup import resolve

HOSTILE = ROOT / "tests" / "support" / "deploy" / "hostile"
LONG = "ein sehr langer Weg über Ämter und Häuser " * 4  # one folder of many bytes
VICTIMS = ("St Mary", "boxed", "open")
Stolen = dict[tuple[str, str], tuple[str, str]]  # (victim, what) -> return code and answer


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    heart = vt.Study.load(packaged("heart_disease.toml")).with_changes(
        training={"rounds": 2}, protect={"sum": "plain"}, screen={"ask": False}
    )
    names = dict(zip(("St Mary", "boxed", "open", "evil"), heart_disease().values(), strict=True))
    tables = {name: table.head(60) for name, table in names.items()} | {"late": names["St Mary"].tail(60)}
    root = tmp_path_factory.mktemp("channels") / "Größe und Ähre" / LONG.strip()
    root.mkdir(parents=True)
    made = Federation(root, resolve(heart, "fedavg", None)[0], tables)
    made.ahead = dict.fromkeys(("boxed", "open"), HOSTILE / "unguarded")
    made.ahead |= {"evil": HOSTILE / "evil", "serve": HOSTILE / "evil", "late": HOSTILE / "spy"}
    try:
        made.enrol()
        yield made
    finally:
        made.close()


def requests(federation: Federation, victim: str) -> dict[str, dict[str, Any]]:
    """Everything that is tried on one site."""
    file = str(federation.data(victim))
    who = enrolment.identity_of(victim)
    shell = {
        f"sys.shell {tool}": {"admin": ["sys.shell", f"{tool} '{file}'"]} for tool in ("cat", "head", "tail", "ls")
    }
    plans: dict[str, dict[str, Any]] = {
        **shell,
        "sys.shell grep": {"admin": ["sys.shell", f"grep age '{file}'"]},
        **{topic: {"admin": [topic, ""]} for topic in ("sys.info", "sys.report_env", "train.check_status")},
        "bomb": {"bomb": 64},
        "fed.event": {"channel": "aux_communication", "topic": "fed.event"},
        "get_task": {"channel": "server_command", "topic": "get_task"},
        "bulk": {"channel": "cellnet.channel", "topic": "bulk"},
        "stream": {
            "channel": "sm__STREAM", "topic": "sm__DATA",
            "headers": {"sm__ch": "aux_communication", "sm__tp": "fed.event", "sm__id": 1, "sm__sq": 0, "sm__dt": 2},
        },
        **{f"cells {topic}": {"channel": "_net_manager", "topic": topic} for topic in ("process_info", "config_vars")},
    }  # fmt: skip
    return {what: {"channel": "admin", "topic": "admin", "target": who, **plan} for what, plan in plans.items()}


def attack(federation: Federation, workspace: Path, plans: dict[tuple[str, str], dict[str, Any]]) -> Stolen:
    """What an attacker's FLARE process, working in this folder, gets out of these requests."""
    (workspace / "stolen.json").unlink(missing_ok=True)
    (workspace / "plan.new").write_text(json.dumps([{**p, "number": n} for n, p in enumerate(plans.values())]))
    os.replace(workspace / "plan.new", workspace / "plan.json")
    federation.wait("the attack ends", (workspace / "stolen.json").exists)
    stolen = json.loads((workspace / "stolen.json").read_text())
    return {key: tuple(stolen[str(n)]) for n, key in enumerate(plans)}  # type: ignore[misc]


def on(federation: Federation, *victims: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(v, what): plan for v in victims for what, plan in requests(federation, v).items()}


@pytest.fixture(scope="module")
def waiting(federation: Federation) -> subprocess.Popen[bytes]:
    """An evil coordinator and an evil site; three sites are there, one of them as we ship it."""
    served = federation.serve("--quorum", 5)
    federation.join("St Mary")
    federation.join("boxed")
    federation.join("open", words=("--no-sandbox",))
    federation.join("evil")
    for site in (*VICTIMS, "evil"):
        federation.wait_event("joined", site=site)
    return served


@pytest.fixture(scope="module")
def honest(federation: Federation, waiting: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """The coordinator is started again as we ship it; the sites come back by themselves."""
    waiting.kill()
    waiting.wait(10)
    federation.wait("it is gone", lambda: not federation.processes(federation.root / "c"))
    federation.ahead["serve"] = HOSTILE / "spy"
    before = len(federation.events())
    served = federation.serve("--quorum", 5)
    for site in (*VICTIMS, "evil"):
        federation.wait(
            f"{site} is back",
            lambda site=site: any(
                e["event"] in ("joined", "back") and e["site"] == site for e in federation.events()[before:]
            ),
        )
    return served
