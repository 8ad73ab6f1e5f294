"""A host and two guests between real processes, over FLARE: the same numbers as in one process, nothing to read for who
carries them, and a guest that is killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.support.deploy.capture import Capture, Tshark, start_capture
from tests.support.deploy.federation import Federation
from tests.support.deploy.forked import Forked
from tests.support.deploy.talking import study, tables
from vitrail.cli import app
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.identity import enrolment as enrol
from vitrail.deploy.identity.coordinator_folder import approval_of
from vitrail.deploy.vertical.postrun import RUN
from vitrail.deploy.vertical.process import form_of_party
from vitrail.deploy.vertical.session import MATCH
from vitrail.vertical.matching.match import Match
from vitrail.vertical.run import VerticalRun
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.party_side import agree, keep_secret, make_guest, make_host, offer_of, own_rows

pytest.importorskip("nvflare")
EXPLAINED = 30


class Houses(Federation):
    ask: tuple[object, ...] = ()  # words more of the host

    def enrol(self) -> None:
        super().enrol()
        for site in self.sites:  # written anew when the last party was approved
            shutil.copy(approval_of(self.folder, site), self.root / site)
            enrol.accept(self.kit(site), self.root / site / f"{site}.approval")

    def join(self, site: str, kit: Path | None = None, name: str = "") -> Forked:
        ration = (None, None) if site == "clinic" else (None, 700)
        accept = form_of_party(enrol.load_kit(self.kit(site)), ration)[3].hash
        words = ["join", self.kit(site), "--data", self.data(site), "--accept", accept, "--places"]
        more = ["--explain", EXPLAINED] if site == "clinic" else ["--ration-after", 700]
        return self.fork(name or site, *words, *more, *(self.ask if site == "clinic" else ()))

    def own(self, site: str) -> Path:
        """A party's folder of the run that ended last."""
        found = [p.parent for p in self.home(site).glob(f"*/{MATCH}")]
        return max(found, key=lambda p: (p / MATCH).stat().st_mtime_ns)

    def near(self, host: str = "clinic") -> Dialogue:
        """The same in one process, with the places and secrets that the parties have."""
        agreed = enrol.load_kit(self.kit(host)).study
        frames = {n: read_table(self.data(n)) for n in self.sites}
        rows = {n: own_rows(agreed, n, frames[n], Match.load(self.own(n) / MATCH)) for n in self.sites}
        guests = agreed.guests
        terms = agree(agreed, len(rows[host].places), [offer_of(agreed, rows[g]) for g in guests], agreed.seeds[0])
        sides = [make_guest(agreed, rows[g], terms, keep_secret(self.home(g))).guest for g in guests]
        return Dialogue(make_host(agreed, rows[host], terms).host, sides)


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Houses]:
    made = Houses(tmp_path_factory.mktemp("houses"), study(), tables())
    try:
        made.enrol()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture | Tshark | None]:
    found = start_capture(tmp_path_factory.mktemp("packets"))
    yield found
    if found is not None:
        found.stop()


@pytest.fixture(scope="module")
def first(houses: Houses, captured: Capture | Tshark | None) -> Path:
    """The first run, as the coordinator has it."""
    joined = {site: houses.join(site) for site in houses.sites}
    houses.wait_end(houses.serve(), "serve", 240)
    for site, process in joined.items():
        houses.wait_end(process, site)
    (run,) = houses.runs()
    return run


def test_the_same_numbers_as_in_one_process(houses: Houses, first: Path) -> None:
    """To the last bit; scores, explanations and predictions follow from these."""
    run, one = VerticalRun.load(houses.own("clinic") / RUN), houses.near()
    one.train()
    assert run.model.params.keys() == one.host.params.keys()
    for k, v in one.host.params.items():
        assert torch.equal(run.model.params[k], v[0]), k
    known = ~run.model.guest_answers["lab"].isnan().any(1)
    rows = known.nonzero()[:, 0][:500]
    for name, said in one.ask(rows).items():
        assert torch.equal(run.model.guest_answers[name][rows], answer_scores(said)), name
    after = run.ledger[run.ledger.message == "Wanted"].groupby("to").rows.sum()
    assert 0 < run.scored <= after.max() <= 700, "what the officers said at join, and not the study's 900"
    assert (houses.own("clinic") / RUN / "explained.html").exists()
    new = houses.data("clinic")
    told = houses.do("predict", houses.kit("clinic"), new, "--without", "lab", "--without", "insurer")
    assert told.startswith("line,no,yes,lab,insurer")
    page = houses.root / "why.html"
    said = houses.do("explain", houses.kit("clinic"), "--data", new, "--rows", 20, "--out", page)
    assert "What moves" in said
    assert page.exists()


