"""What is printed when a site joins, and that a yes is to exactly that."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.forms import line_of
from tests.support.small import opposed_tables
from vitrail.core.errors import VitrailError
from vitrail.deploy.consent.file_sheet import file_sheet
from vitrail.deploy.consent.form import site_form
from vitrail.deploy.identity.enrolment import Kit
from vitrail.deploy.identity.participants import Participants
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.privacy_ledger import PrivacyLedger
from vitrail.deploy.site.process import agree, form_of
from vitrail.study.model import Study

SITES = opposed_tables({"a": 60, "b": 60, "c": 60, "d": 60})
ROSTER = dict.fromkeys(SITES, "0000")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    study = Study.infer(SITES, "sick", training={"rounds": 7}, protect={"sum": "masked"})
    SITES["a"].to_csv(tmp_path / "a.csv", index=False)
    listed = Participants(ROSTER, [])
    return Kit(tmp_path, "a", "a-1", study, 1, list(SITES), "h:1", tmp_path / "home", True, {}, listed)


def joined(kit: Kit, accept: str = "", **given: Any) -> Agreement:
    return agree(kit, kit.folder / "a.csv", accept, given.pop("publishes", True), **given)[0]


def test_the_form_is_printed_saved_and_accepted_by_its_hash(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    form = form_of(kit)
    with pytest.raises(VitrailError, match="nobody agreed") as refused:
        joined(kit)
    assert f"--accept {form.hash}" in str(refused.value)
    printed = capsys.readouterr().out
    assert form.text in printed
    saved = kit.home / f"consent-{form.hash}.txt"
    assert hashlib.sha256(saved.read_bytes()).hexdigest()[:24] == form.hash
    sheet, below = printed.split(form.text)
    assert "YOUR FILE TODAY" in sheet
    assert form.hash not in form.text, "a hash cannot cover itself"
    assert f"--accept {form.hash}" in line_of(below)
    agreement = joined(kit, form.hash)
    accepted = json.loads((kit.home / "accepted.json").read_text())
    assert accepted == {"agreement": agreement.hash, "form": form.hash, "publishes": True}
    joined(kit)  # as before, with nobody there


def test_a_yes_to_another_form_is_none(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    form = form_of(kit)
    agreement = joined(kit, form.hash)
    for wrong in (agreement.hash, form.hash[:-1] + "x", form_of(kit, publishes=False).hash):
        with pytest.raises(VitrailError, match="not the form that was accepted"):
            joined(kit, wrong)
    with pytest.raises(VitrailError, match="nobody agreed"):
        joined(kit, publishes=False)
    monkeypatch.setattr("vitrail.deploy.consent.form.part", _with_another_word)
    from vitrail.deploy.consent.form import templates

    templates.cache_clear()
    try:
        with pytest.raises(VitrailError, match="nobody agreed"):
            joined(kit)  # a new version with another word in its template
        with pytest.raises(VitrailError, match="not the form that was accepted"):
            joined(kit, form.hash)
    finally:
        monkeypatch.undo()
        templates.cache_clear()
    joined(kit, form.hash)


def _with_another_word(name: str) -> str:
    import vitrail.deploy.consent.form as module

    text = (Path(module.__file__).parent / "templates" / name).read_text(encoding="utf-8")
    return text.replace("Nobody on the way can read them", "Nobody on the way can easily read them")


def test_the_file_of_the_day_is_no_part_of_the_form(kit: Kit, tmp_path: Path) -> None:
    """A file that grows, and what its rows have spent, change what is printed before the form and not the hash."""
    agreement = Agreement.of(kit.study, kit.seed, ROSTER)
    before = site_form(agreement, "a", list(ROSTER), True)
    ledger = PrivacyLedger(tmp_path / "other", kit.folder / "a.csv", SITES["a"], agreement, None)
    many, few, refused = (
        line_of(file_sheet(agreement, publishes, units, ledger))
        for publishes, units in ((True, 60), (True, 8), (False, 60))
    )
    assert "against the 60 rows that you have" in many
    assert "You have 8 rows. These are too few: nothing would be published but how many they are." in few
    assert "that you have" not in refused
    assert all("Earlier runs: none of these rows is known on this machine." in sheet for sheet in (many, few, refused))
    assert before == form_of(kit)
