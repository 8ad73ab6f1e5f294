"""Scores are no oracle for rows: a site scores what was agreed, once, in order, and tells counts rounded to tens.

The attack is that of benchmarks/attacks/attack_oracle.py: a model that names only one known person ill. The control
is a site that scores any model exactly, as sites once did.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail as vt
from tests.support.deploy.federation import first_word, prepare_question
from tests.support.scripts import load_script
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import heart_disease
from vitrail.data.readers.tables import clean
from vitrail.deploy.consent.disclosures import disclosures
from vitrail.deploy.protocol import score_plan
from vitrail.deploy.protocol.agreement import FOOTPRINT, Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.score_plan import POINTS, SUMMED, is_summed, planned
from vitrail.deploy.site.scores import COARSER, OWN, SCORED
from vitrail.deploy.site.site import Site
from vitrail.engine.contract import MASKED
from vitrail.methods import InDISCO
from vitrail.methods.blocks.shortcut_signals import Try
from vitrail.privacy.score_rounding import TEN, step_of
from vitrail.runs.protection.budget import score_noise
from vitrail.runs.setup import last_splits, resolve

RUN, NAME, ROUNDS = "0123456789abcdef", "cleveland", 2 * POINTS  # scores are told before every second round
attack = load_script("attack_oracle")


def agreed(scores: str = "rounded", sum_: str = "plain", rounds: int = ROUNDS) -> Agreement:
    study = attack.drafted(scores, rounds).study
    return Agreement.of(study.with_changes(protect={"sum": sum_}), None, 4)


def a_site(place: Path, of: Agreement) -> Site:
    site = Site(NAME, heart_disease()[NAME], of, place)
    site.answer(prepare_question(site, RUN))
    return site


def ask(site: Site, r: int, word: dict[str, Tensor], *, end: bool = False) -> Message:
    """The question of that round, with the scores that were agreed."""
    kind = "settle" if end else "round"
    where = {"run": RUN, "stage": 0, "round": r, "place": 0, "score": planned(site.agreed, kind, 0, r, 0)}
    return site.answer(Message(kind, where, word))


def crafted(site: Site, row: Any) -> dict[str, Tensor]:
    encoder = site.data.encoder  # type: ignore[union-attr]
    scale = {k: (encoder.mean[k], encoder.sd[k]) for k in encoder.mean}
    return dict(attack.Crafter(site.agreed, scale).word(row))


def drifting(old: dict[str, Tensor], new: dict[str, Tensor], part: float) -> dict[str, Tensor]:
    return {k: old[k] + part * (new[k] - old[k]) for k in old}


def test_the_control_reads_membership_from_exact_scores(tmp_path: Path) -> None:
    """A site that scores any model: members are found, strangers are not."""
    found, wrong = (np.array(x) > 0 for x in attack.attack("open", 1, 8))
    assert found.mean() > 0.9
    assert wrong.mean() < 0.1


def test_rounded_scores_hardly_tell_membership() -> None:
    """All answers of a whole study spent on one person; with so few persons the bound is wide, and the benchmark's is
    not. The control, with the same persons, is right of nearly all."""
    inside, outside = (np.array(x) > 0 for x in attack.attack("rounded", 1, 25))
    right = (inside.mean() + 1 - outside.mean()) / 2
    assert right < 0.55 + 3 * math.sqrt(0.25 / (len(inside) + len(outside)))


def test_scores_are_told_in_the_agreed_rounds_alone(tmp_path: Path) -> None:
    of = agreed()
    site, word = a_site(tmp_path, of), first_word(of)
    for r in range(ROUNDS):
        assert planned(of, "round", 0, r, 0) == (["test"] if r % 2 == 0 else [])
    for kind, r, score in (("settle", 6, ["test", "train"]), ("settle", 6, ["test"]), ("round", 1, ["test"])):
        with pytest.raises(vt.VitrailError, match="refused"):
            site.answer(Message(kind, {"run": RUN, "stage": 0, "round": r, "place": 0, "score": score}, word))
    where = {"run": RUN, "stage": 0, "round": 0, "place": 0, "score": ["test", "train"]}
    with pytest.raises(vt.VitrailError, match="refused"):
        site.answer(Message("round", where, word))


def test_a_model_that_continues_nothing_gets_no_score(tmp_path: Path) -> None:
    """Before any training; and, where the site has trained, one that jumps."""
    of = agreed()
    site = a_site(tmp_path, of)
    word = crafted(site, clean(heart_disease()[NAME], of.study).iloc[0])
    said = ask(site, ROUNDS, word, end=True).tensors["scores"]
    assert bool(said.isnan().all())
    assert "the model does not continue the one" in site.notices[-1]
    assert json.loads((tmp_path / RUN / SCORED).read_text())["refused"] == 1
    site = a_site(tmp_path / "other", of)
    first = first_word(of)
    assert not bool(ask(site, 0, first).tensors["scores"].isnan().all())
    ask(site, 1, first)
    with pytest.raises(vt.VitrailError, match="could have been crafted to read its rows"):
        ask(site, 2, word)  # it moves further than a round can: the site stops


def test_a_late_site_scores_nothing_before_it_has_trained(tmp_path: Path) -> None:
    of = agreed()
    site = a_site(tmp_path, of)
    assert bool(ask(site, 4, first_word(of)).tensors["scores"].isnan().all())
    ask(site, 5, first_word(of))
    assert not bool(ask(site, 6, first_word(of)).tensors["scores"].isnan().all())


def test_each_point_is_answered_once_and_the_same_again(tmp_path: Path) -> None:
    of = agreed()
    site, word = a_site(tmp_path, of), first_word(of)
    ask(site, 0, word)
    one = ask(site, 2, word).tensors["scores"]
    again = a_site(tmp_path, of)  # started anew
    torch.testing.assert_close(ask(again, 2, word).tensors["scores"], one, rtol=0, atol=0, equal_nan=True)
    other = drifting(word, crafted(again, clean(heart_disease()[NAME], of.study).iloc[0]), 0.01)
    assert bool(ask(again, 2, other).tensors["scores"].isnan().all())
    assert "another model was scored" in again.notices[-1]
    assert bool(ask(again, 0, word).tensors["scores"].equal(ask(site, 0, word).tensors["scores"]))
    ask(again, 4, word)
    (again.scores.home / SCORED).write_text(
        json.dumps({"models": {"round 0 4": {"at": [4, False], "mark": ""}}, "refused": 0})
    )
    assert bool(ask(again, 2, word).tensors["scores"].isnan().all()), "not back in time"
    assert "a later model" in again.notices[-1]


def test_what_leaves_is_a_multiple_of_ten_patients(tmp_path: Path) -> None:
    of = agreed(rounds=1)
    site = a_site(tmp_path, of)
    ask(site, 0, first_word(of))
    said = ask(site, 1, first_word(of), end=True)
    scores = dict(zip(of.scored(list(last_splits(of.task, of.study))), said.tensors["scores"].tolist(), strict=True))
    exact = json.loads((tmp_path / RUN / OWN).read_text())
    own = {(split, metric): value for split, metric, value in exact["scores"]}
    moved = 0
    for split in ("test", "train"):
        rows = len(getattr(site.data, f"{split}_y"))
        count = scores[split, "accuracy"] * rows
        step = step_of(rows, COARSER if split == "train" else 1)
        assert step >= TEN
        assert count == pytest.approx(step * round(count / step), abs=1e-6)
        assert abs(count - own[split, "accuracy"] * rows) < 2 * step
        moved += abs(count - own[split, "accuracy"] * rows) > 1e-6
    assert moved, "what is rounded is not what is"
    assert exact["rows"] == len(site.data.test_y)  # type: ignore[union-attr]


def test_exact_scores_are_for_studies_that_say_so(tmp_path: Path) -> None:
    of = agreed("exact", rounds=1)
    site = a_site(tmp_path, of)
    ask(site, 0, first_word(of))
    said = ask(site, 1, first_word(of), end=True)
    scores = dict(zip(of.scored(list(last_splits(of.task, of.study))), said.tensors["scores"].tolist(), strict=True))
    own = {(split, metric): v for split, metric, v in json.loads((tmp_path / RUN / OWN).read_text())["scores"]}
    assert {k: scores[k] for k in own} == pytest.approx(own)
    assert of.hash != agreed(rounds=1).hash, "it is part of what a site accepts"


def test_how_many_rows_travelling_models_tell_right_is_rounded(tmp_path: Path) -> None:
    """Between machines a method's own counts leave as scores do; of a class of few rows none."""
    site = a_site(tmp_path, agreed(rounds=1))
    counts = torch.tensor([[[47.0, 61.0], [20.0, 39.0]]] * 3)  # [model, class, 2]
    report = {"counts": counts, "rises": torch.ones(3, 2)}
    tried = Try(InDISCO())
    told = [site.scores.coarse(tried, report, 0, r, 0)["counts"] for r in range(200)]
    right = torch.stack([t[:, 0, 0] for t in told])
    step = step_of(61)
    assert set((right % step).flatten().tolist()) == {0.0}
    assert float(right.mean()) == pytest.approx(47, abs=4 * step / 2 / math.sqrt(right.numel()))
    assert all(t[:, 0, 1].tolist() == [61.0] * 3 for t in told)
    assert not any(bool(t[:, 1].any()) for t in told)
    again = site.scores.coarse(tried, report, 0, 0, 0)
    assert again["counts"].equal(told[0]), "the same question has the same answer"
    assert again["rises"] is report["rises"]
    assert float(site.scores.coarse(tried, {"counts": counts.repeat(4, 1, 1)}, 0, 0, 0)["counts"].sum()) == 0, (
        "twelve models: steps three times as long, of which 61 rows are too few"
    )
    site.scores.exact = True
    assert site.scores.coarse(tried, report, 0, 0, 0)["counts"] is counts


