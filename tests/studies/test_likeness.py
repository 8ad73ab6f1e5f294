"""Who is like whom: sites of two groups are told apart by all measures, and the discrepancy needs sums alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.command import vitrail
from vitrail.data.encoding import prepare
from vitrail.studies.likeness import MEASURES, discrepancies

GROUPS = {"a1": 0, "a2": 0, "a3": 0, "b1": 1, "b2": 1, "b3": 1}


def make_study(**changes: object) -> vt.Study:
    plain = {
        "name": "two groups",
        "target": {"column": "ill", "classes": [0, 1], "positive": 1},
        "features": {name: {"kind": "numeric"} for name in ("x", "y")},
        "network": {"kind": "linear"},
        "training": {"rounds": 10, "batch": 64, "lr": 0.005},
        "standardise": "none",
        "screen": {"ask": False},
    }
    return vt.Study.parse({**plain, **changes})


def make_sites(rows: int = 150) -> dict[str, pd.DataFrame]:
    """What a column means is the other way round in the second group."""
    out = {}
    for k, (name, group) in enumerate(GROUPS.items()):
        rng = np.random.default_rng(k)
        x = rng.normal(size=(rows, 2))
        risk = 1 / (1 + np.exp(-(-2.0 if group else 2.0) * x[:, 0]))
        out[name] = pd.DataFrame(x, columns=["x", "y"]).assign(ill=(rng.random(rows) < risk).astype(int))
    return out


@pytest.fixture(scope="module")
def result() -> vt.Likeness:
    return vt.likeness(make_study(), make_sites())


@pytest.mark.parametrize("measure", MEASURES)
def test_sites_of_one_group_are_most_alike(result: vt.Likeness, measure: str) -> None:
    for user, mine in result.table.groupby("user"):
        same = mine.site.map(GROUPS) == GROUPS[user]
        assert mine[measure][same].min() > mine[measure][~same].max(), user


def test_measures_that_name_the_same_groups_agree(result: vt.Likeness) -> None:
    agreement = result.agreement()
    assert np.diag(agreement) == pytest.approx([1.0] * len(MEASURES))
    assert (agreement.to_numpy() > 0.5).all()
    turned = vt.Likeness(result.study, 1, result.sites, result.table.assign(cosine=-result.table.cosine))
    assert turned.agreement().loc["cosine", "transfer"] == pytest.approx(-agreement.loc["cosine", "transfer"])


def test_the_discrepancy_needs_counts_sums_and_squares_alone() -> None:
    """Worked out again from these three of each site."""
    study, sites = make_study(standardise="global"), make_sites()
    data, sums = prepare(sites, study, 1), []
    for one in data:
        y = one.train_y.astype(float)[:, None]
        f = np.column_stack([one.train_x, y, one.train_x * y]).astype(float)
        sums.append((len(f), f.sum(0), (f**2).sum(0)))
    means = [total / n for n, total, _ in sums]
    chance = [((squares / n - mean**2) / (n - 1)).sum() for (n, _, squares), mean in zip(sums, means, strict=True)]
    for i, j in ((0, 1), (0, 4)):
        squared = ((means[i] - means[j]) ** 2).sum() - chance[i] - chance[j]
        assert discrepancies(study, data)[i, j] == pytest.approx(np.sqrt(max(squared, 0)), rel=1e-4)


def test_sites_alike_have_hardly_any_discrepancy() -> None:
    """What chance adds is taken off: half of the pairs come to nothing."""
    rng = np.random.default_rng(0)
    frame = lambda: pd.DataFrame(rng.normal(size=(200, 2)), columns=["x", "y"]).assign(ill=rng.integers(0, 2, 200))  # noqa: E731
    study = make_study(standardise="global")
    apart = discrepancies(study, prepare({f"s{i}": frame() for i in range(12)}, study, 1))
    pairs = apart[np.triu_indices(12, 1)]
    assert 0.25 < (pairs == 0).mean() < 0.75
    assert pairs.mean() < 0.15


def test_too_few_sites_are_refused() -> None:
    few = dict(list(make_sites(40).items())[:3])
    with pytest.raises(vt.VitrailError, match="at least 4 sites"):
        vt.likeness(make_study(), few)


def test_the_command(tmp_path) -> None:
    make_study().save(tmp_path / "study.toml")
    data = tmp_path / "data"
    data.mkdir()
    for name, frame in make_sites(60).items():
        frame.to_csv(data / f"{name}.csv", index=False)
    ran = vitrail("alike", tmp_path / "study.toml", "--data", data, "--out", tmp_path / "out", "--rounds", 3)
    assert "Rank correlation of the measures" in ran.stdout
    assert pd.read_csv(tmp_path / "out" / "agreement.csv").measure.tolist() == list(MEASURES)
    assert "Who is like whom?" in (tmp_path / "out" / "alike.html").read_text("utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    refused = vitrail("alike", tmp_path / "study.toml", "--data", data, "--out", tmp_path / "mine", "--rounds", 3)
    assert "did not write" in refused.stderr
