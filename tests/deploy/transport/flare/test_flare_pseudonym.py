"""Over real FLARE: a site that chose its own name. No byte that the coordinator or another site keeps, and nothing that
their processes wrote, holds the real one; with its own name the same search finds it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import vitrail as vt
from tests.support.deploy.federation import PATIENCE, Federation, free_port
from tests.support.small import opposed_tables
from vitrail.deploy.identity import enrolment as enrol
from vitrail.deploy.identity.coordinator_folder import approval_of, invitation_of
from vitrail.deploy.identity.documents import identity_of

pytest.importorskip("nvflare")
REAL, CHOSEN = "Sankt Blasien", "Falcon"
TABLES = opposed_tables({"north": 45, "south": 45, REAL: 45})


class Hidden(Federation):
    """The site of that name works in its folders, and takes part under another one."""

    def enrol(self) -> None:
        named = [word for site in self.sites if site != REAL for word in ("--site", site)]
        self.do("invite", self.study, *named, "--unnamed", 1, "--address", f"127.0.0.1:{free_port()}")
        for site in self.sites:
            own = site == REAL
            paper = Path(shutil.copy(invitation_of(self.folder, "unnamed 1" if own else site), self.root / site))
            made = enrol.request(paper, self.kit(site), None, CHOSEN if own else "")
            enrol.approve(self.folder, made.file)
        for site in self.sites:
            approval = approval_of(self.folder, CHOSEN if site == REAL else site)
            shutil.copy(approval, self.root / site / f"{site}.approval")

    def home(self, site: str) -> Path:
        return self.root / site / f"{CHOSEN if site == REAL else site}.home"

    def accepted(self, site: str, *words: object) -> str:
        return super().accepted(CHOSEN if site == REAL else site, *words)


def traces(root: Path) -> list[str]:
    """Files of the coordinator and of other sites, and their logs, in which the name is."""
    patterns = [REAL.encode(), identity_of(REAL).encode(), b"sankt-blasien", b"Sankt%20Blasien", b"blasien"]
    places = [root / "c", root / "north", root / "south"]
    files = [f for place in places for f in place.rglob("*") if f.is_file() and not f.is_symlink()]
    files += [root / f"{log}.log" for log in ("serve", "north", "south")]
    assert len(files) > 80
    return [str(f.relative_to(root)) for f in files if any(p in f.read_bytes() + f.name.encode() for p in patterns)]


@pytest.mark.parametrize("kind", [Hidden, Federation])
def test_the_name_is_nowhere_but_at_its_site(tmp_path: Path, kind: type[Federation]) -> None:
    study = vt.Study.infer(TABLES, target="sick").with_changes(
        training={"rounds": 2}, network={"hidden": [4]}, protect={"sum": "masked"}
    )
    federation = kind(tmp_path / "flare", study, TABLES)
    try:
        federation.enrol()
        served = federation.serve("--quorum", 3)
        for site in federation.sites:
            federation.join(site)
        federation.wait_end(served, "serve", 2 * PATIENCE)
        federation.wait("all sites end", lambda: not federation.processes())
        (run,) = federation.runs()
        found, info = traces(federation.root), json.loads((run / "run.json").read_text())
        name = CHOSEN if kind is Hidden else REAL
        assert set(info["sites"]) == {"north", "south", name}
        assert info["took_part"][name] == 2
        assert info["pseudonyms"] == ([CHOSEN] if kind is Hidden else [])
        assert f"{name} joined" in federation.log("serve").read_text()
        if kind is Hidden:
            assert not found
        else:
            log = {"serve.log", "north.log"}
            assert log <= set(found), "the control: what is printed, in which north reads the list of participants"
            assert [f for f in found if "/flare/" in f], "the control: FLARE's own files and logs"
            assert [f for f in found if f.startswith("north/north.home")]
    finally:
        federation.close()
