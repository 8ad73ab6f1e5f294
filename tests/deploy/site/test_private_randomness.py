"""Between machines a site draws from a secret of its own: who knows the study's seed cannot draw its batches again."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here, drawn
from vitrail.core.tensors import flatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.run_members import RunMembers
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.private_randomness import SECRET, draws_of
from vitrail.deploy.site.site import Site
from vitrail.engine.local import Engine
from vitrail.runs.setup import resolve, training_of

RUN = "0123456789abcdef"
FRAMES = heart_disease()


@pytest.fixture(scope="module")
def agreed() -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
        training={"rounds": 2}, screen={"ask": False}, network={"dropout": 0.2}
    )
    return Agreement.of(resolve(study, "fedavg", None)[0], None, len(FRAMES))


def first_report(agreed: Agreement, site: Site) -> dict[str, torch.Tensor]:
    """What the site says in the first round to the agreed start."""
    sites = {site.name: site}
    RunMembers(SiteRequests(Here(sites), agreed, [site.name], RUN, 1, 60.0), site.base / "entered.json").open(1, ())
    down = {f"params/{k}": v for k, v in agreed.task.start.items()}
    words = {"run": RUN, "stage": 0, "round": 0, "place": 0, "score": []}
    return site.answer(Message("round", words, down)).tensors


def redrawn(agreed: Agreement, site: Site, secrets: Any) -> dict[str, torch.Tensor]:
    """The same from the site's rows (which the coordinator has not) by whoever knows seed, start and program: it tells
    whether the draws are those of the site."""
    own = site.engine
    given = agreed.task, agreed.method, own.sites, training_of(agreed.study), agreed.seed
    engine = Engine(*given, looped=True, keep_reports=True, secrets=secrets)
    engine.turn(0, 0, engine.start().coord, engine.start().state)
    return {k: v[0] for k, v in flatten(engine.reports)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(v, other[k], atol=1e-5) for k, v in one.items())


def test_who_knows_the_seed_cannot_draw_the_batches_again(agreed: Agreement, tmp_path: Path) -> None:
    site = Site("va", FRAMES["va"], agreed, tmp_path / "va")
    said = first_report(agreed, site)
    with_secret = redrawn(agreed, site, drawn(tmp_path, ["va"], RUN))
    torch.testing.assert_close(said, with_secret, rtol=0, atol=0)  # the same program and rows: only draws can differ
    by_seed = redrawn(agreed, site, None)
    assert not same(said, by_seed)
    site.engine.sampler.set(0, 0)
    mine = site.engine.sampler.draw()
    guessed = Engine(agreed.task, agreed.method, site.engine.sites, training_of(agreed.study), agreed.seed).sampler
    guessed.set(0, 0)
    assert (mine.rows == guessed.draw().rows).double().mean() < 0.2, "the order of rows"
    assert (mine.row_key == guessed.draw().row_key).double().mean() < 0.2, "dropout"
    assert site.engine.sampler.noise_keys.tolist() != guessed.noise_keys.tolist()
    site.engine.sampler.site_keys = guessed.site_keys  # the control: from the study's seed they are found
    assert bool((site.engine.sampler.draw().rows == guessed.draw().rows).all())


def test_a_site_that_is_started_again_draws_the_same(agreed: Agreement, tmp_path: Path) -> None:
    one = first_report(agreed, Site("va", FRAMES["va"], agreed, tmp_path / "va"))
    again = first_report(agreed, Site("va", FRAMES["va"], agreed, tmp_path / "va"))
    torch.testing.assert_close(one, again, rtol=0, atol=0)
    other = first_report(agreed, Site("va", FRAMES["va"], agreed, tmp_path / "elsewhere"))
    assert not same(one, other)


def test_the_secret_is_for_its_owner_alone_and_another_in_every_run(tmp_path: Path) -> None:
    one = draws_of(tmp_path / "home", RUN)
    assert stat.S_IMODE((tmp_path / "home" / SECRET).stat().st_mode) == 0o600
    assert one == draws_of(tmp_path / "home", RUN) != draws_of(tmp_path / "home", "f" * 16)
    assert draws_of(tmp_path / "other", RUN) != one


def test_the_secret_is_in_nothing_that_leaves(agreed: Agreement, tmp_path: Path) -> None:
    left = list[bytes]()

    class Heard(Here):
        def left(self, site: str, data: bytes) -> None:
            left.append(data)

    sites = {n: Site(n, f, agreed, tmp_path / n) for n, f in FRAMES.items()}
    RunMembers(SiteRequests(Heard(sites), agreed, list(sites), RUN, 4, 60.0), tmp_path / "entered.json").open(4, ())
    assert left
    for name in sites:
        secret = (tmp_path / name / SECRET).read_bytes()
        for form in (secret, secret.hex().encode(), draws_of(tmp_path / name, RUN).encode()):
            assert not any(form in data for data in left)