def test_two_counts_of_the_same_rows_tell_no_more_than_one(tmp_path: Path) -> None:
    """How many are told right and how surely: steps twice as long, and of rows too few for these, the first alone."""
    site, tried = a_site(tmp_path, agreed(rounds=1)), Try(InDISCO())
    counts = torch.tensor([[[60.0, 90.0], [47.0, 61.0], [20.0, 39.0]]] * 3)
    report = {"counts": counts, "margins": counts * torch.tensor([0.9, 1.0])}
    told = [site.scores.coarse(tried, report, 0, r, 0) for r in range(100)]
    double = step_of(90, 2)
    assert double == 20
    for name in report:
        values = torch.stack([t[name][:, 0, 0] for t in told])
        assert set((values % double).flatten().tolist()) == {0.0}
        assert float(values.mean()) == pytest.approx(float(report[name][0, 0, 0]), abs=4 * double / 2 / 300**0.5)
    assert set((torch.stack([t["counts"][:, 1, 0] for t in told]) % step_of(61)).flatten().tolist()) == {0.0}
    assert all(float(t["counts"][:, 1, 1].sum()) == 3 * 61 for t in told)
    assert not any(bool(t["margins"][:, 1:].any()) for t in told)
    assert not any(bool(t["counts"][:, 2].any()) for t in told)


