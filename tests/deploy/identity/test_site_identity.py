"""Who believes whom, where the coordinator carries every word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.deploy.proofs import authority, enrolled, prove
from vitrail.core.errors import KeyRefused, VitrailError
from vitrail.deploy.identity.certificates import StudyAuthority, fingerprint_key, make_authority
from vitrail.deploy.identity.documents import identity_of
from vitrail.deploy.identity.site_identity import SiteIdentity, read_signed

SITES = ("north", "south")


@pytest.fixture
def north(tmp_path: Path) -> SiteIdentity:
    return prove("north", SITES, tmp_path / "north")


@pytest.fixture
def south(tmp_path: Path) -> SiteIdentity:
    return prove("south", SITES, tmp_path / "south")


def test_what_a_site_signed_is_believed(north: SiteIdentity, south: SiteIdentity) -> None:
    said = south.sign(b"a key")
    north.check("south", south.certificate, b"a key", said)
    for text, signature in ((b"another key", said), (b"a key", said[:-1] + b"\0"), (b"a key", b"")):
        with pytest.raises(VitrailError, match="did not sign"):
            north.check("south", south.certificate, text, signature)


def test_a_certificate_that_is_not_the_sites(north: SiteIdentity, south: SiteIdentity, tmp_path: Path) -> None:
    said = south.sign(b"a key")
    with pytest.raises(VitrailError, match="belongs to another site"):  # south says that it is north
        south.check("north", south.certificate, b"a key", said)
    with pytest.raises(VitrailError, match="not among the participants"):
        north.check("west", south.certificate, b"a key", said)
    with pytest.raises(VitrailError, match="no valid certificate"):
        north.check("south", "nonsense", b"a key", said)
    (tmp_path / "authority").mkdir()
    make_authority(tmp_path / "authority")
    own = StudyAuthority(tmp_path).sign(enrolled("south")[0].public_key(), identity_of("south"), "site", ["x"])
    with pytest.raises(VitrailError, match="not from this study's authority"):
        north.check("south", own, b"a key", said)


def test_a_second_certificate_from_the_same_authority_is_noticed(north: SiteIdentity, south: SiteIdentity) -> None:
    """The coordinator keeps the authority, and would sit between two sites with a key of its own, also from the first
    word on: only the keys that were accepted are believed."""
    key, who = rsa.generate_private_key(public_exponent=65537, key_size=2048), identity_of("south")
    false = replace(south, key=key, certificate=authority().sign(key.public_key(), who, "site", [who]))
    with pytest.raises(VitrailError, match=r"accepted it with the key .* call that site"):
        north.check("south", false.certificate, b"a key", false.sign(b"a key"))
    north.check("south", south.certificate, b"a key", south.sign(b"a key"))
    swapped = replace(north, roster={**north.roster, "south": fingerprint_key(key.public_key())})
    swapped.check("south", false.certificate, b"a key", false.sign(b"a key"))  # the control: had it been accepted so


def test_what_one_end_signs_the_other_reads_and_checks(north: SiteIdentity, south: SiteIdentity) -> None:
    words = south.signed(b"the text", key=b"\1\2", signer=b"\3")
    read = read_signed(words | {"more": 1}, "south", "key", "signer")
    assert read.keys == (b"\1\2", b"\3")
    north.check("south", read.certificate, b"the text", read.signature)


@pytest.mark.parametrize("words", [None, [], "key", {}, {"key": "zz"}, {"key": 3}, {"key": "00"}, {"signature": None}])
def test_words_that_hold_no_signed_key(words: object) -> None:
    given = words | {"certificate": "x"} if isinstance(words, dict) else words
    with pytest.raises(KeyRefused, match="south: expected a key, a signature and a certificate"):
        read_signed(given, "south", "key")
