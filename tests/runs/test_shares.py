"""[share]: a site whose share of a round would be too small or too large takes no part in it, in a simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail as vt
from tests.support.deploy.forms import line_of
from tests.support.small import opposed_tables
from vitrail.cli.output import print_run
from vitrail.core.errors import VitrailError
from vitrail.privacy.round_share import RoundShares, ShareLimits, admitted, shares_of
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.runs.folder import Folder
from vitrail.runs.setup import check_trainable
from vitrail.study.model import Study

SITES = opposed_tables({"north": 80, "south": 60, "west": 50, "east": 10})
BY_ROWS = {"name": "fedavg", "weights": "rows"}


def study(share: dict[str, float] | None, **changes: Any) -> Study:
    drawn = Study.infer(SITES, "sick", training={"rounds": 4}, network={"hidden": [4]}, screen={"ask": False})
    return drawn.with_changes(**{"method": BY_ROWS, "share": share, **changes})


def refused(**given: Any) -> str:
    with pytest.raises(VitrailError) as error:
        study(**given)
    return str(error.value)


def test_the_rule() -> None:
    weights = {"a": 50.0, "b": 30.0, "c": 15.0, "d": 5.0}
    assert sum(shares_of(weights, "abcd").values()) == pytest.approx(1)
    assert admitted(ShareLimits(), weights, "abcd") == [*"abcd"]
    assert admitted(ShareLimits(least=0.05), weights, "abcd") == [*"abcd"], "a limit itself is within"
    assert admitted(ShareLimits(least=0.06), weights, "abcd") == [*"abc"]
    # without a, b has 0.6: whoever stays has a share within the limits of those who stay
    assert admitted(ShareLimits(most=0.45), weights, "abcd") == []
    assert admitted(ShareLimits(most=0.45), {**weights, "e": 30.0}, "abcde") == [*"abcde"]
    assert admitted(ShareLimits(least=0.3), dict.fromkeys("abcde", 1.0), "abcde") == [], "all are equal"
    for limits in (ShareLimits(0.1, 0.6), ShareLimits(0.0, 0.51), ShareLimits(0.2, 1.0)):
        inside = admitted(limits, weights, "abcd")
        assert all(limits.allow(share) for share in shares_of(weights, inside).values())
    assert ShareLimits(0.1, 0.9).with_own(ShareLimits(0.2, 1.0)) == (0.2, 0.9)
    assert RoundShares(ShareLimits(), weights, True).shares("ab") == {"a": 0.625, "b": 0.375}
    assert shares_of({}, ["a"]) == {"a": 0.0}


@pytest.mark.parametrize("engine", ["vectorised", "looped"])
@pytest.mark.parametrize("protect", [{}, {"sum": "masked"}])
def test_a_run_without_a_small_site_is_the_run_in_which_it_is_away(engine: str, protect: dict[str, Any]) -> None:
    limited = vt.federate(study({"least": 0.1}, protect=protect), SITES, engine=engine)
    away = vt.federate(study(None, protect=protect), SITES, engine=engine, away={"east": [(1, 4)]})
    both = vt.federate(study({}, protect=protect), SITES, engine=engine)
    assert {k: v.tolist() for k, v in limited.shared.items()} == {k: v.tolist() for k, v in away.shared.items()}
    assert any(not torch.equal(v, limited.shared[k]) for k, v in both.shared.items()), "the control"
    assert limited.info["took_part"] == {"north": 4, "south": 4, "west": 4, "east": 0}
    assert both.info["took_part"]["east"] == 4
    assert limited.info["share"]["whole"]["east"] < 0.1 < limited.info["share"]["whole"]["west"]


def test_without_the_section_nothing_changes_and_nothing_is_said() -> None:
    run = vt.federate(study(None), SITES)
    assert "share" not in run.info
    assert 'id="participation"' not in render(page_of(run))
    assert "[share]" not in study(None).to_toml()


def test_the_share_is_of_the_sites_of_the_round() -> None:
    """While north and south are away, the share of west is too large."""
    run = vt.federate(study({"most": 0.6}), SITES, away={"north": [(2, 2)], "south": [(2, 3)]})
    assert run.info["took_part"] == {"north": 3, "south": 2, "west": 3, "east": 3}
    uniform = study({"most": 0.5}, method={"name": "fedavg"})
    run = vt.federate(uniform, SITES, away={"north": [(2, 3)], "south": [(2, 3)], "west": [(3, 3)]})
    assert run.info["share"]["of"] == "weight"
    assert run.info["took_part"] == {"north": 2, "south": 2, "west": 3, "east": 3}, "half each in round 2 is within"


def test_page_and_terminal_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vt.federate(study({"least": 0.1}), SITES, out=tmp_path / "run")
    run = vt.Run.load(tmp_path / "run")
    page = line_of(render(page_of(run)).split('id="participation"')[1].split("</section>")[0])
    assert "0 of 4</td><td>outside the study’s limits" in page
    assert "the share of a site would be below 10.0 %, the site takes no part" in page
    assert page.count("4 of 4</td><td>within the limits") == 3
    print_run(run)
    assert "outside the limits of the study: east (5.2 %, in 0 of 4 rounds)." in capsys.readouterr().out
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["sites"] for e in events if e["event"] == "absent"] == [["east"]] * 4


def test_limits_that_leave_nobody_are_refused_at_once() -> None:
    with pytest.raises(VitrailError, match="no site could take part") as told:
        vt.federate(study({"most": 0.2}), SITES)
    assert "The shares are: north 0.4" in str(told.value)
    with pytest.raises(VitrailError, match="a round needs 3 or more"):
        vt.federate(study({"least": 0.3}, protect={"sum": "masked"}), SITES)
    vt.federate(study({"least": 0.3}), SITES)


def test_bounds_and_what_does_not_go_together() -> None:
    for share in ({"least": -0.1}, {"least": 1.0}, {"most": 0.0}, {"most": 1.1}, {"least": float("nan")}):
        assert "share" in refused(share=share)
    assert "no share is at least 0.5 and at most 0.4" in refused(share={"least": 0.5, "most": 0.4})
    assert "plain or masked" in refused(share={}, protect={"sum": "groups"})
    assert "verdict asks for" in refused(share={}, verdict={"folds": 2})
    assert "training.refit asks for" in refused(share={}, training={"refit": True})
    with pytest.raises(VitrailError, match="look at no shares"):
        check_trainable([(study({}), study({}).build_method())])


def test_a_resumed_run_leaves_out_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = vt.federate(study({"least": 0.1}), SITES)
    real = Folder.checkpoint

    def killed(self: Folder, *given: Any) -> None:
        real(self, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Folder, "checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        vt.federate(study({"least": 0.1}), SITES, out=tmp_path / "run", checkpoint_seconds=0)
    monkeypatch.undo()
    again = vt.federate(study({"least": 0.1}), SITES, out=tmp_path / "run", resume=True)
    assert again.info["took_part"] == whole.info["took_part"]
    assert all(torch.equal(v, again.shared[k]) for k, v in whole.shared.items())