def test_the_form_names_every_report_that_judges_models() -> None:
    """With how often, how many numbers, and whether the coordinator reads them one by one."""
    study = agreed(rounds=3).study.with_changes(protect={"sum": "plain"})
    for method, judged in {
        "fedavg": [],
        "influence": [("reports: training", (3, 0, 4, ""))],
        "agreed_mix": [("reports: choice", (1, 0, 275, "")), ("losses on rows left out", (1, 0, 3, ""))],
    }.items():
        plain = study.with_changes(protect={"scores": "exact" if method == "agreed_mix" else "rounded"})
        of = Agreement.of(resolve(plain, method, None)[0], None, 4)
        found = [(d.title, tuple(one)) for d in disclosures(of, True) for one in d.judging]
        assert found == judged
    masked = study.with_changes(protect={"sum": "masked"})
    of = Agreement.of(resolve(masked, "agreed_mix", None)[0], None, 4)
    assert ("reports: choice", "masked", False) in [
        (d.title, one.reading, d.not_rounded) for d in disclosures(of, True) for one in d.judging
    ]


def test_under_masks_no_site_tells_its_own_in_training() -> None:
    of = agreed(sum_="masked")
    stage = of.stages[0].stage
    points = [r for r in range(stage.rounds) if planned(of, "round", 0, r, 0)]
    assert len(points) == POINTS
    for r in range(stage.rounds):
        words = {"stage": 0, "round": r, "place": 0, "score": planned(of, "round", 0, r, 0)}
        form = of.answer("round", words).tensors
        assert "scores" not in form
        assert (SUMMED in form) == (r in points) == is_summed(of, 0, r, 0)
    assert of.contracts[0][0].read in MASKED
    lines = [x for x in of.lines if x.stage == score_plan.TRAINING]
    assert {x.seen for x in lines} == {"masked"}
    assert len(lines) == len(score_plan.summed_scores(of)) == 1


