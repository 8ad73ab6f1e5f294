"""Steps by the curvature of a guest's own columns: as good a model from few questions, which tell less."""

from __future__ import annotations

import tomllib

import pytest
import torch
from torch import nn

import vitrail as vt
from tests.support.scripts import load_script
from tests.support.vertical.companies import STUDY, people
from vitrail.core.optimizers import Adam, Optimizer
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.logistic import Logistic
from vitrail.vertical.training.newton import Newton, curvature
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.terms import GuestOffer, Terms

leaks = load_script("vertical_leaks")


def test_three_epochs_do_what_many_small_steps_do() -> None:
    raw = vt.Study.parse(tomllib.loads(STUDY)).model_dump()
    raw["parties"]["lab"] |= {"bits": 0, "noise": 0.0, "ration": {"training": 200, "after": 400}}
    gains = []
    for method in ({"epochs": 3}, {"epochs": 100, "guest_lr": 0.05}):
        told = vt.together(vt.Study.parse({**raw, "method": {"name": "vertical_logistic", **method}}), people())
        gains.append(told.scores[(told.scores.model == "together") & (told.scores.metric == "auc")].gain.iloc[0])
    assert gains[0] > gains[1] - 0.01, gains
    assert gains[0] > 0.2


@pytest.mark.parametrize(("many", "answer"), [(2, 1), (5, 2)])
def test_a_step_is_that_of_the_bounded_curvature(many: int, answer: int) -> None:
    """One step on squared errors, with nothing else in the model, is least squares."""
    g = torch.Generator().manual_seed(1)
    a = torch.randn(4000, many, generator=g, dtype=torch.float64)
    true = torch.randn(many, answer, generator=g, dtype=torch.float64)
    params = {"weight": torch.zeros(1, many, answer, dtype=torch.float64)}
    Newton(1.0, curvature(a, 1.0)).apply(params, {}, {"weight": (a.T @ (0 - a @ true) / len(a))[None]})
    assert torch.allclose(params["weight"][0], true, atol=0.05 * float(true.abs().max()))


def heard_by(small: bool) -> float:
    """How much better the host guesses a category of ten for what it was told."""
    g = torch.Generator().manual_seed(2)
    n = 1000
    job, hours = torch.randint(10, (n,), generator=g), torch.randn(n, generator=g)
    x = torch.randn(n, 4, generator=g) + 0.3 * nn.functional.one_hot(job % 4, 4)
    y = (0.5 * torch.randn(10, generator=g)[job] + hours + x.sum(1) + 1.5 * torch.randn(n, generator=g) > 1).long()
    theirs = torch.cat([nn.functional.one_hot(job, 10).float(), hours[:, None]], 1)
    terms = Terms(n, (GuestOffer("lab", 11),), epochs=50 if small else 3, alone=20)
    rule: Optimizer = Adam(0.05) if small else Newton(1.0, curvature(theirs[terms.train], 0.25))
    joint = Logistic(4, weighs=1)
    host = Host("clinic", terms, x, nn.functional.one_hot(y, 2).float(), joint, joint.init(), Adam(0.05))
    d = Dialogue(host, [Guest(terms.offers[0], terms, theirs, rule, RationAccount("lab", n, 51, 0), secret=b"1")])
    notes = leaks.Notes(d)
    d.train()
    return float(leaks.category_attack(notes, job, known=300).gain)


def test_few_questions_tell_less() -> None:
    few, often = heard_by(small=False), heard_by(small=True)
    assert often > 0.2, "the positive control: small steps in a small study"
    assert few < 0.6 * often, (few, often)
