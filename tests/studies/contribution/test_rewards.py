"""Rewards by rounds, trust, rank and Shapley value: shares that sum to one, and what a cheat earns by each."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from vitrail.studies.contribution.rewards import RULES, ranking_of, reward_shares
from vitrail.studies.contribution.values import Contribution, contribution, to_text, write_tables

USER, CHEAT, COPIED = "cleveland", "va", "hungarian"


def rewarded(study: vt.Study, sites: dict[str, pd.DataFrame], place, method: str = "shapley") -> Contribution:
    """Enough rounds that there is something to pay for."""
    vt.federate(study.with_changes(training={"rounds": 12}), sites, out=place)
    return contribution(place, USER, sites, method, retrain=True, seeds=1)


@pytest.fixture(scope="module")
def honest(study, sites, tmp_path_factory) -> Contribution:
    return rewarded(study, sites, tmp_path_factory.mktemp("honest") / "run")


def test_shares_of_each_rule_sum_to_one_and_the_user_earns_nothing(honest, sites) -> None:
    assert set(honest.rewards.site) == set(sites) - {USER}
    assert honest.rewards[[*RULES]].sum().tolist() == pytest.approx([1.0] * len(RULES))
    assert (honest.rewards[[*RULES]] >= 0).all(axis=None)
    assert honest.rewards["rounds"].tolist() == pytest.approx([1 / 3] * 3)


def test_the_share_by_shapley_is_that_of_the_ledger(honest) -> None:
    """Among the sites other than the user."""
    others = honest.ledger[honest.ledger.site != USER].set_index("site").credit
    mine = honest.rewards.set_index("site").shapley
    assert mine.to_dict() == pytest.approx((others / others.sum()).to_dict())


def test_the_best_ranked_earns_most(study, sites, tmp_path) -> None:
    vt.federate(study, sites, out=tmp_path / "run")
    run = vt.Run.load(tmp_path / "run")
    ranking = ranking_of(run, sites, USER)
    assert ranking == vt.transfer(study, sites, seed=run.seed).ranking(USER)
    shares = reward_shares(USER, dict.fromkeys(sites, 1), dict.fromkeys(sites, 1.0), None, ranking).set_index("site")
    assert shares["rank"][ranking].tolist() == pytest.approx([3 / 6, 2 / 6, 1 / 6])


def test_who_raises_the_loss_earns_nothing() -> None:
    shares = reward_shares("u", {"u": 2, "a": 2, "b": 2, "c": 2}, {"u": 3.0, "a": 0.3, "b": 0.1, "c": -0.4})
    assert shares.shapley.tolist() == pytest.approx([0.75, 0.25, 0.0])
    nobody = reward_shares("u", {"u": 2, "a": 2}, {"u": 3.0, "a": -0.3})
    assert nobody.shapley.tolist() == [0.0]


def test_who_only_shows_up_is_paid_by_rounds_and_not_by_shapley(honest, study, sites, tmp_path) -> None:
    """Twenty rows of nothing: each column shuffled by itself."""
    rng, own = np.random.default_rng(0), sites[CHEAT]
    nothing = own.apply(lambda column: column.to_numpy()[rng.permutation(len(own))]).head(20)
    cheated = rewarded(study, {**sites, CHEAT: nothing}, tmp_path / "run").rewards.set_index("site")
    before = honest.rewards.set_index("site")
    assert cheated["rounds"][CHEAT] == before["rounds"][CHEAT]
    assert cheated.shapley[CHEAT] < before.shapley[CHEAT] / 2


def test_a_copy_takes_from_the_one_that_is_copied(honest, study, sites, tmp_path) -> None:
    cheated = rewarded(study, {**sites, CHEAT: sites[COPIED]}, tmp_path / "run").rewards.set_index("site")
    assert cheated.trust[CHEAT] == pytest.approx(cheated.trust[COPIED], abs=0.02)
    assert cheated.shapley[COPIED] < honest.rewards.set_index("site").shapley[COPIED]
    assert cheated.shapley[CHEAT] > 0.2, "rows of another site earn nearly as much"


def test_without_all_tables_trust_and_rank_are_not_known(kept, sites) -> None:
    table = contribution(kept, USER, sites[USER], "shapley").rewards
    assert table[["trust", "rank"]].isna().all(axis=None)
    assert table[["rounds", "shapley"]].notna().all(axis=None)


def test_only_shapley_values_that_are_paid_have_rewards(honest, study, sites, tmp_path) -> None:
    alone = rewarded(study, sites, tmp_path / "run", "loo")
    assert not len(alone.rewards)
    write_tables(honest, tmp_path / "out")
    assert pd.read_csv(tmp_path / "out" / "rewards.csv").columns.tolist() == ["site", *RULES]
    write_tables(alone, tmp_path / "out")
    assert not (tmp_path / "out" / "rewards.csv").exists()
    assert not any("Share of a reward" in words for words, *_ in to_text(alone)[1])
    assert any("Share of a reward" in words for words, *_ in to_text(honest)[1])
