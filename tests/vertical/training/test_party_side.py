"""A side made on its own machine: of its own table, its own places, and what was agreed."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.vertical.companies import STUDY, people
from vitrail.vertical.matching.match import Match, match
from vitrail.vertical.training.party_side import (
    agree,
    encoder_of,
    keep_secret,
    make_guest,
    make_host,
    offer_of,
    own_rows,
)
from vitrail.vertical.training.terms import GuestOffer

AGREED = vt.Study.parse(tomllib.loads(STUDY))


def alone(party: str, folder: Path, whole: Match) -> Match:
    """What a party has of the match at home."""
    folder.mkdir(exist_ok=True)
    whole.write(party, folder / f"{party}.json")
    return Match.load(folder)


def test_each_side_is_made_of_its_own(tmp_path: Path) -> None:
    """And of the number in common and the guest's offer: no table and no places of the other."""
    tables = people()
    whole = match(AGREED, tables)
    here, there = (alone(party, tmp_path / party, whole) for party in ("clinic", "lab"))
    assert set(here.places) == {"clinic"}
    lab = own_rows(AGREED, "lab", tables["lab"], there)
    offer = offer_of(AGREED, lab)
    assert offer == ("lab", 3, 1, 3, 0.25), "a number and two wards beside the reference; no names"
    terms = agree(AGREED, here.common, [offer], 3)
    assert terms == agree(AGREED, there.common, [offer], 3)
    host = make_host(AGREED, own_rows(AGREED, "clinic", tables["clinic"], here), terms)
    guest = make_guest(AGREED, lab, terms, b"s" * 32)
    assert host.rows.known == guest.rows.known, "row by row the same people"
    assert guest.guest.columns.shape == (410, 3)
    assert host.host.columns.shape == (410, 2)
    with pytest.raises(vt.VitrailError, match="lab has no places in this match"):
        own_rows(AGREED, "lab", tables["lab"], here)


def test_columns_are_standardised_by_training_rows_alone() -> None:
    tables = people()
    found = match(AGREED, tables)
    rows = own_rows(AGREED, "lab", tables["lab"], found)
    terms = agree(AGREED, found.common, [offer_of(AGREED, rows)], 3)
    column = rows.common.crp_of_lab.to_numpy()
    encoder = encoder_of(rows, terms)
    assert np.isclose(encoder.mean["crp_of_lab"], column[terms.train.numpy()].mean())
    assert not np.isclose(encoder.mean["crp_of_lab"], column.mean())


def test_a_secret_is_kept_and_is_nobody_elses(tmp_path: Path) -> None:
    first = keep_secret(tmp_path / "home")
    assert keep_secret(tmp_path / "home") == first
    assert keep_secret(tmp_path / "home", b"x" * 32) == first, "another would uncover the noise"
    assert keep_secret(tmp_path / "other") != first
    file = tmp_path / "home" / "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("abc")
    with pytest.raises(vt.VitrailError, match="Restore it from a copy"):
        keep_secret(tmp_path / "home")
    file.write_bytes(b"\xff" * 64)
    with pytest.raises(vt.VitrailError, match="64 hexadecimal digits"):
        keep_secret(tmp_path / "home")


def test_a_second_match_does_not_draw_the_noise_anew(tmp_path: Path) -> None:
    """A week later there are other rows, in another order; whoever was there before has the noise of before."""
    tables = people()
    later = {"clinic": tables["clinic"][25:], "lab": tables["lab"][::-1]}
    secret, found = keep_secret(tmp_path), []
    for given in (tables, later):
        keys = {party: bytes([i + 7 * len(found)]) * 32 for i, party in enumerate(given)}
        common = match(AGREED, given, secrets=keys)
        rows = own_rows(AGREED, "lab", given["lab"], common)
        terms = agree(AGREED, common.common, [offer_of(AGREED, rows)], 3)
        guest = make_guest(AGREED, rows, terms, secret).guest
        found.append(pd.Series(guest.noise[:, 0].numpy(), rows.known))
    assert len(found[0]) == len(found[1]), "the clinic's first 30 were not at the laboratory"
    assert found[0].index.tolist() != found[1].index.tolist(), "in another order"
    pd.testing.assert_series_equal(found[0].sort_index(), found[1].sort_index())


def test_epochs_are_as_many_as_rations_allow() -> None:
    raw = AGREED.model_dump()
    for training, method, epochs in (
        (60, {"name": "split"}, 50),
        (20, {"name": "split"}, 19),
        (2, {"name": "split"}, 1),
    ):
        party = {**raw["parties"]["lab"], "ration": {"training": training, "after": 100}}
        study = vt.Study.parse({**raw, "method": method, "parties": {**raw["parties"], "lab": party}})
        terms = agree(study, 410, [GuestOffer("lab", 4)], 1)
        assert (terms.epochs, terms.asked <= training) == (epochs, True)
    many = agree(study, 60000, [GuestOffer("lab", 4)], 1)
    assert (many.epochs, many.alone) == (1, 5)
    assert torch.equal(many.rows_at(3), agree(study, 60000, [GuestOffer("lab", 4)], 1).rows_at(3))
