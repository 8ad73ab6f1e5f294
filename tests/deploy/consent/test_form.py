"""The contract in words says what the wire table says, for every method; and what it says stays at home does."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail as vt
from tests.support import ROOT
from tests.support.deploy.federation import Here, first_word, prepare_question
from tests.support.deploy.proofs import prove
from vitrail.core.tensors import flatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.consent import attack_evidence
from vitrail.deploy.consent.form import WIDTH, contract_text, declared, phrase
from vitrail.deploy.consent.tensor_phrases import GROUPS, IN, OUT
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import FORMAT, LAST, Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.protocol.score_plan import planned
from vitrail.deploy.site.site import Site
from vitrail.engine.contract import sentences
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve
from vitrail.study.model import Protect

METHODS = [
    name for name, kind in vt.methods.TABLE.items() if not kind.catalogue.pools_rows and not kind.catalogue.required_net
]
NAMES = ["cleveland", "hungarian", "switzerland", "va"]


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


def part(text: str, heading: str) -> str:
    """One section, on one line."""
    body = text.split(f"{heading}\n")[1]
    return " ".join(re.split(r"\n\n(?=[A-Z ]+\n)", body)[0].split())


@pytest.mark.parametrize("scale", ["local", "global"])
@pytest.mark.parametrize("publishes", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_all_that_leaves_is_said(method: str, publishes: bool, scale: str) -> None:
    a = agreed(method, standardise=scale)
    text = contract_text(a, "va", NAMES, publishes)
    leaves, comes = part(text, "WHAT LEAVES THIS HOUSE"), part(text, "WHAT COMES IN")
    for line in a.lines:
        shape = " x ".join(map(str, line.shape))
        told = f"{line.name} {shape}" if shape and ("/" in line.name or line.asks) else line.name
        if line.direction == "from site":
            assert (told in leaves) == (publishes or not line.asks)
        else:
            assert (told in comes) == (publishes or not line.asks)
    out, _ = declared(a, publishes)
    assert {x for x in a.lines if x.direction == "from site" and (publishes or not x.asks)} <= set(out)
    total = sum(x.bytes * x.rounds for x in out)
    said = re.search(r"In all up to ([\d.]+) (bytes|KB|MB) of numbers", leaves)
    assert said is not None
    assert float(said[1]) * {"bytes": 1, "KB": 1e3, "MB": 1e6}[said[2]] == pytest.approx(total, rel=0.05)
    assert a.hash in text
    assert f"{a.study.training.rounds} rounds" in text
    assert all(n in text for n in NAMES)
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize("method", METHODS)
def test_every_tensor_has_plain_words(method: str) -> None:
    linear = {"network": {"kind": "linear"}} if method == "weight_erosion" else {}  # it shows its model when it is
    a = agreed(method, standardise="global", **linear)
    out, came = declared(a, True)
    for line in out + came:
        known = OUT if line.direction == "from site" else IN
        assert line.words or phrase(a, line) in known.values()


def test_who_sees_it() -> None:
    def seen(method: str, scale: str) -> str:
        return part(contract_text(agreed(method, standardise=scale), "va", NAMES, True), "WHO SEES IT")

    sums, each = seen("fedavg", "local"), seen("influence", "local")
    assert "Only the sum over the sites is used (training)" in sums
    assert "Only the sum over the sites is used (the common scale, training)" in seen("fedavg", "global")
    assert "Only the sum over the sites is used (the common scale)" in seen("influence", "global")
    assert "Each report (counts, what is published of your columns, scores in training, scores)" in sums
    assert "reaches the coordinator's machine all the same" in sums  # the sum is made there
    assert "Only the sum" not in each
    assert all("Of the products of columns nobody can read this site's own" in text for text in (sums, each))
    assert "Each report (counts, what is published of your columns, training, scores in training, scores)" in each
    assert "Every site is sent the models of all sites" in each


def test_weights_by_rows_are_told() -> None:
    leaves = part(contract_text(agreed("fedavg"), "va", NAMES, True), "WHAT LEAVES THIS HOUSE")
    assert 'with weights = "rows" how many rows you train on: 1 number' in leaves


def test_what_doubt_tells_is_told_of_classes_alone() -> None:
    text = contract_text(agreed("fedavg"), "va", NAMES, True)
    leaves, risks = part(text, "WHAT LEAVES THIS HOUSE"), part(text, "WHAT COULD STILL BE LEARNED")
    assert "how unsure your model is on the held-out rows" in leaves
    assert "no number about fewer than 10 rows, and no two that differ by fewer: 12 numbers, 96 bytes, once" in leaves
    assert "how many mistakes are among the held-out rows that lie between them, which are 10 or more" in risks
    study = vt.Study.infer({k: v.dropna(subset="thalach") for k, v in heart_disease().items()}, target="thalach")
    numbers = contract_text(Agreement.of(resolve(study, "fedavg", None)[0], None, 4), "va", NAMES, True)
    assert "unsure" not in numbers
    assert "tenth" not in numbers


def test_private_layers_stay_until_they_are_published() -> None:
    a = agreed("ifedavg", standardise="local")
    kept = [part(contract_text(a, "va", NAMES, p), "WHAT NEVER LEAVES") for p in (True, False)]
    assert [GROUPS["input"] in k for k in kept] == [False, True]
    assert GROUPS["head"] in part(contract_text(agreed("fedper"), "va", NAMES, True), "WHAT NEVER LEAVES")
    scale = "the mean and the standard deviation of each column"
    assert [scale in k for k in kept] == [False, True]  # quantiles tell about as much
    shared = agreed("ifedavg", standardise="global")
    assert scale not in part(contract_text(shared, "va", NAMES, False), "WHAT NEVER LEAVES")


def test_a_model_trained_beside_is_named_only_where_there_is_one() -> None:
    def never(**settings: Any) -> str:
        return part(contract_text(agreed("weight_erosion", **settings), "va", NAMES, True), "WHAT NEVER LEAVES")

    beside = "the model that is trained on your rows alone, beside"
    assert beside in never()
    assert beside not in never(set_={"beside": False})
    assert beside not in never(network={"kind": "linear"})  # then it is shown in the end


def test_the_study_cannot_write_on_the_terminal() -> None:
    text = contract_text(agreed("fedavg", description="\x1b[2J all is well"), "va", NAMES, True)
    assert "\x1b" not in text


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


def test_what_was_tried_is_what_the_benchmark_printed() -> None:
    """One measured sentence for the guards at hand, and its numbers are no others than those of the trials."""
    found = json.loads((ROOT / "benchmarks" / "attacks" / "results" / "attacks.json").read_text())
    for guard, name in (("plain", "plain"), ("masked", "total of three"), ("rows", "rows 10")):
        hidden, bare = ("draws known", "draws known") if guard == "rows" else ("draws secret", "no dropout")
        for how, counts in zip((hidden, bare), attack_evidence.REBUILT[guard], strict=True):
            cases = [found[f"honest|{name}, {how}|{draw}"] for draw in range(1, 6)]
            assert tuple(c["rebuilt"] for c in cases) == counts
            assert {c["rows"] for c in cases} == {attack_evidence.BATCH}
    control = [found[f"honest|plain, draws known|{draw}"]["rebuilt"] for draw in range(1, 6)]
    assert sum(rebuilt >= 12 for rebuilt in control) >= 4  # the attack works where nothing is hidden from it
    drafted = [found[f"honest|total of three, draws secret|{draw}"] for draw in range(1, 6)]
    assert all(c["cells"] <= c["guess"] + 0.05 for c in drafted)
    for guard, name in (("plain", "plain"), ("masked", "total of four"), ("rows", "rows 10")):
        cases = [found[f"craft|{name}, no dropout|{seed}"] for seed in range(1, 6)]
        assert tuple(c["rebuilt"] for c in cases) == attack_evidence.CRAFTED[guard]
        assert {c["rows"] for c in cases} == {attack_evidence.PATIENTS}
    said = {
        "52 to 58 of 203 patients were read in 40": Protect(),
        "11 to 25 of 203 patients were read out of totals": Protect(sum="masked"),
        "0 of 203 patients were read through noise": Protect(rows={"epsilon": 3.0}),
    }
    for words, protect in said.items():
        assert words in attack_evidence.what_was_tried(protect, dropout=True)
    for protect, dropout in itertools.product(({}, {"sum": "masked"}), (0.0, 0.2)):
        form = contract_text(agreed("fedavg", protect=protect, network={"dropout": dropout}), "va", NAMES, True)
        measured = {kept: attack_evidence.what_was_tried(Protect(**protect), dropout=kept) for kept in (True, False)}
        assert {kept for kept, words in measured.items() if words in " ".join(form.split())} == {dropout > 0}
    assert "rebuilt 0 to 1 of" in attack_evidence.what_was_tried(Protect(sum="masked"), dropout=False)


@pytest.mark.parametrize(
    ("protect", "told"),
    [
        ({"rows": {"epsilon": 1.0}}, ("every step", "epsilon 1 for a row", "2.15 for one")),
        ({"rows": {"epsilon": 8.0}}, ("every step", "epsilon 8 for a row", "19.1 for one")),
        ({"sites": {"epsilon": 4.0}, "clip": 0.5}, ("total of every round", "epsilon 4 for a site", "9.08 for one")),
    ],
)
def test_the_form_has_epsilon_for_a_removed_and_for_a_replaced_one(
    protect: dict[str, Any], told: tuple[str, ...]
) -> None:
    one = agreed("fedavg", protect=protect, standardise="local")
    text = " ".join(contract_text(one, "va", NAMES, True, spent=["Before: nothing."]).split())
    for words in (*told, "Removed: the run is compared", "with another", "It does not cover "):
        assert words in text, words
    assert "THE PRIVACY BUDGET OF THESE ROWS - Before: nothing." in text
    plain = contract_text(agreed("fedavg"), "va", NAMES, True)
    assert "No noise is added" in plain
    assert "epsilon" not in plain
