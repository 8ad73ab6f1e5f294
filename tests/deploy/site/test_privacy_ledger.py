"""What a site's rows have spent, over studies and runs: counted once, whole, before anything leaves; and a limit."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import vitrail as vt
from tests.support.command import vitrail
from tests.support.deploy.federation import Federation, Here, drawn
from vitrail.core.errors import BudgetSpent, VitrailError
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.readers.tables import clean, read_table
from vitrail.deploy.consent.file_sheet import file_sheet
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.run_members import RunMembers
from vitrail.deploy.protocol.agreement import FORMAT, Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site import privacy_ledger as ledger_module
from vitrail.deploy.site.privacy_ledger import LEDGER, PLACE, PrivacyLedger, ledger_folder, sketch, total_of
from vitrail.deploy.site.site import Site
from vitrail.privacy.budget import Budget, noise_for, spent
from vitrail.runs.protection.budget import row_loss
from vitrail.runs.setup import resolve

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
FRAMES = heart_disease()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PLACE, str(tmp_path / "state"))
    return tmp_path / "state"


def agreement(epsilon: float | None, name: str = "heart", delta: float = 1e-5, **protect: Any) -> Agreement:
    said = {"rows": {"epsilon": epsilon, "delta": delta}} if epsilon else protect
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
        name=name,
        training={"rounds": 2},
        screen={"ask": False},
        network={"hidden": (12,)},
        standardise="local",
        protect=said,
    )
    return Agreement.of(resolve(study, "fedavg", None)[0], None, 4)


def file_of(root: Path, name: str, frame: pd.DataFrame) -> Path:
    path = root / f"{name}.csv"
    frame.to_csv(path, index=False)
    return path


def site_of(root: Path, home: str, agreed: Agreement, data: Path, most: float | None = None) -> Site:
    frame = read_table(data, agreed.study)
    own = PrivacyLedger(root / home, data, frame, agreed, most)
    return Site("va", frame, agreed, root / home, ledger=own)


def greet(site: Site, run: str) -> Message:
    """The first question of a run."""
    return site.answer(Message("hello", {"run": run, "format": FORMAT, "agreement": site.agreed.hash}))


def epsilon(site: Site) -> float:
    assert site.ledger is not None
    standing = site.ledger.standing()
    return total_of((entry.loss for entry in standing.before), standing.delta)[0]


@pytest.fixture
def va(tmp_path: Path) -> Path:
    return file_of(tmp_path, "va", FRAMES["va"])


def test_runs_of_two_studies_on_one_file_add_up(tmp_path: Path, va: Path) -> None:
    first, second = agreement(3.0, "one"), agreement(2.0, "two")
    greet(site_of(tmp_path, "a", first, va), RUN)
    later = site_of(tmp_path, "b", second, va)
    assert epsilon(later) == pytest.approx(3.0, abs=1e-6)
    greet(later, OTHER)
    third = site_of(tmp_path, "c", agreement(1.0, "three"), va)
    together = 1 / math.sqrt(sum(noise_for(Budget(e, 1e-5), 1) ** -2 for e in (3.0, 2.0)))
    assert epsilon(third) == pytest.approx(spent(together, 1, 1e-5), abs=1e-6)
    assert 3.0 < epsilon(third) < 5.0, "less than the sum, as noise is independent"


def test_a_run_counts_whole_before_the_first_report_and_once_however_often_it_is_begun(
    tmp_path: Path, va: Path, folder: Path
) -> None:
    agreed = agreement(3.0)
    site = site_of(tmp_path, "a", agreed, va)
    assert not (folder / LEDGER).exists(), "joining alone spends nothing"
    greet(site, RUN)
    assert len((folder / LEDGER).read_text().splitlines()) == 1, "nothing but a greeting was answered"
    for _ in range(3):
        greet(site_of(tmp_path, "a", agreed, va), RUN)  # started again
    assert len((folder / LEDGER).read_text().splitlines()) == 1
    (tmp_path / "a" / "secret.key").unlink()  # the control: with another secret the noise is another one
    greet(site_of(tmp_path, "a", agreed, va), RUN)
    assert len((folder / LEDGER).read_text().splitlines()) == 2


def test_another_study_cannot_hide_behind_the_name_of_a_run_that_was_counted(tmp_path: Path, va: Path) -> None:
    greet(site_of(tmp_path, "a", agreement(3.0, "one"), va), RUN)
    greet(site_of(tmp_path, "b", agreement(2.0, "two"), va), RUN)
    assert len(site_of(tmp_path, "c", agreement(1.0), va).ledger.entries()) == 2  # type: ignore[union-attr]


def test_the_same_data_is_known_by_place_bytes_or_rows(tmp_path: Path, va: Path) -> None:
    agreed = agreement(3.0)
    greet(site_of(tmp_path, "a", agreed, va), RUN)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(va.read_bytes())
    assert epsilon(site_of(tmp_path, "b", agreed, copy)) > 0, "the same bytes in another place"
    grown = pd.concat([FRAMES["va"], FRAMES["hungarian"].iloc[:60]]).sample(frac=1, random_state=1)
    new = file_of(tmp_path, "export of today", grown[grown.columns[::-1]])
    assert epsilon(site_of(tmp_path, "c", agreed, new)) > 0, "more rows, in another order, under another name"
    FRAMES["switzerland"].to_csv(va, index=False)
    assert epsilon(site_of(tmp_path, "d", agreed, va)) > 0, "other rows in the same place"
    others = file_of(tmp_path, "others", FRAMES["cleveland"])
    assert epsilon(site_of(tmp_path, "e", agreed, others)) == 0.0, "the control: other patients"


def test_a_run_that_would_exceed_the_limit_is_refused_and_nothing_is_counted(tmp_path: Path, va: Path) -> None:
    agreed = agreement(3.0)
    greet(site_of(tmp_path, "a", agreed, va, most=4.5), RUN)
    over = site_of(tmp_path, "b", agreement(3.0, "two"), va, most=4.0)
    with pytest.raises(BudgetSpent) as error:
        greet(over, OTHER)
    assert "would bring epsilon to 4.46" in error.value.problems[0].what
    assert error.value.to_outside() == BudgetSpent.heading, "what was spent elsewhere is not the coordinator's"
    assert not (tmp_path / "b" / OTHER).exists(), "no run began"
    assert len(over.ledger.entries()) == 1  # type: ignore[union-attr]
    enough = site_of(tmp_path, "c", agreement(3.0, "two"), va, most=4.6)  # the control: a limit that is not reached
    assert greet(enough, OTHER).kind == "hello"


def test_the_limit_is_kept_and_a_run_that_began_goes_on_under_a_smaller_one(tmp_path: Path, va: Path) -> None:
    agreed = agreement(3.0)
    greet(site_of(tmp_path, "a", agreed, va, most=3.5), RUN)
    again = site_of(tmp_path, "a", agreed, va)
    assert again.ledger is not None
    assert again.ledger.most == 3.5
    again.ledger.check()
    assert greet(again, RUN).kind == "hello"
    smaller = site_of(tmp_path, "a", agreed, va, most=1.0)
    assert greet(smaller, RUN).kind == "hello", "what began was counted, whole"
    lifted = site_of(tmp_path, "a", agreed, va, most=math.inf)
    assert lifted.ledger is not None
    assert math.isinf(lifted.ledger.most)


def test_a_study_without_noise_exceeds_every_limit(tmp_path: Path, va: Path) -> None:
    plain = site_of(tmp_path, "a", agreement(None), va, most=100.0)
    with pytest.raises(BudgetSpent) as error:
        greet(plain, RUN)
    assert "this study adds no noise" in error.value.problems[0].what
    greet(site_of(tmp_path, "b", agreement(None), va), RUN)  # without a limit it takes part, and is counted
    with pytest.raises(VitrailError, match="an earlier run added no noise"):
        greet(site_of(tmp_path, "c", agreement(1.0), va, most=100.0), OTHER)


def test_noise_for_sites_guards_rows_twice_as_far_off() -> None:
    sites = {"sites": {"epsilon": 5.0, "delta": 1e-5}, "clip": 0.5}
    masked, plain = (agreement(None, sum=kind, **sites) for kind in ("masked", "plain"))
    whole = noise_for(Budget(5.0, 1e-5), 1) ** -2
    assert row_loss(masked.study, masked.method) == pytest.approx(4 * whole)
    assert row_loss(plain.study, plain.method) == pytest.approx(4 * whole * 2), (
        "each report is read: its own noise alone"
    )


def test_two_processes_cannot_both_take_the_last_of_a_budget(
    tmp_path: Path, va: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were joined before either began; the second to begin is refused."""
    one, other = (site_of(tmp_path, home, agreement(3.0, home), va, most=3.5) for home in ("a", "b"))
    greet(one, RUN)
    with pytest.raises(BudgetSpent):
        greet(other, OTHER)
    monkeypatch.setattr(ledger_module, "WAIT", 0.1)
    assert one.ledger is not None
    with one.ledger._held(), pytest.raises(VitrailError, match="the ledger is in use"):
        greet(site_of(tmp_path, "c", agreement(1.0), va), OTHER)


