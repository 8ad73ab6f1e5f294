"""Training on as many rows of each class as the rarest has: at a site by itself the same rows as among all."""

from __future__ import annotations

import pytest
import torch

import vitrail as vt
from tests.support.small import make_rows
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import SiteData
from vitrail.engine.batches import Sites, gather_sites, undersampled
from vitrail.methods import build
from vitrail.runs.setup import training_rows

ROWS = make_rows("classes", (40, 31, 9))


def rows_of(sites: Sites, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    at = sites.names.index(name)
    mine = slice(sites.starts[at], sites.starts[at] + sites.sizes[at])
    return sites.x[mine], sites.y[mine]


def test_each_class_of_a_site_has_as_many_rows_as_its_rarest() -> None:
    left = undersampled(gather_sites(ROWS), 3)
    for name, x, y, _ in ROWS:
        counts = y.sum(0)
        kept_x, kept_y = rows_of(left, name)
        assert kept_y.sum(0).tolist() == [float(counts[counts > 0].min()) * bool(c) for c in counts]
        places = [next(i for i, row in enumerate(x) if torch.equal(row, k)) for k in kept_x]
        assert places == sorted(places), "their order stays"
        assert len(set(places)) == len(places)
        assert torch.equal(y[places], kept_y)
    assert left.sizes == tuple(sorted(left.sizes, reverse=True))


def test_a_site_by_itself_leaves_out_the_same_rows_as_among_all() -> None:
    """As between machines, where each site draws for itself; another seed leaves out others."""
    among = undersampled(gather_sites(ROWS), 3)
    for row in ROWS:
        alone = undersampled(gather_sites([row]), 3)
        assert torch.equal(alone.x, rows_of(among, row[0])[0])
    other = undersampled(gather_sites(ROWS), 4)
    assert not torch.equal(among.x, other.x)


def test_persons_go_with_their_rows() -> None:
    persons = {name: torch.arange(len(x)) // 2 for name, x, *_ in ROWS}
    whole = gather_sites(ROWS, persons)
    left = undersampled(whole, 3)
    assert left.persons is not None
    assert whole.persons is not None
    for name, x, *_ in ROWS:
        at = left.names.index(name)
        mine = left.persons[left.starts[at] : left.starts[at] + left.sizes[at]]
        kept_x, _ = rows_of(left, name)
        places = [next(i for i, row in enumerate(x) if torch.equal(row, k)) for k in kept_x]
        whose = persons[name][places]
        assert torch.equal(mine[:, None] == mine, whose[:, None] == whose)


def study(**given: object) -> vt.Study:
    target = {"column": "y", "classes": ["a", "b"]}
    plain = {"target": target, "features": {"a": {"kind": "numeric"}}, "training": {"class_weights": "undersample"}}
    return vt.Study.parse({**plain, **given})


def test_a_study_says_where_it_cannot_be_used() -> None:
    assert study().training.class_weights == "undersample"
    with pytest.raises(VitrailError, match="only classes can be undersampled"):
        study(target={"column": "y", "kind": "number"})
    with pytest.raises(VitrailError, match=r"protect\.rows"):
        study(protect={"rows": {"epsilon": 3.0}})


def test_a_run_trains_on_fewer_rows_and_is_judged_by_all() -> None:
    y = torch.tensor([0] * 30 + [1] * 7).numpy()
    x = torch.arange(37.0)[:, None].numpy()
    data = [SiteData("a", None, x, y, x, y, "")]  # type: ignore[arg-type]
    for name in ("fedavg", "centralized"):
        method = build(name)
        got = training_rows(data, study(), method, "cpu")
        assert got.sizes == (14,)
        assert got.y.sum(0).tolist() == [7, 7]
        assert (got.w == 1).all()
        assert training_rows(data, study(training={}), method, "cpu").sizes == (37,)
