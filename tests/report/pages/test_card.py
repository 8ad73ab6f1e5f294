"""A model card: its first screen, its order, its header for model hubs, and what it answers of TRIPOD+AI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest
import yaml

import vitrail as vt
from tests.support.cards import ODD, make_table
from tests.support.report.pages import HOSTILE
from vitrail.analysis.calibration import RateInterval
from vitrail.quality.screening.result import Finding
from vitrail.report.pages.card.contents import sections
from vitrail.report.pages.card.markdown import MARK, header, is_card, to_markdown
from vitrail.report.pages.card.page import render_card
from vitrail.report.pages.card.standings import beats_baseline, next_step, standings
from vitrail.report.pages.card.tripod import ITEMS, answered_items, other_items
from vitrail.runs.site.card import Card, CardScore, make_card

ORDER = ["use", "data", "performance", "calibration", "limits", "left", "made", "tripod"]
LEFT = [f"a sum of weights {i} (tensors a, b, c)" for i in range(30)]


@dataclass
class Trained:
    run: vt.Run
    tables: dict[str, Any]

    def card(self, site: str = "north <b>", findings: list[Finding] | None = None) -> Card:
        seen = self.run.info["fingerprints"][site]
        return make_card(
            self.run.model_of(site), site, "run", self.tables[site], seen, findings, LEFT, ["No noise is added."]
        )


@pytest.fixture(scope="module")
def trained() -> Trained:
    tables = {"north <b>": make_table(1, 200), "south": make_table(2, 200)}
    study = vt.Study.infer(tables, name=HOSTILE[1], target="sick", training={"rounds": 30}, network={"hidden": (4,)})
    return Trained(vt.federate(study, tables), tables)


@pytest.fixture(scope="module")
def card(trained: Trained) -> Card:
    return trained.card(findings=[])


def only_letters(text: str) -> str:
    text = unescape(re.sub(r"<[^>]*>", "", text.replace("\\", "")))
    return re.sub(r"[^a-z]", "", text.lower())


def score(low: float, high: float, chance: float, metric: str = "auc") -> CardScore:
    return CardScore(metric, RateInterval((low + high) / 2, low, high), chance)


def test_sections_are_in_the_order_of_a_model_card(card: Card) -> None:
    assert [section.key for section in sections(card)] == ORDER
    page, plain = render_card(card), to_markdown(card)
    assert re.findall(r'<h2 id="(\w+)">', page) == ["short", *ORDER]
    assert re.findall("^## (.*)$", plain, re.M) == [s.title for s in sections(card)]
    assert "<h1>FedAvg at north &lt;b&gt;: model card</h1>" in page


def test_the_page_and_the_markdown_say_the_same(card: Card) -> None:
    page, plain = render_card(card), to_markdown(card)
    words = [line for section in sections(card) for line in (*section.lines, *(f for _, f in section.facts))]
    assert len(words) > 15
    for line in words:
        letters = re.sub(r"[^a-z]", "", line.lower())  # whatever stands around them is escaped in two ways
        assert letters in only_letters(page), line
        assert letters in only_letters(plain), line


def test_the_first_screen_says_how_it_stands(trained: Trained, card: Card) -> None:
    by_name = {s.name: s for s in standings(card)}
    assert list(by_name) == ["Performance", "Risks", "Data"]
    assert by_name["Data"].status == "no column likely wrong"
    assert {s.name: s for s in standings(trained.card())}["Data"].status == "not compared"
    wrong = trained.card(findings=[Finding("north <b>", "dose", "unit", True, 3.0, "dose is off.", {})])
    data = {s.name: s for s in standings(wrong)}["Data"]
    assert (data.status, data.kind, data.words) == ("1 column is likely wrong", "loss", "")
    assert "correct the file" in next_step(wrong)
    page = render_card(card)
    short = page[page.index('class="short"') : page.index('id="use"')]
    for standing in standings(card):
        assert standing.status in short
    assert "What to do next." in short
    assert short.index("<svg") < short.index('class="statuses"')


@pytest.mark.parametrize(
    ("first", "status", "kind"),
    [
        (score(0.6, 0.8, 0.5), "better than the baseline", "gain"),
        (score(0.45, 0.8, 0.5), "not shown to beat the baseline", "unsure"),
        (score(0.3, 0.4, 0.5), "worse than the baseline", "loss"),
        (score(0.1, 0.2, 0.5, "log_loss"), "better than the baseline", "gain"),
        (score(0.6, 0.8, 0.5, "log_loss"), "worse than the baseline", "loss"),
        (score(float("nan"), float("nan"), 0.5), "not shown to beat the baseline", "unsure"),
    ],
)
def test_performance_is_against_the_baseline(card: Card, first: CardScore, status: str, kind: str) -> None:
    shown = standings(card._replace(scores=[first]))[0]
    assert (shown.status, shown.kind) == (status, kind)
    if kind != "gain":
        assert "Do not use it for decisions" in next_step(card._replace(scores=[first]))


def test_a_score_that_is_no_better_is_named(card: Card) -> None:
    """One score that is better does not make the model better."""
    mixed = card._replace(scores=[score(0.6, 0.8, 0.5), score(0.6, 0.8, 0.5, "log_loss")])
    shown = standings(mixed)[0]
    assert (shown.status, shown.kind) == ("better in part", "warn")
    assert "No better than the baseline in log loss." in shown.words
    assert "which score matters" in next_step(mixed)


def test_risks_that_are_off_are_not_to_be_acted_on(card: Card) -> None:
    assert card.bedside is not None
    counts = card.bedside.counts
    off = counts._replace(expected=counts.expected * 0.2)
    bad = card._replace(bedside=card.bedside._replace(counts=off, line=None), scores=[score(0.6, 0.8, 0.5)])
    shown = {s.name: s for s in standings(bad)}["Risks"]
    assert (shown.status, shown.kind) == ("off", "loss")
    assert "risks are too low" in shown.words
    assert "Do not act on the stated risks" in next_step(bad)
    assert "Risks" not in {s.name for s in standings(card._replace(bedside=None))}


def test_the_figure_has_the_scores_and_their_baselines(card: Card) -> None:
    page = render_card(card)
    figure = page[page.index('data-figure="scores"') :]
    drawn = re.findall(r"<title>([^<]+): ([\d.]+) \(([\d.]+) to ([\d.]+)\); baseline ([\d.]+)</title>", figure)
    wide = drawn[: len(drawn) // 2]
    wanted = [(f"{s.estimate.value:.3f}", f"{s.estimate.low:.3f}", f"{s.chance:.3f}") for s in card.scores]
    assert [(value, low, chance) for _, value, low, _, chance in wide] == wanted
    assert len(wide) == 4
    assert beats_baseline(card.scores[0]) is True
    only = card._replace(scores=[*card.scores, score(0.4, 0.6, 0.7, "log_loss")])
    assert render_card(only).count("log loss: ") == 0, "another scale has no place in this figure"


def test_tensors_and_what_may_be_real_are_folded(trained: Trained) -> None:
    maybe = [Finding("north <b>", ODD, "differs", False, 2.0, "it differs here.", {})]
    page = render_card(trained.card(findings=maybe))
    unfolded = re.sub(r"<details>.*?</details>", "", page, flags=re.S)
    assert page.count("(tensors a, b, c)") == 30
    assert "(tensors a, b, c)" not in unfolded
    assert "it differs here." in page
    assert "it differs here." not in unfolded
    assert "no column of this site is likely wrong" in unfolded


def test_findings_are_sentences_and_no_table(trained: Trained) -> None:
    """A table of sentences was cut at the page's edge."""
    wrong = [Finding("north <b>", "dose", "unit", True, 3.0, "dose is 18 times as large here.", {})]
    page = render_card(trained.card(findings=wrong))
    assert "<li>dose: in another unit. dose is 18 times as large here.</li>" in page