def test_the_coordinator_saw_sizes(houses: Houses, first: Path, captured: Capture | Tshark | None) -> None:
    """Nothing that a party wrote into its outbox is in the coordinator's folder, nor in a packet; the same search finds
    it where it was written before it was sealed."""
    said = json.loads((first / "carried.json").read_text())
    assert said["finished"]
    assert len({(w["from"], w["to"]) for w in said["ways"]}) == 6, "everyone with everyone"
    wanted = []
    for site in houses.sites:
        box = Outbox(houses.home(site))
        for entry in (e for e in box.entries() if e.direction == "out" and e.kind in ("Levels", "Masked", "List")):
            raw = [t.numpy().tobytes()[:64] for t in box.show(entry.number or 0).tensors.values()]
            wanted += [one for one in raw if len(set(one)) > 3]
    ids = [one.encode() for one in read_table(houses.data("lab"))["pid"].head(50)]
    assert len(wanted) > 20
    kept = b"".join(f.read_bytes() for f in houses.folder.rglob("*") if f.is_file())
    boxes = b"".join(f.read_bytes() for f in houses.home("lab").rglob("*.safetensors"))
    boxes += b"".join(f.read_bytes() for f in houses.home("insurer").rglob("*.safetensors"))
    boxes += b"".join(f.read_bytes() for f in houses.home("clinic").rglob("*.safetensors"))
    assert not any(one in kept for one in wanted + ids)
    assert all(one in boxes for one in wanted)
    assert all(one in houses.data("lab").read_bytes() for one in ids)
    if captured is not None:
        captured.stop()
        seen = captured.of(houses.who.port)
        assert len(seen) > sum(w["bytes"] for w in said["ways"])
        assert not any(one in seen for one in wanted + ids)


def test_outbox_and_doctor_know_parties(houses: Houses, first: Path) -> None:
    told = houses.do("outbox", houses.kit("lab"))
    assert "Each message is shown as it was before encryption." in told
    assert "of 9 times more in training, and" in told
    assert "of 700 rows afterwards" in told
    shown = next(e for e in Outbox(houses.home("lab")).entries() if e.kind == "Levels")
    assert "level" in houses.do("outbox", houses.kit("lab"), "--show", shown.number)
    words = ["doctor", str(houses.kit("lab")), "--data", str(houses.data("lab"))]
    said = CliRunner().invoke(app, words).output
    assert "The key for sealed letters is there." in said
    assert "The cards of all 3 parties are present, and the card of this kit matches its key." in said
    assert "The column of ids, 'pid', is there." in said
    assert "described by values in the table" in said


def test_a_guest_is_killed_and_joins_again(houses: Houses, first: Path) -> None:
    """kill -9 of a guest's process in mid-training: it joins again, and the run goes on to the same numbers."""
    joined = {site: houses.join(site, name=f"{site} 2") for site in houses.sites}
    served = houses.serve()
    run = houses.wait("a second run", lambda: houses.runs()[1:])[0]
    before = set(houses.home("lab").glob("*/steps/lab/*"))
    houses.wait("an epoch is kept", lambda: set(houses.home("lab").glob("*/steps/lab/*")) - before)
    joined["lab"].kill()
    joined["lab"].wait(10)
    joined["lab"] = houses.join("lab", name="lab 3")
    houses.wait_end(served, "serve", 240)
    for site, process in joined.items():
        houses.wait_end(process, site)
    assert any(e["event"] == "new session" for e in houses.events(run))
    ended, one = VerticalRun.load(houses.own("clinic") / RUN), houses.near()
    one.train()
    assert all(torch.equal(ended.model.params[k], v[0]) for k, v in one.host.params.items())


def test_again_without_a_guest(houses: Houses, first: Path) -> None:
    """The run that ended, once more: no training; the host asks about people, and goes on without who is away."""
    new = houses.root / "new.csv"
    read_table(houses.data("clinic")).head(4).drop(columns="sick").to_csv(new, index=False)
    kept, before = houses.own("clinic"), VerticalRun.load(houses.own("clinic") / RUN)
    houses.ask = ("--ask", new)
    joined = {site: houses.join(site, name=f"{site} again") for site in ("clinic", "insurer")}
    houses.wait_end(houses.start("serve again", "serve", houses.study, "--deadline", 8, "--again"), "serve", 240)
    for site, process in joined.items():
        houses.wait_end(process, site)
    assert houses.own("clinic") == kept
    (told,) = (kept / RUN).glob("predicted-*.csv")
    assert len(told.read_text().splitlines()) == 5
    after = VerticalRun.load(kept / RUN)
    assert after.info["away"] == ["lab"]
    assert "Without lab: the median of its answers" in houses.log("clinic again").read_text()
    assert all(torch.equal(after.model.params[k], v) for k, v in before.model.params.items())
