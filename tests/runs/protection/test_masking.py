"""[protect] sum = "masked" in simulation: the same numbers, what is refused, what a draft says, what is told."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
from tests.support.deploy.forms import clause
from tests.support.small import opposed_tables
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.data.readers.source import PassedOverWarning
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.report.pages.builder import load, write_report
from vitrail.runs import Plan
from vitrail.runs.protection.masking import with_secure_sum
from vitrail.study.model import Study

SITES = opposed_tables({"north": 60, "south": 50, "west": 44, "east": 40, "centre": 36})


def study(**protect: Any) -> Study:
    drawn = Study.infer(SITES, "sick", training={"rounds": 3}, network={"kind": "mlp", "hidden": (6,)})
    return drawn.with_changes(protect=protect)


MASKED = study(sum="masked")


def refused(found: Study, method: Any, sites: dict = SITES, **given: Any) -> str:
    with pytest.raises(VitrailError) as error:
        vt.federate(found, sites, method=method, **given)
    return str(error.value)


@pytest.mark.parametrize("method", ["fedavg", "ifedavg"])  # all of them, in double: tests/testing/test_laws.py
@pytest.mark.parametrize("away", [None, {"east": [(2, 3)]}])
def test_the_same_model_and_what_crosses_is_counted(method: str, away: Any) -> None:
    plain, masked = (vt.federate(s, SITES, method, away=away) for s in (study(), MASKED))
    torch.testing.assert_close(plain.shared, masked.shared, rtol=0, atol=1e-6)
    sent = [r.ledger.query("stage == 'train' and direction == 'from site'").set_index("site") for r in (plain, masked)]
    assert sent[0].messages.equals(sent[1].messages)
    per = [(r.bytes / r.messages).iloc[0] for r in sent]
    assert per[1] == 2 * per[0] + 32  # eight bytes in place of four, and four zeros
    lines = [x for x in Plan(MASKED, MASKED.build_method()).wire() if x.stage == "train" and x.direction == "from site"]
    assert {(x.seen, x.dtype) for x in lines} == {("masked", "int64")}


def test_engines_agree_under_masks() -> None:
    one, other = (vt.federate(MASKED, SITES, engine=engine) for engine in ("looped", "vectorised"))
    torch.testing.assert_close(one.shared, other.shared, rtol=0, atol=1e-6)


def test_a_simulation_reads_single_reports_with_a_notice_and_between_machines_it_is_refused(tmp_path: Path) -> None:
    for method in ("influence", "weight_erosion", "apple", "cfl"):
        with pytest.warns(PassedOverWarning, match="without secure aggregation") as notices:
            run = vt.federate(MASKED, SITES, method, rounds=1, out=tmp_path / method)
        words = " ".join(str(n.message) for n in notices)
        assert 'refused until it says sum = "plain" under [protect]' in words
        assert ("weight_erosion_sums does the same" in words) == (method == "weight_erosion")
        assert run.study.protect.sum == vt.Run.load(tmp_path / method).study.protect.sum == "plain"
        with pytest.raises(VitrailError) as error:
            Agreement.of(MASKED.with_changes(method={"name": method}), None, len(SITES))
        refusal = str(error.value)
        assert "needs each report" in refusal
        assert "rows = { epsilon = 3.0 } adds noise" in refusal
        assert ("weight_erosion_sums does the same" in refusal) == (method == "weight_erosion")
    with pytest.warns(PassedOverWarning, match="each site's report is kept"):
        vt.federate(MASKED, SITES, "fedavg", rounds=1, out=tmp_path / "kept", keep_updates=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PassedOverWarning)
        assert vt.federate(MASKED, SITES, "weight_erosion_sums", rounds=1).study.protect.sum == "masked"


def test_what_cannot_be_masked_is_refused_with_the_reason() -> None:
    assert "takes all rows to one place" in refused(MASKED, "centralized")
    assert "needs single reports" in refused(study(sum="masked", robust="median"), "fedavg")
    few = {k: SITES[k] for k in ("north", "south")}
    assert "there are 2" in refused(MASKED, "fedavg", few)
    assert "there are 5" in refused(study(sum="masked", least=6), "fedavg")
    assert "asks 2 sites in one round" in refused(MASKED, vt.methods.build("fedavg", {"invited": 2}))
    vt.federate(MASKED, SITES, "local", rounds=1)  # nothing is reported


def test_of_too_few_nothing_is_opened() -> None:
    gone = {name: [(2, 2)] for name in ("north", "south", "west")}
    short, masked = (vt.federate(MASKED, SITES, "fedavg", rounds=r, away=gone) for r in (1, 2))
    torch.testing.assert_close(short.shared, masked.shared, rtol=0, atol=0)
    assert masked.info["took_part"]["east"] == 1
    plain = vt.federate(study(), SITES, "fedavg", rounds=2, away=gone)
    assert not torch.allclose(plain.shared["params/head.bias"], short.shared["params/head.bias"])


def test_beyond_the_limit_the_site_is_named() -> None:
    wild = MASKED.with_changes(training={"lr": 1e9, "total": "sum"}, network={"kind": "linear"})
    said = refused(wild, "fedavg")
    assert "a masked sum was refused" in said
    assert "change/" in said
    assert any(name in said for name in SITES)


def test_a_comparison_takes_a_masked_study() -> None:
    found = vt.compare(MASKED, SITES, ["local", "fedavg", "influence"], seeds=[1], rounds=1)
    assert set(found.scores.method) >= {"local", "fedavg", "influence"}


def test_a_draft_is_masked_where_it_can_be(tmp_path: Path) -> None:
    for name, frame in SITES.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    file = tmp_path / "study.toml"
    files = [str(tmp_path / f"{name}.csv") for name in SITES]
    done = CliRunner().invoke(app, ["init", *files, "--target", "sick", "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert "Secure aggregation is on" in done.output
    assert Study.load(file).protect.sum == "masked"
    assert with_secure_sum(study(), 2).protect.sum == "plain"
    assert with_secure_sum(study().with_changes(method={"name": "influence"}), 5).protect.sum == "plain"
    assert with_secure_sum(study().with_changes(method={"name": "ifedavg"}), 5).protect.sum == "masked"


def test_wire_and_form_say_who_can_read_what(tmp_path: Path) -> None:
    MASKED.save(tmp_path / "study.toml")
    told = CliRunner().invoke(app, ["wire", "fedavg", str(tmp_path / "study.toml")]).output
    assert "the coordinator can read the total of more than two thirds" in told
    form = " ".join(contract_text(Agreement.of(MASKED, None, 5), "north", list(SITES), True).split())
    assert "Nobody can read what this site alone sent. The coordinator reads only the total of 4 sites or more" in form
    assert "4 sites or more, which is more than two thirds of the 5 that accepted the agreement" in form
    assert "the coordinator and 3 of the 4 other sites would have to work together" in form
    assert "could be read there" not in form  # as it says in the open
    assert "The coordinator cannot read a single report" in form
    assert "sealed shares of the secrets that hide the report of this site" in form
    text = contract_text(Agreement.of(study(), None, 5), "north", list(SITES), True)
    plain = clause(text, "REPORTS: TRAINING")
    assert "Nothing keeps the coordinator from reading a single report" in plain
    assert "Nobody can read what this site alone sent" not in plain
    noisy = study(rows={"epsilon": 3.0}).with_changes(standardise="local")
    form = " ".join(contract_text(Agreement.of(noisy, None, 5), "north", list(SITES), True).split())
    assert "Noise is added at this site in every step (epsilon 3 for a row that is removed" in form


def test_the_page_says_it(tmp_path: Path) -> None:
    vt.federate(MASKED, SITES, rounds=1, out=tmp_path / "run")
    page = write_report(load(tmp_path / "run"), tmp_path / "page.html").read_text()
    assert "the coordinator can read what 4 sites or more report together" in page
    assert "only the sum, under masks" in page
