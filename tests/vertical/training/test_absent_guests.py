"""Guests that ration themselves, go away and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.vertical.talks import talk
from vitrail.core.errors import VitrailError
from vitrail.core.optimizers import Adam
from vitrail.vertical.messages import Wanted
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.wire import Wire


def test_a_ration_of_training_is_kept_before_anything_crosses() -> None:
    seen: list[Any] = []
    d = talk("split", ration=2, epochs=3, wire=Wire(watch=lambda a, b, m: seen.append((a, b))))
    with pytest.raises(VitrailError, match="may be asked about 2 times in training"):
        d.train()
    assert d.step == 2 * len(d.terms.batches)
    assert int(d.guests[0].ration.asked.max()) == 2
    assert len([way for way in seen if way == ("lab", "clinic")]) == d.step + len(d.terms.batches), "answers, masks"


def test_a_restart_does_not_refill_a_ration(tmp_path: Path) -> None:
    path = tmp_path / "ration.json"
    rows = torch.arange(50)
    first = RationAccount("lab", 100, 2, 30, path)
    first.train(rows)
    assert RationAccount("lab", 100, 2, 30, path).left == {"training": 1, "after": 30}
    first.answer(20)
    again = RationAccount("lab", 100, 2, 30, path)
    assert again.left == {"training": 1, "after": 10}
    again.train(rows)
    again.train(torch.arange(50, 100))
    with pytest.raises(VitrailError, match="2 times"):
        again.train(torch.tensor([99, 3]))
    assert int(again.asked[99]) == 1, "a refusal spends nothing"
    with pytest.raises(VitrailError, match="the request is for 11 rows, but only 10 of 30 are left"):
        again.answer(11)
    again.answer(10)
    assert RationAccount("lab", 100, 2, 30, path).left == {"training": 0, "after": 0}
    with pytest.raises(VitrailError, match="for 100 common rows, but now there are 90"):
        RationAccount("lab", 90, 2, 30, path)
    path.write_text("{")
    with pytest.raises(VitrailError, match="cannot be read"):
        RationAccount("lab", 100, 2, 30, path)


def test_prediction_spends_and_is_refused_before_an_answer() -> None:
    d = talk("split", epochs=1)
    d.train()
    d.guests[1].ration.after = 60
    d.predict(d.terms.test[:40])
    crossed = d.wire.ledger["insurer", "clinic", "Numbers"].rows
    with pytest.raises(VitrailError, match="the request is for 40 rows, but only 20 of 60 are left"):
        d.predict(d.terms.test[:40])
    assert d.wire.ledger["insurer", "clinic", "Numbers"].rows == crossed
    with pytest.raises(VitrailError, match="not in common"):
        d.guests[0].reply(Wanted(torch.tensor([-1, 5])))


def test_without_a_guest_its_median_answer_stands_and_that_is_said() -> None:
    d = talk("split", rule=Adam(0.03), epochs=20)
    d.train()
    rows = d.terms.test
    whole, less = d.predict(rows), d.predict(rows, without=["lab"])
    assert "Without lab" in less.words
    assert "median" in less.words
    assert "Without" not in whole.words
    usual = d.host.said["lab"][d.terms.train].quantile(0.5, 0)
    answers = {g.name: torch.zeros(len(rows), 1, dtype=torch.float64) for g in d.guests}
    answers["lab"] += usual
    answers["insurer"] += d.guests[1].scores(d.guests[1].columns[rows])
    by_hand = d.host.scores(torch.cat([d.host.columns[rows], *answers.values()], 1))
    assert torch.allclose(less.scores, by_hand)
    right = [float((p.scores.argmax(1) == d.host.y[rows].argmax(1)).double().mean()) for p in (whole, less)]
    assert right[0] > right[1] + 0.02
    spent = d.guests[0].ration.answered
    d.predict(rows, without=["lab"])
    assert d.guests[0].ration.answered == spent, "who is away is not asked"
    with pytest.raises(VitrailError, match="this study has no such guest"):
        d.predict(rows, without=["labb"])


@pytest.mark.parametrize(("bits", "noise", "alone"), [(0, 0.0, 0), (2, 0.5, 2)])
def test_training_resumes_where_every_side_was(tmp_path: Path, bits: int, noise: float, alone: int) -> None:
    whole = talk("split", rule=Adam(0.03), epochs=6, alone=alone, bits=bits, noise=noise)
    whole.train()
    first = talk("split", rule=Adam(0.03), epochs=6, alone=alone, bits=bits, noise=noise)
    first.train(until=7, keep=tmp_path)  # epochs are of two batches: step 6 was kept
    last = sorted((tmp_path / "insurer").glob("*"))[-1]
    last.rename(last.with_name("lost"))  # a guest was killed before it kept step 6
    second = talk("split", rule=Adam(0.03), epochs=6, alone=alone, bits=bits, noise=noise)
    assert second.resume(tmp_path) == 4
    second.train(keep=tmp_path)
    assert torch.equal(second.predict(second.terms.test).scores, whole.predict(whole.terms.test).scores)
    assert {p.name for p in tmp_path.iterdir()} == {"clinic", "lab", "insurer"}
    held = (tmp_path / "lab" / f"step-{whole.terms.steps:08d}.safetensors").read_bytes()
    assert b"weight" in held
    assert b"said" not in held, "each side keeps what is its own"
    assert talk("split").resume(tmp_path / "elsewhere") == 0


def test_a_guest_that_says_the_same_of_everybody_is_named() -> None:
    d = talk("split", epochs=3)
    d.guests[1].columns = torch.ones_like(d.guests[1].columns)
    with pytest.raises(VitrailError, match="guest insurer: its answers are the same for every row"):
        d.train()


def test_rows_that_do_not_fit_are_refused() -> None:
    d = talk()
    g = d.guests[0]
    for columns, what in ((g.columns[:-1], "got"), (g.columns / 0, "not finite numbers")):
        with pytest.raises(VitrailError, match=what):
            type(g)(g.offer, g.terms, columns, g.rule, g.ration)
    with pytest.raises(VitrailError, match="not the guests of the agreement"):
        type(d)(d.host, d.guests[:1])
    g.columns = g.columns * 1e6
    with pytest.raises(VitrailError, match="Standardise"):
        d.turn()
