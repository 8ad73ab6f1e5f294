"""Laws that every method in the table keeps. A method added to the table is tested by being listed."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.engine.batches import gather_sites
from vitrail.testing import LAWS, Law, Trial, name_of, trials

exact = 1e-12

# Besides its defaults (or, where those take long, instead of them)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}, {"weights": "rows"}, {"invited": 2}],
    "centres": [{"groups": 2, "folds": 2, "starts": 1}, {"folds": 2, "split": "head", "weights": "rows", "invited": 3}],
    "agreed_mix": [{"inner": "ifedavg:output=each", "folds": 2, "tuned": (1,)}],
    "ditto": [{}, {"invited": 2}],
    "fine_tune": [{"epochs": 2}, {"epochs": 2, "part": "head"}],
    "ifedavg": [{}, {"output": "scalar", "identity": 0.1}, {"output": "shift"}, {"output": "factor"}],
    "moon": [{}, {"mu": 5.0, "temperature": 0.2, "invited": 2}],
    "fed_rod": [{}, {"gamma": 0.5, "weights": "rows"}],
    "apple": [{}, {"weights": "uniform", "schedule": "cosine", "fades": 2, "mu": 2.0, "rate": 1.0}],
    "cfl": [
        {},
        {"eps1": 1e9, "eps2": 0.0, "after": 1, "smallest": 1},
        {"eps1": 1e9, "eps2": 0.0, "linkage": "complete", "after": 1, "gamma": 0.1, "weights": "rows"},
    ],
    "ripfl": [
        {},
        {"rear": 2, "takes": 2, "drawn": 0.0, "lam": 1.5},
        {"rear": 1, "selection": "random", "similarity": False},
        {"rear": "never", "selection": "all", "evidence": False},
        {"rear": 2, "count_self": False, "drawn_sure": 0.5, "drawn": 1.0},
    ],
    "indisco": [
        {"least": 1, "invited": 2},
        {"share": "all", "least": 1, "invited": 2},
        {"share": "prototypes", "warm": 1, "least": 2, "optimiser": "study", "weights": "rows"},
        {"share": "add-on", "alone_too": False, "warm": 2, "least": 1},
        {"share": "no", "warm": 2, "least": 1},
        {"travel": False, "warm": 1, "least": 1},
        {"travel": False, "share": "prototypes", "alone_too": False, "warm": 1, "least": 1},
        {"personal": "distance", "release": "noise", "travel": False, "warm": 2, "least": 1},
        {"personal": "half", "share": "all", "release": "plain", "release_count": 1, "alone_too": False, "least": 1},
    ],
    "weight_erosion": [{}, {"update": "local", "size": "weight", "validation": 0.25, "patience": 1, "p_d": 0.2}],
}
CASES = [(name, i) for name in methods.TABLE for i in range(len(OPTIONS.get(name, [{}])))]


@cache
def trials_of(name: str, which: int) -> tuple[Trial, ...]:
    """Kept, since laws share runs."""
    return tuple(trials(methods.build(name, OPTIONS.get(name, [{}])[which])))


@pytest.mark.parametrize(("name", "which"), CASES, ids=[f"{n}{i or ''}" for n, i in CASES])
@pytest.mark.parametrize("law", LAWS, ids=name_of)
def test_law(law: Law, name: str, which: int) -> None:
    """A method on every network and optimiser; with further options on every network, with one optimiser in turn."""
    every = trials_of(name, which)
    for trial in every[which % 2 :: 2] if which else every:
        law(trial)


def test_methods_clash_only_where_they_say_so() -> None:
    """Every method is tried on all networks and optimisers but for those that follow the gradient itself, those that
    need classes, and those that need a network of their own."""
    assert {name for name, i in CASES if len(trials_of(name, i)) < 6} == {
        "scaffold",
        "weight_erosion",
        "weight_erosion_sums",
        "fed_rod",
        "ripfl",
        *(name for name, kind in methods.TABLE.items() if kind.catalogue.required_net),
    }


def test_limits_give_the_simpler_method() -> None:
    task = make_task(dropout=0.2)

    def shared(name: str, **given: object) -> dict:
        return models(*train(methods.build(name, given), task))

    plain = shared("fedavg")
    assert gap(plain, shared("fedprox", mu=0.0)) < exact
    assert gap(plain, shared("fedprox", mu=0.5)) > 1e-5
    assert gap(plain, shared("moon", mu=0.0)) < exact
    assert gap(plain, shared("moon", mu=0.5)) > 1e-5
    generic = shared("fed_rod", gamma=0.0)  # and a head beside it
    assert gap(plain, {s: {k: v for k, v in m.items() if k.startswith("params/")} for s, m in generic.items()}) < exact
    alone = shared("local")
    assert gap(alone, shared("ditto", lam=0.0)) < exact
    assert gap(alone, shared("ditto", lam=0.5)) > 1e-5
    apfl = shared("apfl", alpha=0.0, adaptive=False)
    still = shared("fedavg", momentum=0.0)
    for site in still:  # with alpha = 0 the shared half is FedAvg and predicts alone
        assert all(torch.allclose(apfl[site][f"params/{k.removeprefix('params/')}"], v) for k, v in still[site].items())
    linear = make_task(hidden=())
    head_only = models(*train(methods.build("fedper"), linear))
    assert gap(head_only, models(*train(methods.build("local"), linear))) < exact


def test_one_site_alone_is_local() -> None:
    rows = make_rows()[:1]
    task = make_task(dropout=0.2)
    alone = models(*train(methods.build("local"), task, gather_sites(rows)))
    for name in ("fedavg", "fedprox", "fedper"):
        given = {"mu": 0.0} if name == "fedprox" else {}
        assert gap(alone, models(*train(methods.build(name, given), task, gather_sites(rows)))) < exact


def test_all_rows_of_one_site_are_that_site() -> None:
    """Centralized draws as "all sites": called so, and given rows without order, Local is the same."""
    (_, x, y, w), *_ = make_rows()
    one = gather_sites([("all sites", x, y, w)])
    task = make_task(dropout=0.2)
    alone, together = (models(*train(methods.build(name), task, one)) for name in ("local", "centralized"))
    assert gap(alone, together) < exact
