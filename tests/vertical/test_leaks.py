"""What host and guest learn of each other (benchmarks/vertical/vertical_leaks.py): little with the defaults; and
the same attacks succeed when the defence is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.scripts import load_script
from vitrail.core.optimizers import Adam
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.split_network import SplitNetwork
from vitrail.vertical.training.terms import GuestOffer, Terms

leaks = load_script("vertical_leaks")


def listened(protect: bool = True, **offer: Any) -> tuple[Any, Tensor, Tensor]:
    """A guest with an occupation of ten and hours, the hours telling twice as much of the outcome."""
    g = torch.Generator().manual_seed(2)
    n = 5000
    job = torch.randint(10, (n,), generator=g)
    hours = torch.randn(n, generator=g)
    x = torch.randn(n, 4, generator=g) + 0.3 * nn.functional.one_hot(job % 4, 4)
    pay = 0.5 * torch.randn(10, generator=g)[job] + hours + x.sum(1)
    y = (pay + 1.5 * torch.randn(n, generator=g) > 1).long()
    theirs = torch.cat([nn.functional.one_hot(job, 10).float(), hours[:, None]], 1)
    terms = Terms(n, (GuestOffer("lab", 11, **offer),), protect=protect)
    answer = terms.offers[0].answer
    joint, rule = SplitNetwork(4, answer, 2, (16,)), Adam(0.02)
    host = Host("clinic", terms, x, nn.functional.one_hot(y, 2).float(), joint, joint.init(1), rule)
    d = Dialogue(
        host, [Guest(terms.offers[0], terms, theirs, rule, RationAccount("lab", n, terms.asked, 0), secret=b"1")]
    )
    notes = leaks.Notes(d)
    d.train()
    return notes, y, job


@pytest.fixture(scope="module")
def defended() -> tuple[Any, Tensor, Tensor]:
    return listened()


@pytest.fixture(scope="module")
def open_() -> tuple[Any, Tensor, Tensor]:
    return listened(protect=False, answer=16, bits=0, noise=0.0)


def test_a_guest_does_not_learn_the_outcomes(defended: Any) -> None:
    notes, y, _ = defended
    got = leaks.label_attack(notes, y)
    assert got.gain < 0.03, got
    assert got.own > 0.6, "its columns do tell something"
    assert got.beyond < 0.01, got


def test_bare_slopes_tell_the_outcomes(open_: Any) -> None:
    notes, y, _ = open_
    assert leaks.label_attack(notes, y).told > 0.99


def test_a_host_reads_little_of_a_category(defended: Any) -> None:
    """What is left depends on how much the category matters for the outcome: an answer that told nothing of it would be
    of no use. Here the host's columns tell nothing of it either; the figures of real columns are in the benchmark."""
    notes, _, job = defended
    got = leaks.category_attack(notes, job, tried=2000)
    assert got.gain < 0.1, got


def test_many_bare_answers_tell_the_category(open_: Any) -> None:
    notes, _, job = open_
    assert leaks.category_attack(notes, job, tried=2000).gain > 0.5