def test_what_a_crash_cut_off_does_not_count_and_what_is_damaged_is_told(
    tmp_path: Path, va: Path, folder: Path
) -> None:
    greet(site_of(tmp_path, "a", agreement(3.0), va), RUN)
    with (folder / LEDGER).open("ab") as file:
        file.write(b'{"mark": "ab')
    site = site_of(tmp_path, "b", agreement(2.0, "two"), va)
    greet(site, OTHER)
    assert [entry.study for entry in site.ledger.entries()] == ["heart", "two"]  # type: ignore[union-attr]
    (folder / LEDGER).write_text("nonsense\n")
    with pytest.raises(VitrailError, match="the ledger is damaged"):
        greet(site_of(tmp_path, "c", agreement(2.0), va), RUN)


def test_a_place_that_cannot_be_written_is_told_before_anything_leaves(
    tmp_path: Path, va: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(PLACE, str(tmp_path / "file"))
    with pytest.raises(VitrailError, match="the ledger cannot be written") as error:
        site_of(tmp_path, "a", agreement(3.0), va)
    assert PLACE in error.value.problems[0].hint


def test_the_ledger_is_its_owners_alone_and_tells_no_values(tmp_path: Path, va: Path, folder: Path) -> None:
    greet(site_of(tmp_path, "a", agreement(3.0), va), RUN)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / LEDGER).stat().st_mode) == 0o600
    (line,) = (folder / LEDGER).read_text().splitlines()
    told = json.loads(line)
    one = sketch(clean(FRAMES["va"], agreement(3.0).study), "0" * 16)
    assert not set(told["rows"]) & set(one), "hashed with a key that is drawn: nobody else can try patients out"