def test_the_header_is_yaml_as_model_hubs_read_it(trained: Trained, card: Card) -> None:
    plain = to_markdown(card)
    assert plain.startswith("---\n")
    front = plain.split("\n---\n")[0].removeprefix("---\n")
    known = yaml.safe_load(front)
    assert known["pipeline_tag"] == "tabular-classification"
    assert "federated-learning" in known["tags"]
    assert known["metrics"] == ["balanced_accuracy", "accuracy", "f1", "roc_auc"]
    (model,) = known["model-index"]
    assert model["name"] == "FedAvg at north <b>"
    (result,) = model["results"]
    assert result["task"]["type"] == "tabular-classification"
    assert result["dataset"] == {
        "type": "private",
        "name": f"{HOSTILE[1]}: held-out rows of north <b>",
        "split": "test",
    }
    for metric, shown in zip(result["metrics"], card.scores, strict=True):
        assert metric["value"] == pytest.approx(shown.estimate.value, abs=1e-4)
        assert f"baseline {shown.chance:.3f}" in metric["name"]
    assert is_card(plain)
    assert is_card(f"{MARK}\n\n# an earlier one")
    assert not is_card("---\ntitle: my notes\n---\n\n# Notes")


@pytest.mark.parametrize("name", [*HOSTILE, "a\n---\nb: c", 'quote " and \\ back', "\x07bell", "😀: [x]"])
def test_names_cannot_break_out_of_the_header(card: Card, name: str) -> None:
    known = yaml.safe_load(header(card._replace(site=name)).strip("-"))
    printable = "".join(letter for letter in " ".join(name.split()) if letter.isprintable())
    assert known["model-index"][0]["name"] == f"FedAvg at {printable}"
    assert set(known) == {"language", "library_name", "pipeline_tag", "tags", "metrics", "model-index"}


