"""Ids as points: always on the curve, and locks that commute and come off."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.vertical.matching import jacobi
from vitrail.vertical.matching.curve import ORDER, A, lock, new_lock, points
from vitrail.vertical.matching.jacobi import P, are_squares

IDS = [f"patient {i}" for i in range(300)]


def is_square(n: int) -> bool:
    return pow(n, (P - 1) // 2, P) == 1


def on_curve(token: bytes) -> bool:
    x = int.from_bytes(token, "little") % 2**255
    return is_square(x * (x * x + A * x + 1) % P)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, P - 1), min_size=jacobi.FEW, max_size=jacobi.FEW + 40))
def test_squares_are_those_of_eulers_criterion(numbers: list[int]) -> None:
    assert are_squares(numbers).tolist() == [is_square(n) for n in numbers]


def test_squares_of_many_and_of_numbers_with_long_runs() -> None:
    odd = [1, 2, 3, P - 1, P - 2, 2**254, 2**255 - 20, 2**128, 2**128 - 1, (P - 1) // 2, (P + 1) // 2]
    drawn = [secrets.randbelow(P - 1) + 1 for _ in range(jacobi.CHUNK + 3 - len(odd))]
    numbers = [*odd, *drawn]  # over the end of a chunk
    found = are_squares(numbers)
    assert found[: len(odd)].tolist() == [is_square(n) for n in odd]
    assert found[-200:].tolist() == [is_square(n) for n in numbers[-200:]]
    assert 0.45 < found.mean() < 0.55
    assert are_squares([]).tolist() == []


def test_a_point_is_elligators() -> None:
    """Spelled out with divisions, one id after the other."""
    for one, token in zip(IDS[:20], points(IDS[:20], "here"), strict=True):
        r = int.from_bytes(hashlib.sha512(b"4|here|" + one.encode()).digest(), "little") % P
        x = -A * pow(1 + 2 * r * r, -1, P) % P
        x = x if is_square(x * (x * x + A * x + 1)) else (-x - A) % P
        assert int.from_bytes(token, "little") == x
    assert points(IDS, "here")[:20] == points(IDS[:20], "here")  # many at once, or few


def test_every_point_is_on_the_curve_and_stays_there_so_that_a_lock_tells_no_bit_of_the_hash() -> None:
    made = points(IDS, "here")
    assert all(map(on_curve, made))
    assert all(map(on_curve, lock(made[:50], secrets.token_bytes(32))))


def test_positive_control_a_hash_taken_for_a_coordinate_tells_one_bit_through_every_lock() -> None:
    raw = [hashlib.sha256(one.encode()).digest() for one in IDS[:60]]
    where = [on_curve(token) for token in raw]
    assert 10 < sum(where) < 50
    assert [on_curve(token) for token in lock(raw, secrets.token_bytes(32))] == where


def test_locks_commute_and_come_off() -> None:
    made, a, b = points(IDS[:40], "here"), secrets.token_bytes(32), secrets.token_bytes(32)
    assert lock(lock(made, a), b) == lock(lock(made, b), a)
    on, off = new_lock()
    assert lock(lock(lock(made, on), a), off) == lock(made, a)
    assert int.from_bytes(on, "little") * int.from_bytes(off, "little") % ORDER == 1
    assert not {*made} & {*lock(made, on)}


def test_points_of_another_domain_are_others_and_ids_do_not_run_into_domains() -> None:
    assert not {*points(IDS, "here")} & {*points(IDS, "there")}
    assert points(["|b|c"], "a") != points(["c"], "a||b")


def test_a_point_of_small_order_is_refused() -> None:
    for small in (0, 1, P - 1):
        with pytest.raises(ValueError, match="shared key"):
            lock([small.to_bytes(32, "little")], secrets.token_bytes(32))


def test_locked_tokens_look_uniform() -> None:
    """No byte of a sorted list but the ordered end of its tokens leans to any value: its mean is that of chance."""
    locked = lock(points([f"{i}" for i in range(2000)], "here"), secrets.token_bytes(32))
    means = np.frombuffer(b"".join(locked), np.uint8).reshape(-1, 32)[:, :31].mean(0)
    assert (abs(means - 127.5) < 5 * 73.9 / 2000**0.5).all()