def test_where_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger_folder(tmp_path / "home") == tmp_path / "state"
    monkeypatch.delenv(PLACE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    assert ledger_folder(tmp_path / "home") == tmp_path / "own" / "vitrail"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # where no folder can be made
    assert ledger_folder(tmp_path / "homes" / "va.home") == tmp_path / "homes" / "vitrail-ledger"


def sheet(site: Site) -> str:
    assert site.ledger is not None
    return " ".join(file_sheet(site.agreed, True, 100, site.ledger).split())


def test_the_form_says_what_was_spent_and_what_it_would_come_to(tmp_path: Path, va: Path) -> None:
    fresh = site_of(tmp_path, "a", agreement(4.0, "one"), va)
    assert fresh.ledger is not None
    text = sheet(fresh)
    assert "none of these rows is known" in text
    assert "epsilon 4 for a removed row and 9.08 for a replaced one (delta 1e-05)" in text
    greet(fresh, RUN)
    second = site_of(tmp_path, "b", agreement(4.0, "two"), va, most=7.0)
    assert second.ledger is not None
    text = sheet(second)
    assert "Earlier runs: 1 (one, " in text
    assert "Together they spent epsilon 4 for a removed row" in text
    losses = [row_loss(second.agreed.study, second.agreed.method)] * 2
    removed, replaced = total_of(losses, 1e-5)
    assert f"After one run of this study: epsilon {removed:.3g} for a removed row and {replaced:.3g} for" in text
    assert "Limit: epsilon 7" in text
    going_on = site_of(tmp_path, "a", agreement(4.0, "one"), va)
    assert going_on.ledger is not None
    assert "none of these rows is known" in sheet(going_on), "its own run is what is asked for"


def test_a_simulation_draws_what_the_site_draws_and_counts_nothing(tmp_path: Path, folder: Path) -> None:
    agreed = agreement(4.0)
    drawn(tmp_path / "homes", FRAMES, RUN)
    vt.federate(agreed.study, FRAMES, engine="looped")
    assert not (folder / LEDGER).exists()
    sites = {"va": Site("va", FRAMES["va"], agreed, tmp_path / "va")}
    RunMembers(SiteRequests(Here(sites), agreed, ["va"], RUN, 1, 60.0), tmp_path / "entered.json").open(1, ())
    assert not (folder / LEDGER).exists(), "a site that was given no ledger counts nothing"


def test_join_shows_what_was_spent_and_refuses_what_is_too_much(tmp_path: Path) -> None:
    """By command: nobody is asked, and no process of FLARE is started."""
    pytest.importorskip("nvflare")
    made = Federation(
        tmp_path / "studies", agreement(4.0).study, {n: FRAMES[n] for n in ("cleveland", "va", "hungarian")}
    )
    made.enrol()
    kit, approval = made.kit("va"), made.root / "va" / "va.approval"
    accept = made.accepted("va")
    greet(site_of(tmp_path, "earlier", agreement(3.0, "an earlier study"), made.data("va")), RUN)
    given = ("join", kit, "--data", made.data("va"), "--approval", approval, "--accept", accept)
    done = vitrail(*given, "--most-epsilon", 5)
    said = " ".join(done.stdout.split())
    assert "THE PRIVACY BUDGET OF THESE ROWS" in said
    assert "Earlier runs: 1 (an earlier study, " in said
    assert "Together they spent epsilon 3 for a removed row" in said
    assert done.returncode == 2
    assert BudgetSpent.heading in done.stderr
    assert "the limit set here is 5" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    again = vitrail(*given)
    assert BudgetSpent.heading in again.stderr, "the limit is kept"