def noisy(place: Path, **protect: Any) -> Site:
    own_scale = {"standardise": "local", "reference_level": True}
    study = agreed(rounds=1).study.with_changes(**own_scale, protect={"clip": 1.0, **protect})
    return a_site(place, Agreement.of(study, None, 4))


def test_where_rows_have_a_budget_scores_leave_once_under_its_noise(tmp_path: Path) -> None:
    """Of held-out rows alone; and as far off as what such a row has of the budget makes them."""
    site = noisy(tmp_path, rows={"epsilon": 4.0, "delta": 1e-5})
    of = site.agreed
    assert not planned(of, "round", 0, 0, 0)
    splits = planned(of, "settle", 0, 1, 0)
    state = site._state(0, 0, 0)
    settled = of.stages[0].stage.last.settle(of.task, state, of.stages[0].last)
    middle = float(np.median(site.judge.answers(settled, "test")["test"][0, :, 1]))
    site.judge.thresholds = np.array([[1 - middle, middle]])  # half of the rows count as predicted to have the event
    right, true = site.scores._hits(settled, "test")["test"]
    assert (np.minimum(right, true - right) > 10).all(), "no noise is cut off at none or all of a class"
    about, rows, told = of.scored(splits), len(site.data.test_y), list[float]()  # type: ignore[union-attr]
    for i in range(300):
        site.scores.secret = f"secret {i}"
        values = dict(zip(about, site.scores.alone(settled, 0, 1, splits).tolist(), strict=True))
        told.append(values["test", "accuracy"] * rows)
        assert all(math.isnan(v) for (split, _), v in values.items() if split != "test")
    z = score_noise(of.study)
    together = math.sqrt(2)  # the hits of both classes count for one, and the area under the curve for another
    assert np.std(told) == pytest.approx(z * together * math.sqrt(2), rel=0.2)  # a sum over two classes
    site.scores.secret = "secret 0"
    assert site.scores.alone(settled, 0, 1, splits)[1] * rows == pytest.approx(told[0])


def test_where_sites_have_a_budget_no_site_tells_a_score(tmp_path: Path) -> None:
    of = noisy(tmp_path, sites={"epsilon": 4.0}).agreed
    assert not planned(of, "settle", 0, 1, 0)
    assert not any(x.stage in (score_plan.TRAINING, score_plan.END) and x.name != FOOTPRINT for x in of.lines)


@pytest.mark.parametrize("method", ["agreed_mix", "centres"])
def test_exact_reports_on_chosen_models_leave_under_masks_or_by_consent(method: str) -> None:
    """A plain report of what models cost on a site's rows told membership right of 0.999 (attack_oracle.md, mix)."""
    study = attack.drafted("rounded", ROUNDS).study
    study = resolve(study.with_changes(protect={"sum": "plain"}), method, None)[0]
    with pytest.raises(VitrailError, match="whether a given person is among them"):
        Agreement.of(study, None, 4)
    for accepted in ({"sum": "masked"}, {"scores": "exact"}):
        assert Agreement.of(study.with_changes(protect=accepted), None, 4).study.protect.least == 3


def test_methods_that_judge_no_models_need_no_masks() -> None:
    study = attack.drafted("rounded", ROUNDS).study.with_changes(protect={"sum": "plain"})
    assert Agreement.of(resolve(study, "fedavg", None)[0], None, 4).sites == 4
