"""Two invented hospitals over FLARE: they stand on the list of participants, and the coordinator puts each honest site
into a sum with the two. Untouched sites refuse; at one that runs by the rule of before, the single report is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deploy.federation import PATIENCE, Federation, Hostile
from tests.support.scripts import load_script
from vitrail.data.datasets.catalogue import heart_disease
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.transport import supervisor

pytest.importorskip("nvflare")
sybil = load_script("attack_sybil")
HONEST, CONTROL = ("cleveland", "hungarian"), "va"
BEFORE = """
from vitrail.deploy.protocol.agreement import Agreement
Agreement.fewest = property(lambda agreed: agreed.study.protect.least)
from vitrail.cli import main
main()
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    tables = {n: heart_disease()[n] for n in (*HONEST, CONTROL)}
    invented = {name: tables[CONTROL].head(20) for name in sybil.INVENTED}
    made = Federation(tmp_path_factory.mktemp("invented"), sybil.study_of(), tables | invented)
    try:
        made.enrol()
        for name in sybil.INVENTED:
            enrolment.accept(made.root / name / f"{name}.kit", made.root / name / f"{name}.approval")
        yield made
    finally:
        made.close()


def join_as_before(federation: Federation, site: str) -> None:
    """The control: `vitrail join` with the rule of before."""
    with pytest.MonkeyPatch.context() as patch:  # its form says so, too
        patch.setattr(Agreement, "fewest", property(lambda agreed: agreed.study.protect.least))
        accept = federation.accepted(site)
    words = ["join", federation.kit(site), "--data", federation.data(site), "--accept", accept]
    words += ["--approval", federation.root / site / f"{site}.approval"]
    with federation.log(site).open("ab") as out:
        subprocess.Popen(
            supervisor.tied([sys.executable, "-c", BEFORE, *map(str, words)]),
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=federation.env, start_new_session=True,
        )  # fmt: skip


def test_two_invented_hospitals_read_nobody(federation: Federation, tmp_path: Path) -> None:
    victims = (*HONEST, CONTROL)
    agreed = Agreement.of(federation.who.study, None, federation.who.roster)
    assert federation.hash == agreed.hash, "everybody accepted the invented ones too"
    for site in HONEST:
        federation.join(site)
    join_as_before(federation, CONTROL)
    hostile = Hostile(federation)
    try:
        hostile.wait("all are there", lambda: hostile.way.present() >= set(victims))

        def ask(questions: dict[str, Message]) -> dict[str, Message | str]:
            heard = hostile.way.ask(questions, PATIENCE)
            assert not heard.trouble, f"{heard.trouble}\n{federation.logs()}"
            return {n: m.words["text"] if m.kind == "error" else m for n, m in heard.answers.items()}

        proofs = {name: SiteIdentity.of(enrolment.load_kit(federation.kit(name))) for name in sybil.INVENTED}
        evil = sybil.Coordinator(agreed, ask, proofs, tmp_path)
        found = evil.lists_of_three(0, victims, evil.ring(evil.begin(victims)))
    finally:
        hostile.way.close()
    for site in HONEST:
        assert "the sum would be over 3 sites, but at least 4 are required" in found[site]
        assert not [e for e in Outbox(federation.home(site)).entries() if e.direction == "out" and e.kind == "round"]
    rows = read_table(federation.data(CONTROL), federation.who.study)
    true = sybil.true_report(CONTROL, rows, agreed, federation.home(CONTROL), sybil.RUN, 0)
    assert sybil.error(found[CONTROL], true) < 1e-6, "by the rule of before its report is read as it is"
    assert max(float(v.abs().max()) for v in true.values()) > 1e-3
