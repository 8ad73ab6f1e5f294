"""Differences by presence: how often the list of who is in a sum changes, who is told, and what a site refuses."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.deploy.masked_runs import NAMES, RUN, Masked, agreement, asked_of
from vitrail.core.errors import VitrailError
from vitrail.deploy.audit.notices import COMPARED, NOTE, kind_of
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.protocol.agreement import FORMAT
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.secure_sum import presence
from vitrail.deploy.secure_sum.presence import REPEATS, Presence, most_changes
from vitrail.deploy.site.process import SiteProcess

LESS = [n for n in NAMES if n != "va"]


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def of(place: Path, rounds: int = 3) -> Presence:
    return Presence(place, agreement(rounds=rounds), "", NAMES)


def notices(way: Masked) -> list[str]:
    """What cleveland said of who is in a sum; after a whole run it also says which models it compared."""
    *about_sums, about_models = way.sites["cleveland"].notices
    assert about_models.startswith("Models that were scored")
    return about_sums


def test_the_list_changes_as_often_as_agreed(tmp_path: Path) -> None:
    most = most_changes(agreement(rounds=3))
    assert (most, most_changes(agreement(rounds=400))) == (12, 100)
    for r in range(most):
        said = of(tmp_path).note(f"Round {r + 1}", LESS if r % 2 == 0 else NAMES, f"{r:02d}" * 32)
        here = "3 of 4 sites; va is missing" if r % 2 == 0 else "all 4 sites again"
        assert said == f"Round {r + 1}: adds to the sum of {here} (change {r + 1} of at most {most} in a run)."
    assert of(tmp_path).note("Round 13", NAMES, "a" * 64) == "", "the list of before is no change"
    with pytest.raises(VitrailError, match="changed 12 times in this run"):
        of(tmp_path).note("Round 14", LESS, "b" * 64)
    assert of(tmp_path).note("Round 14", NAMES, "c" * 64) == "", "and what is there goes on"


def test_one_word_one_list(tmp_path: Path) -> None:
    here = of(tmp_path)
    here.note("Round 1", NAMES, "a" * 64)
    for other in range(REPEATS):
        assert here.note(f"Round {2 + other}", LESS if other % 2 == 0 else NAMES, "a" * 64)
    with pytest.raises(VitrailError, match="same word was opened before with another list"):
        here.note("Round 10", [n for n in NAMES if n != "cleveland"], "a" * 64)
    assert here.note("Round 10", LESS, "b" * 64) or REPEATS % 2, "another word is another matter"
    assert here.note("Round 11", NAMES, "") != "", "where each is told something of its own there is no word to compare"


def test_a_run_in_which_a_site_comes_and_goes_says_so(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=6))
    way.away = lambda name, asked: (
        name == "va" and asked.kind in ("round", "mask") and asked.words.get("round") in (2, 3)
    )
    way.conduct(quorum=3)
    first, second = notices(way)
    assert "adds to the sum of 3 of 4 sites; va is missing (change 1 of at most 12 in a run)" in first
    assert "adds to the sum of all 4 sites again (change 2" in second
    assert (first[:7], second[:7]) == ("Round 2", "Round 5") or first.startswith("Round 3")


def test_people_at_the_site_are_told(tmp_path: Path) -> None:
    """On the screen and in the outbox, before the answer leaves."""
    way, said = Masked(tmp_path, agreement(rounds=3)), list[str]()
    way.away = lambda name, asked: name == "va" and asked.words.get("round") == 1
    way.conduct(quorum=3)
    site, kit = way.sites["cleveland"], SimpleNamespace(home=tmp_path / "home")
    kit.home.mkdir()
    news = list(site.notices)
    door = SiteProcess(kit, site, said.append)  # type: ignore[arg-type]
    door.answer(Message("hello", {"run": RUN, "format": FORMAT, "agreement": way.agreed.hash}).pack())
    assert said == news
    assert len(news) >= 2
    kept = [(e.kind, e.what) for e in Outbox(kit.home).entries() if e.kind in (NOTE, COMPARED)]
    assert kept == [(kind_of(text), f"text={text}") for text in news]
    assert [kind for kind, _ in kept] == [NOTE] * (len(news) - 1) + [COMPARED]


def test_a_coordinator_that_leaves_out_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another site in every round: after so many changes nobody opens a sum any more. The control: without a bound all
    rounds are opened."""

    def leave_out(bound: int, place: Path) -> int:
        monkeypatch.setattr(presence, "FEW_CHANGES", bound)
        monkeypatch.setattr(
            "vitrail.deploy.secure_sum.coordinator.most_changes", lambda agreed: 1000
        )  # an honest one would wait
        way = Masked(place, agreement(rounds=10))
        way.away = lambda name, asked: asked.kind == "round" and name == NAMES[asked.words["round"] % 4]
        way.through_doors()
        with pytest.raises(VitrailError, match="cannot go on") if bound < 10 else contextlib.nullcontext():
            way.conduct(quorum=3)
        return len({a.words["round"] for _, a, m in way.said if a.words.get("leg") == "open" and m.kind == "mask"})

    assert 5 <= leave_out(5, tmp_path / "bound") <= 7, "a site counts the changes of sums that it is in: three of four"
    assert leave_out(100, tmp_path / "free") == 10


def test_an_honest_coordinator_waits_when_the_list_may_change_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """va misses the second round and is back in the third; in the fourth it is slow, and is waited for."""
    monkeypatch.setattr(presence, "FEW_CHANGES", 2)
    way, tries = Masked(tmp_path, agreement(rounds=5)), list[int]()

    def away(name: str, asked: Message) -> bool:
        if name != "va" or asked.kind != "round":
            return False
        tries.append(asked.words["round"])
        return asked.words["round"] == 1 or (asked.words["round"] == 3 and tries.count(3) < 6)

    way.away = away
    way.conduct(quorum=3)
    reported = {(n, a.words["round"]) for n, a, m in way.said if a.kind == "round"}
    assert {r for n, r in reported if n == "va"} == {0, 2, 3, 4}
    assert tries.count(3) == 6
    assert not [told for event, told in way.events if event in ("sum not opened", "set aside")]
    assert len(notices(way)) == 2


def test_the_count_outlives_a_restart(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=3))
    way.away = lambda name, asked: name == "va" and asked.words.get("round") == 1
    way.conduct(quorum=3)
    kept = json.loads((tmp_path / "sites" / "cleveland" / RUN / "sums" / presence.FILE).read_text())[""]
    assert kept["changes"] == len(notices(way)) > 0
    opened = asked_of(way, "open", 2)["cleveland"]
    again = way.fresh("cleveland")
    again.answer(opened)  # asked the same again, it says the same, and counts nothing
    assert json.loads((tmp_path / "sites" / "cleveland" / RUN / "sums" / presence.FILE).read_text())[""] == kept
