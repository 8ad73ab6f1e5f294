"""Keys in files, secrets between two ends, and what is sealed under them."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vitrail.core.errors import KeyRefused, LetterRefused, VitrailError
from vitrail.privacy.key_agreement import SIZE, TAG, SealedBox, agree, derive_key, key_file


def test_a_key_file_is_made_once_and_is_for_its_owner(tmp_path) -> None:
    first = key_file(tmp_path / "own.key").private_bytes_raw()
    assert (tmp_path / "own.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "own.key").read_text() == first.hex() + "\n"
    assert key_file(tmp_path / "own.key").private_bytes_raw() == first
    assert key_file(tmp_path / "other.key").private_bytes_raw() != first


def test_a_key_of_a_run_that_an_earlier_version_began(tmp_path) -> None:
    """It wrote the bytes; a kit had hexadecimal digits, with a line end or without."""
    raw = X25519PrivateKey.generate().private_bytes_raw()
    for content in (raw, raw.hex().encode(), raw.hex().encode() + b"\n"):
        (tmp_path / "own.key").write_bytes(content)
        assert key_file(tmp_path / "own.key").private_bytes_raw() == raw


@pytest.mark.parametrize("content", [b"", b"00" * 31, b"\xff" * 33, "é".encode() * 20])
def test_a_key_file_that_is_none(tmp_path, content) -> None:
    (tmp_path / "own.key").write_bytes(content)
    with pytest.raises(VitrailError, match=r"own\.key: expected a private key of 64 .* Ask for another"):
        key_file(tmp_path / "own.key", "Ask for another.")
    assert (tmp_path / "own.key").read_bytes() == content  # it is not replaced: what was sealed for it would be lost


def test_both_ends_have_one_secret_and_a_key_for_each_purpose() -> None:
    one, other, third = (X25519PrivateKey.generate() for _ in range(3))
    secret = agree(one, other.public_key().public_bytes_raw(), "other")
    assert secret == agree(other, one.public_key().public_bytes_raw(), "one")
    assert secret != agree(third, other.public_key().public_bytes_raw(), "other")
    keys = [derive_key(secret, *about) for about in (("a",), ("a", "b"), ("b", "a"), ("ab",), ())]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {SIZE}


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(SIZE), bytes(33)])
def test_a_public_key_that_is_none(key) -> None:
    """Zeros are a point that has the same secret with everybody."""
    with pytest.raises(KeyRefused, match="north: expected a public key of 32 bytes"):
        agree(X25519PrivateKey.generate(), key, "north")


def test_what_is_sealed_opens_only_as_it_was_sealed() -> None:
    box = SealedBox(b"secret", "share", "north", "south")
    sealed = box.seal(b"a share", 5, b"round 1")
    assert len(sealed) == len(b"a share") + TAG
    assert SealedBox(b"secret", "share", "north", "south").open(sealed, "share", 5, b"round 1") == b"a share"
    others = (
        (SealedBox(b"another", "share", "north", "south"), sealed, 5, b"round 1"),
        (SealedBox(b"secret", "share", "south", "north"), sealed, 5, b"round 1"),
        (box, sealed, 6, b"round 1"),
        (box, sealed, 5, b"round 2"),
        (box, sealed[:-1] + bytes([sealed[-1] ^ 1]), 5, b"round 1"),
        (box, sealed[:TAG], 5, b"round 1"),
        (box, b"", 5, b"round 1"),
    )
    for end, data, nonce, associated in others:
        with pytest.raises(LetterRefused, match="the share of north: it was not sealed with the expected key"):
            end.open(data, "the share of north", nonce, associated)
