"""The form says what the wire table says, for every method; and what it says stays at home does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail as vt
from tests.support.deploy.federation import Here, first_word, prepare_question
from tests.support.deploy.forms import clause, clauses, line_of, paragraphs, summary, tables
from tests.support.deploy.proofs import prove
from vitrail.core.tensors import flatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.consent.disclosures import declared, phrase, phrases
from vitrail.deploy.consent.form import contract_text, protection_text
from vitrail.deploy.consent.layout import WIDTH
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import FORMAT, LAST, Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.protocol.score_plan import planned
from vitrail.deploy.site.site import Site
from vitrail.engine.contract import sentences
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

METHODS = [
    name for name, kind in vt.methods.TABLE.items() if not kind.catalogue.pools_rows and not kind.catalogue.required_net
]
NAMES = ["cleveland", "hungarian", "switzerland", "va"]
NEVER, COUNTS = "WHAT NEVER LEAVES", "COUNTS OF ROWS"
TRAINING, SCORES = "REPORTS: TRAINING", "SCORES AT THE END"


def agreed(method: str, sites: int = 4, set_: dict | None = None, **changes: Any) -> Agreement:
    """Of a method that would be refused with plain sums otherwise, a study that accepts exact scores."""
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(**changes)
    study = resolve(study, vt.methods.build(method, set_ or {}), None)[0]
    try:
        return Agreement.of(study, None, sites)
    except vt.VitrailError as error:
        if 'scores = "exact"' not in str(error):
            raise
    return Agreement.of(study.with_changes(protect={"scores": "exact"}), None, sites)


@pytest.mark.parametrize("scale", ["local", "global"])
@pytest.mark.parametrize("publishes", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_all_that_leaves_is_said(method: str, publishes: bool, scale: str) -> None:
    a = agreed(method, standardise=scale)
    text = contract_text(a, "va", NAMES, publishes)
    *_, leaving, coming = tables(text)
    leaves, comes = ([name for row in rows for name in row[-3].split("; ")] for rows in (leaving, coming))
    said = clauses(text)
    for line in a.lines:
        name = line.name + (f"[{','.join(map(str, line.shape))}]" if line.shape else "")
        there = leaves if line.direction == "from site" else comes
        if publishes or not line.asks:
            assert name in there
            assert any(phrase(a, line) in words for words in said.values())
        elif line.shape and (
            "/" in line.name or line.stage.startswith("screen")
        ):  # else its name may stand for another
            assert name not in there
    out, _ = declared(a, publishes)
    total = sum(x.bytes * x.rounds for x in out)
    found = re.search(r"Up to ([\d.]+) (bytes|KB|MB) of numbers leave in all", line_of(text))
    assert found is not None
    assert float(found[1]) * {"bytes": 1, "KB": 1e3, "MB": 1e6}[found[2]] == pytest.approx(total, rel=0.05)
    assert a.hash in text
    assert f"{a.study.training.rounds} rounds" in text
    assert all(n in text for n in NAMES)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert len(summary(text).splitlines()) <= 55, "it fits a page"


@pytest.mark.parametrize("method", METHODS)
def test_every_tensor_has_plain_words(method: str) -> None:
    linear = {"network": {"kind": "linear"}} if method == "weight_erosion" else {}  # it shows its model when it is
    a = agreed(method, standardise="global", **linear)
    for line in [x for lines in declared(a, True) for x in lines]:
        kinds = ("out", "columns") if line.direction == "from site" else ("in", "asked")
        assert line.words or phrase(a, line) in {words for kind in kinds for words in phrases(kind).values()}


def test_who_can_read_it() -> None:
    def readers(heading: str, method: str = "fedavg", **changes: Any) -> str:
        text = contract_text(agreed(method, **changes), "va", NAMES, True)
        return paragraphs(clause(text, heading))["Who can read it"]

    needs_total = "needs only the total over the sites. All the same, what this site sends reaches its machine"
    own = "The coordinator reads the numbers of this site."
    assert needs_total in readers(TRAINING)
    assert needs_total in readers("SUMS FOR A COMMON SCALE", standardise="global")
    assert needs_total in readers("SUMS FOR A COMMON SCALE", "influence", standardise="global")
    assert readers(TRAINING, "influence").startswith(own)
    assert "Every site is sent the models of all sites" in readers(TRAINING, "influence")
    assert "Every site is sent" not in readers(TRAINING)
    assert readers(COUNTS) == own
    assert readers(SCORES).startswith(own)
    assert "except the products of columns" in readers("SUMMARIES OF YOUR COLUMNS")
    compared = readers(TRAINING, protect={"robust": "median"})
    assert "compares the reports of the sites with each other" in compared
    assert "keeps the total alone" not in compared, "it looks at each"


def test_what_a_compressed_report_holds_is_not_said_to_stay() -> None:
    """Its tensors have names of their own; the layers leave all the same."""
    short = contract_text(agreed("fedavg", protect={"compress": "int8"}), "va", NAMES, True)
    assert phrases("layers")["head"] not in short
    assert "In fewer bytes" in paragraphs(clause(short, TRAINING))["In which form"]
    assert phrases("layers")["head"] in clause(contract_text(agreed("fedper"), "va", NAMES, True), NEVER)


def test_weights_by_rows_are_told() -> None:
    leaves = paragraphs(clause(contract_text(agreed("fedavg"), "va", NAMES, True), TRAINING))["What leaves"]
    assert 'with weights = "rows" how many rows you train on: 1 number' in leaves


def test_what_uncertainty_tells_is_said_of_classes_alone() -> None:
    said = paragraphs(clause(contract_text(agreed("fedavg"), "va", NAMES, True), SCORES))
    assert "how unsure your model is on the held-out rows" in said["What leaves"]
    assert "no number is about fewer than 10 rows, and no two differ by fewer: 12 numbers" in said["What leaves"]
    learned = said["What an attacker could learn"]
    assert "how many mistakes are among the held-out rows between them. These are 10 or more." in learned
    study = vt.Study.infer({k: v.dropna(subset="thalach") for k, v in heart_disease().items()}, target="thalach")
    numbers = contract_text(Agreement.of(resolve(study, "fedavg", None)[0], None, 4), "va", NAMES, True)
    assert "unsure" not in numbers
    assert "surest" not in numbers


def test_private_layers_stay_until_they_are_published() -> None:
    a, layers = agreed("ifedavg", standardise="local"), phrases("layers")
    kept = [clause(contract_text(a, "va", NAMES, p), NEVER) for p in (True, False)]
    assert [layers["input"] in k for k in kept] == [False, True]
    assert layers["head"] in clause(contract_text(agreed("fedper"), "va", NAMES, True), NEVER)
    scale = "the mean and the standard deviation of each column"
    assert [scale in k for k in kept] == [False, True]  # quantiles tell about as much
    shared = agreed("ifedavg", standardise="global")
    assert scale not in clause(contract_text(shared, "va", NAMES, False), NEVER)


def test_a_model_trained_beside_is_named_only_where_there_is_one() -> None:
    def never(**settings: Any) -> str:
        return clause(contract_text(agreed("weight_erosion", **settings), "va", NAMES, True), NEVER)

    beside = "the model that is trained on your rows alone, in parallel"
    assert beside in never()
    assert beside not in never(set_={"beside": False})
    assert beside not in never(network={"kind": "linear"})  # then it is shown in the end


@pytest.mark.parametrize(
    ("protect", "words"),
    [
        ({"rows": {"epsilon": 1.0}}, ("every step", "epsilon 1 for a row", "2.15 for one")),
        ({"rows": {"epsilon": 8.0}}, ("every step", "epsilon 8 for a row", "19.1 for one")),
        ({"sites": {"epsilon": 4.0}, "clip": 0.5}, ("total of every round", "epsilon 4 for a site", "9.08 for one")),
    ],
)
def test_the_form_has_epsilon_for_a_removed_and_for_a_replaced_one(
    protect: dict[str, Any], words: tuple[str, ...]
) -> None:
    one = agreed("fedavg", protect=protect, standardise="local")
    text = contract_text(one, "va", NAMES, True)
    learned = paragraphs(clause(text, TRAINING))["What an attacker could learn"]
    assert all(part in learned for part in words)
    budget = clause(text, "THE NOISE, AND THE PRIVACY BUDGET")
    for part in ("compares the run with the same run without the values", "in its place", "The budget does not cover"):
        assert part in budget
    assert protection_text(one) in learned
    plain = contract_text(agreed("fedavg"), "va", NAMES, True)
    assert "No noise is added" in plain
    assert "epsilon" not in plain


def test_where_noise_is_added_for_sites_no_scores_leave_and_the_report_holds_none() -> None:
    one = agreed("fedavg", protect={"sites": {"epsilon": 4.0}, "clip": 0.5}, standardise="local")
    text = contract_text(one, "va", NAMES, True)
    assert not [heading for heading in clauses(text) if heading.startswith("SCORES")]
    assert "its scores" not in clause(text, "RULES FOR EVERY MESSAGE")
    assert "its scores" in clause(contract_text(agreed("fedavg"), "va", NAMES, True), "RULES FOR EVERY MESSAGE")


class Counted(Here):
    """It notes what one of them says."""

    def __init__(self, sites: dict[str, Site]) -> None:
        super().__init__(sites)
        self.said: list[Message] = []

    def left(self, site: str, data: bytes) -> None:
        self.said += [unpack(data)] if site == "va" else []


@pytest.mark.parametrize("method", METHODS)
def test_no_more_leaves_than_is_said(method: str, tmp_path: Path) -> None:
    """Every number of every message of a whole run, against the sum that the words tell."""
    a = agreed(method, 4, training={"rounds": 2}, standardise="global")
    frames = heart_disease()
    way = Counted({n: Site(n, f, a, tmp_path / n, True, prove(n, NAMES, tmp_path / n)) for n, f in frames.items()})
    conduct(
        SiteRequests(way, a, list(way.sites), "0" * 16, 4, 60.0), Folder(tmp_path / "run", resume=False), resume=False
    )
    said = declared(a, True)[0]
    left = sum(t.nbytes for m in way.said for t in m.tensors.values())
    assert left == sum(x.bytes * x.rounds for x in said)


def promises(method: str) -> bool:
    """Whether the words claim that something of a site's state never leaves."""
    return any(text for t in agreed(method).stages for text in sentences(t.state).values())


