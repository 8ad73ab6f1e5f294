"""A finding that somebody answered is shown as known, and comes back when its numbers change."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vitrail as vt
from tests.support.screened import as_file, draw, federation, spoil
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import Encoder
from vitrail.quality.known_findings import add_answer, answer_finding, read_answers, with_known
from vitrail.quality.repair.inspection import inspect_site
from vitrail.quality.screening import screen
from vitrail.quality.screening.result import Screening
from vitrail.quality.screening.text import to_text
from vitrail.study.known_findings import KnownFinding

SITE = "site-2"


def shifted(by: float, column: str = "pulse") -> Screening:
    rows, table = federation()
    return screen(spoil(rows, SITE, **{column: rows[SITE][column] + by}), table)


@pytest.fixture(scope="module")
def answer() -> KnownFinding:
    return answer_finding(
        shifted(40.0).findings, SITE, "pulse", "y", "other device, real", "Dr. Weber", date(2026, 11, 19)
    )


def test_a_known_finding_is_shown_and_not_counted(answer: KnownFinding) -> None:
    screening = with_known(shifted(40.0), [answer], "y")
    assert not screening.wrong
    (known,) = screening.known
    assert (known.feature, known.kind) == ("pulse", "offset")
    assert not screening.cells["wrong"].any()
    text = to_text(screening)
    assert "offset by a constant; known (Dr. Weber, 2026-11-19): other device, real." in text
    assert "about 40.97 higher" in text, "with the numbers that were seen"


@pytest.mark.parametrize(
    ("change", "holds"), [({"by": 41.0}, True), ({"by": 60.0}, False), ({"by": 40.0, "column": "sugar"}, False)]
)
def test_it_comes_back_when_the_numbers_change(answer: KnownFinding, change: dict[str, float], holds: bool) -> None:
    """Within a tenth they are the same; another offset, or another column, is another finding."""
    screening = with_known(shifted(**change), [answer], "y")  # type: ignore[arg-type]
    assert bool(screening.known) is holds
    assert bool(screening.wrong) is not holds


def test_another_cause_is_another_finding(answer: KnownFinding) -> None:
    rows, table = federation()
    constant = screen(spoil(rows, SITE, pulse=116.1), table)
    assert with_known(constant, [answer], "y").wrong
    other = answer.model_copy(update={"site": "site-1"})
    assert with_known(shifted(40.0), [other], "y").wrong


def test_answers_are_kept_in_files(answer: KnownFinding, tmp_path: Path) -> None:
    own = tmp_path / "known.toml"
    add_answer(own, answer)
    add_answer(own, answer.model_copy(update={"why": "again"}))
    assert [a.why for a in read_answers([own])] == ["other device, real", "again"]
    study = tmp_path / "study.toml"
    study.write_text(federation()[1].to_toml())
    add_answer(study, answer)
    loaded = vt.Study.load(study)
    assert list(loaded.known.values()) == [answer]
    assert vt.Study.load(study).to_toml() == vt.Study.parse(loaded.model_dump()).to_toml()
    assert 'known."site-2 pulse"' in loaded.to_toml()


def test_a_known_finding_needs_no_repair() -> None:
    """Where a site looks at its rows it is shown with its answer, and without a command."""
    screening = shifted(40.0)
    (found,) = screening.wrong
    table = federation()[1]
    file = as_file(spoil(federation()[0], SITE, pulse=federation()[0][SITE].pulse + 40.0)[SITE], table)
    (open_one,) = inspect_site(SITE, file, table, Encoder(table, {}, {}), [found]).views
    assert open_one.causes[0].command, "the positive control"
    marked = with_known(screening, [answer_finding([found], SITE, "pulse", "y", "real", "A", date(2026, 11, 19))], "y")
    view = next(v for v in inspect_site(SITE, file, table, Encoder(table, {}, {}), marked.known).views)
    assert not view.causes
    assert "known (A, 2026-11-19): real" in view.answer


@pytest.mark.parametrize(
    "text", ["[known]\nx = 1", '[known.a]\nsite = "b"', "known = 3", "[known.a]\nsite = 1\ncolumn = 2\nwhy = 3", "]["]
)
def test_a_file_that_holds_no_answers_is_refused_in_words(text: str, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(VitrailError) as refused:
        read_answers([path, tmp_path / "none.toml"])
    assert len(refused.value.problems) == 2, "all problems at once"


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    raw = {f"site-{k}": draw(150, k) for k in range(4)}
    raw[SITE]["pulse"] += 60.0
    for name, frame in raw.items():
        frame.to_csv(f"data/{name}.csv", index=False)
    study = vt.Study.infer(raw, "y")
    free = {n: f.model_copy(update={"range": None}) for n, f in study.features.items()}
    Path("study.toml").write_text(study.model_copy(update={"features": free}).to_toml())

    def ask(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(words))
        return done.exit_code, done.output + str(done.exception or "")

    screened = ("screen", "study.toml", "--data", "data", "--out", "out")
    assert ask(*screened)[0] == 1
    code, said = ask(
        "known", "study.toml", "out", "--site", SITE, "--feature", "pulse", "--why", "other device", "--who", "A"
    )
    assert (code, "known.toml" in said) == (0, True)
    code, said = ask(*screened, "--known", "known.toml")
    assert code == 0, said
    assert "known (A, " in said
    checked = ("check", "study.toml", f"data/{SITE}.csv", "--pooled", "out/screen.json")
    assert "likely wrong" not in ask(*checked)[1], "what the run kept is known"
    ask(*screened)
    assert "pulse: likely wrong: offset by a constant" in ask(*checked)[1]
    code, said = ask(*checked, "--known", "known.toml")
    assert "likely wrong" not in said
    assert "note" in said
    code, said = ask(*checked, "--known", "known.toml", "--json")
    assert json.loads(said)["warnings"] == sum(f["severity"] == "warning" for f in json.loads(said)["findings"])
    for words, what in (
        (("known", "study.toml", "out", "--site", SITE, "--feature", "age", "--why", "x"), "there is no finding"),
        (("known", "study.toml", "out", "--site", SITE, "--feature", "pulse", "--why", " "), "expected what is known"),
        (("known", "study.toml", "none.json", "--site", SITE, "--feature", "pulse", "--why", "x"), "no screening"),
        (("check", "study.toml", f"data/{SITE}.csv", "--known", "known.toml"), "about what other sites published"),
        ((*checked, "--site", "nobody"), "there is no site 'nobody'"),
    ):
        assert what in ask(*words)[1], words