def test_without_scores_there_is_no_empty_result(card: Card) -> None:
    bare = card._replace(scores=[], bedside=None)
    assert yaml.safe_load(header(bare).strip("-"))["model-index"][0]["results"] == []
    assert standings(bare)[0].status == "not scored"
    assert "There are no held-out rows to score." in render_card(bare)


def test_the_checklist_is_whole_and_each_item_is_answered_where_it_says(card: Card) -> None:
    assert len(ITEMS) == 52
    answered = answered_items(card)
    names = [entry.item for entry in answered]
    assert len(names) == len(set(names))
    assert sorted([*names, *other_items(card)]) == sorted(item.strip() for item in ITEMS)
    assert {entry.section for entry in answered} <= {section.key for section in sections(card)}
    page = render_card(card)
    for entry in answered:
        assert f'<tr><th scope="row">{entry.item}</th>' in page
    assert "Of the 52 parts of the checklist" in page


def test_only_what_the_card_has_is_said_to_be_answered(card: Card) -> None:
    def items(changed: Card) -> set[str]:
        return {entry.item for entry in answered_items(changed)}

    assert {"23a", "12e", "7"} <= items(card)
    assert items(card) - items(card._replace(scores=[])) == {"12e", "12g", "23a"}
    assert items(card) - items(card._replace(findings=None)) == {"7"}
    assert "3b" not in items(card), "the study states no purpose"
    stated = card.study.model_copy(update={"description": "Who dies within a day?"})
    assert "3b" in items(card._replace(study=stated))


def test_a_long_table_of_columns_is_folded(card: Card) -> None:
    many = card._replace(columns=[card.columns[0]._replace(name=f"c{i}") for i in range(40)])
    assert "<details><summary>Columns that the model uses</summary>" in render_card(many)
    assert "<details><summary>Columns that the model uses</summary>" not in render_card(card)