@pytest.mark.parametrize("method", [m for m in METHODS if promises(m) and vt.methods.TABLE[m].catalogue.federated])
def test_what_is_said_to_stay_does_stay(method: str, tmp_path: Path) -> None:
    """The site's own part of the model is looked for in all that leaves, as it is and as a multiple."""
    a = agreed(method, 2, training={"rounds": 3})
    site = Site("va", heart_disease()["va"], a, tmp_path, publishes=False)
    left: list[Tensor] = []

    def ask(kind: str, words: dict | None = None, told: dict | None = None) -> None:
        said = site.answer(Message(kind, {"run": "0" * 16, **(words or {})}, told or {}))
        left.extend(said.tensors.values())

    ask("hello", {"format": FORMAT, "agreement": a.hash})
    ask("prepare", told=prepare_question(site, "0" * 16).tensors)
    g = torch.Generator().manual_seed(1)
    own: list[dict[str, Tensor]] = []
    for s, stage in enumerate(a.stages):
        last = len(stage.turns) - 1
        where = {"stage": s, "score": ["test"], "place": last}
        for r in range(stage.stage.rounds):
            for place in stage.stage.turns(r):
                here = {**where, "place": place, "score": planned(a, "round", s, r, place), "round": r}
                beside = _down(stage.last, g) if here["score"] else {}
                beside = {name: v for k, v in beside.items() if (name := f"{LAST}/{k}") in a.settling(s, place)}
                begins = s == r == 0 and place == stage.stage.turns(0)[0]
                ask("round", here, (first_word(a) if begins else _down(stage.turns[place].down, g)) | beside)
            state = site._state(s, r + 1, 0)
            said = sentences(state)
            own.append({k: v[0] for k, v in flatten(state) if said[k]})
        where["score"] = planned(a, "settle", s, stage.stage.rounds, last)
        ask("settle", {**where, "round": stage.stage.rounds}, _down(stage.last, g))
    assert sum(t.numel() for t in left) > 100
    mine = [t for kept in own for t in kept.values() if t.numel() >= 10]  # two may agree by chance
    assert mine
    assert not [1 for t in mine for sent in left if _inside(t, sent)]
    assert _inside(mine[0], torch.cat([torch.zeros(3), 2.5 * mine[0].flatten()]))  # the search finds what is there


def _down(like: Any, g: torch.Generator) -> dict[str, Tensor]:
    """Something to be told: near what everyone starts from, and different each time."""
    out = {}
    for name, t in flatten(like):
        noise = 0.01 * torch.randn(t.shape[1:], generator=g)
        out[name] = t[0] + noise.to(t.dtype) if t.is_floating_point() and name != "own" else t[0]
    return out


def _inside(mine: Tensor, sent: Tensor) -> bool:
    """Whether these numbers, or a multiple of them, stand one after the other in what was sent."""
    flat, n = mine.flatten().double(), mine.numel()
    if sent.numel() < n or n < 2 or not bool(flat.any()):
        return False
    windows = sent.flatten().double().unfold(0, n, 1)
    cosine = (windows @ flat).abs() / (windows.norm(dim=1) * flat.norm()).clamp(min=1e-30)
    return bool((cosine > 1 - 1e-9).any())
