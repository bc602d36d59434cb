"""Use and life of a value in two timestamps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvferry.store.files.stamp import NEVER, Stamp, expiry_of, idle_code_of, is_over, stamp_of

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
STEP = 10 * SECOND
INF = float("inf")

stamps = st.builds(
    Stamp,
    used_ns=st.integers(0, 4_000_000_000).map(lambda s: s * SECOND),
    position=st.integers(0, 999_999),
    idle_code=st.integers(0, 999),
    read=st.booleans(),
)


@given(stamps)
def test_a_stamp_reads_back(stamp: Stamp) -> None:
    back = stamp_of(stamp.atime_ns)
    assert (back.position, back.idle_code, back.read) == (stamp.position, stamp.idle_code, stamp.read)
    assert 0 <= stamp.used_ns - back.used_ns < STEP


@given(stamps, stamps)
def test_the_order_is_by_use_then_from_the_tail(first: Stamp, second: Stamp) -> None:
    key = [(stamp.used_ns // STEP, -stamp.position) for stamp in (first, second)]
    if key[0] < key[1]:
        assert first.atime_ns < second.atime_ns


def test_of_two_at_one_place_the_unread_goes_first() -> None:
    assert Stamp(NOW, 3).atime_ns < Stamp(NOW, 3, read=True).atime_ns


def test_an_atime_of_somebody_else_is_a_use() -> None:
    assert stamp_of(NOW + 7) == Stamp(NOW + 7, read=True)


@given(st.floats(0.0, 364 * 86_400.0))
def test_idle_lives_are_kept_to_two_percent_and_never_shorter(seconds: float) -> None:
    code = idle_code_of(seconds)
    used = Stamp(NOW, 0, code, read=True).atime_ns
    ends = NOW + STEP
    assert not is_over(used, NEVER, ends + int(max(1.0, seconds) * 0.999 * SECOND), INF)
    assert is_over(used, NEVER, ends + int(max(1.0, seconds) * 1.02 * SECOND) + 1, INF)


def test_longer_than_a_year_is_for_ever() -> None:
    assert idle_code_of(None) == idle_code_of(400 * 86_400.0) == 0


def test_the_bound_ends_every_life() -> None:
    expiry = expiry_of(NOW, 5.0)
    used = Stamp(NOW, read=True).atime_ns
    assert not is_over(used, expiry, NOW + 4 * SECOND, INF)
    assert is_over(used, expiry, NOW + 5 * SECOND, INF)


def test_the_unread_wait_only_so_long() -> None:
    unread, read = Stamp(NOW).atime_ns, Stamp(NOW, read=True).atime_ns
    late = NOW + STEP + 60 * SECOND
    assert not is_over(unread, NEVER, late - 1, 60.0)
    assert is_over(unread, NEVER, late, 60.0)
    assert not is_over(read, NEVER, late, 60.0)
    assert not is_over(unread, NEVER, late, INF)


def test_a_file_that_somebody_wrote_to_is_not_over() -> None:
    assert not is_over(Stamp(NOW).atime_ns, NOW + 1, NOW + 10**18, 60.0)
