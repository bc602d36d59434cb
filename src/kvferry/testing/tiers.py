"""TierSuite: what every tier must do, as tests that a subclass runs against its own.

    class TestMyTier(TierSuite):
        def open_tier(self, place, *, capacity_bytes=None, clock=None):
            return MyTier(place, capacity_bytes=capacity_bytes)

`place` is an empty directory of the test's own. Class attributes say what a tier cannot do (an in-process
tier cannot be opened twice, a server keeps its own time); whatever is not switched off is tested.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ..clock import Clock, VirtualClock
from ..errors import StoreError
from ..store.frame import HEADER_BYTES
from ..store.framed import FramedTier
from ..store.hints import Hints, put_hinted
from ..store.tier import Found, Got, Kind, Put, Tier, Vector

__all__ = ["TierSuite", "blank", "key_of", "value_of"]

SECONDS = 10.0
"""A timeout that a healthy tier never needs."""


def key_of(number: int) -> bytes:
    """A uniform 32-byte key."""
    return hashlib.sha256(b"key %d" % number).digest()


def value_of(number: int, size: int = 1000) -> bytes:
    """A value that differs from every other number's in every part."""
    return (hashlib.sha256(b"value %d" % number).digest() * (size // 32 + 1))[:size]


def blank(*sizes: int) -> list[memoryview]:
    """Writable parts of the given sizes, filled with a pattern that is no value's."""
    return [memoryview(bytearray(b"\xa5" * size)) for size in sizes]


def parts_of(value: bytes, *cuts: int) -> Vector:
    """A value as parts, cut at the given offsets."""
    whole = memoryview(bytearray(value))
    edges = [0, *cuts, len(value)]
    return [whole[a:b] for a, b in pairwise(edges)]


def joined(parts: Vector) -> bytes:
    return b"".join(parts)


class TierSuite:
    """Subclass, and give `open_tier`."""

    capacity_enforced: ClassVar[bool] = True
    """The tier keeps to the capacity it is opened with."""
    shared: ClassVar[bool] = False
    """Opened twice on one place, it is the same store."""
    obeys_clock: ClassVar[bool] = True
    """Lives and leases follow the clock given to `open_tier`."""
    examples: ClassVar[int] = 25
    """Runs of the state machine."""

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        """An empty tier at `place`, or the store that is there already when `shared`."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> VirtualClock:
        return VirtualClock()

    @pytest.fixture
    def tier(self, tmp_path: Path, clock: VirtualClock) -> Iterator[Tier]:
        with contextlib.closing(self.open_tier(tmp_path, clock=clock)) as tier:
            yield tier

    # --- contract ---------------------------------------------------------------------------------

    def test_is_a_tier(self, tier: Tier) -> None:
        assert isinstance(tier, Tier)
        assert isinstance(tier.name, str)
        assert isinstance(tier.kind, Kind)

    def test_empty_batches_do_nothing(self, tier: Tier) -> None:
        assert tier.find([], SECONDS) == b""
        assert tier.get([], [], SECONDS) == b""
        assert tier.put([], [], SECONDS) == b""
        assert tier.drop([], SECONDS) == 0
        assert tier.lease([], b"a", 1.0, SECONDS) == b""
        tier.release([], b"a", SECONDS)

    def test_an_unknown_key_is_absent(self, tier: Tier) -> None:
        assert tier.find([key_of(1)], SECONDS) == bytes([Found.ABSENT])
        assert tier.get([key_of(1)], [blank(10)], SECONDS) == bytes([Got.ABSENT])
        assert tier.drop([key_of(1)], SECONDS) == 0

    def test_reads_back_what_was_put(self, tier: Tier) -> None:
        assert _put(tier, 1, 2) == bytes([Put.STORED, Put.STORED])
        assert tier.find([key_of(1), key_of(3), key_of(2)], SECONDS) == bytes([4, 0, 4])
        assert _got(tier, 1, 2) == [value_of(1), value_of(2)]

    def test_answers_each_key_of_a_mixed_batch(self, tier: Tier) -> None:
        _put(tier, 1, 3)
        into = [blank(1000) for _ in range(4)]
        statuses = tier.get([key_of(i) for i in range(4)], into, SECONDS)
        assert statuses == bytes([Got.ABSENT, Got.OK, Got.ABSENT, Got.OK])
        assert joined(into[1]) == value_of(1)
        assert joined(into[3]) == value_of(3)

    def test_parts_may_be_cut_anywhere(self, tier: Tier) -> None:
        tier.put([key_of(1)], [parts_of(value_of(1), 1, 500, 500)], SECONDS)
        into = blank(128, 0, 871, 1)
        assert tier.get([key_of(1)], [into], SECONDS) == bytes([Got.OK])
        assert joined(into) == value_of(1)

    def test_more_parts_than_a_system_call_takes(self, tier: Tier) -> None:
        value = value_of(1, 6000)
        assert tier.put([key_of(1)], [parts_of(value, *range(1, 3000))], SECONDS) == bytes([Put.STORED])
        into = blank(*[2] * 3000)
        assert tier.get([key_of(1)], [into], SECONDS) == bytes([Got.OK])
        assert joined(into) == value

    @pytest.mark.parametrize("size", [1, 4095, 4096, 65537, 1_500_000])
    def test_holds_values_of_any_size(self, tier: Tier, size: int) -> None:
        value = value_of(7, size)
        assert tier.put([key_of(7)], [parts_of(value)], SECONDS) == bytes([Put.STORED])
        into = blank(size)
        assert tier.get([key_of(7)], [into], SECONDS) == bytes([Got.OK])
        assert joined(into) == value

    def test_values_of_different_sizes_live_side_by_side(self, tier: Tier) -> None:
        sizes = [100, 70_000, 1, 333_333]
        keys = [key_of(i) for i in range(4)]
        tier.put(keys, [parts_of(value_of(i, size)) for i, size in enumerate(sizes)], SECONDS)
        into = [blank(size) for size in sizes]
        assert tier.get(keys, into, SECONDS) == bytes([Got.OK]) * 4
        assert [joined(parts) for parts in into] == [value_of(i, size) for i, size in enumerate(sizes)]

    def test_another_length_is_corrupt(self, tier: Tier) -> None:
        _put(tier, 1, 2)
        into = [blank(999), blank(1001), blank(1000)]
        statuses = tier.get([key_of(1), key_of(1), key_of(2)], into, SECONDS)
        assert statuses == bytes([Got.CORRUPT, Got.CORRUPT, Got.OK])
        assert joined(into[2]) == value_of(2)

    def test_the_first_to_put_wins(self, tier: Tier) -> None:
        _put(tier, 1)
        assert tier.put([key_of(1)], [parts_of(value_of(2))], SECONDS) == bytes([Put.HELD])
        assert _got(tier, 1) == [value_of(1)]

    def test_a_key_twice_in_a_batch_is_stored_once(self, tier: Tier) -> None:
        keys = [key_of(1), key_of(1)]
        statuses = tier.put(keys, [parts_of(value_of(1)), parts_of(value_of(1))], SECONDS)
        assert sorted(statuses) == [Put.STORED, Put.HELD]
        assert [entry.key for entry in tier.scan(SECONDS)] == [key_of(1)]

    def test_takes_a_long_batch(self, tier: Tier) -> None:
        assert set(_put(tier, *range(300))) == {Put.STORED}
        assert _got(tier, *range(300)) == [value_of(i) for i in range(300)]

    def test_dropped_is_gone_and_remembered(self, tier: Tier) -> None:
        _put(tier, 1, 2)
        assert tier.drop([key_of(1), key_of(3)], SECONDS) == 1
        assert tier.find([key_of(1), key_of(2)], SECONDS) == bytes([Found.GHOST, Found.HELD])
        assert tier.get([key_of(1)], [blank(1000)], SECONDS) == bytes([Got.ABSENT])

    def test_dropped_may_be_put_again(self, tier: Tier) -> None:
        _put(tier, 1)
        tier.drop([key_of(1)], SECONDS, ghost=False)
        assert tier.find([key_of(1)], SECONDS)[0] in (Found.ABSENT, Found.GHOST)
        assert _put(tier, 1) == bytes([Put.STORED])
        assert tier.find([key_of(1)], SECONDS) == bytes([Found.HELD])

    def test_hints_change_nothing_of_what_is_stored(self, tier: Tier) -> None:
        keys, values = [key_of(n) for n in range(3)], [parts_of(value_of(n), 128) for n in range(3)]
        _put(tier, 0)
        hints = Hints(worth_seconds=[0.1, 0.2, 0.3], after=key_of(9), idle_seconds=60.0)
        statuses = put_hinted(tier, keys, values, SECONDS, hints=hints)
        assert statuses == bytes([Put.HELD, Put.STORED, Put.STORED])
        assert _got(tier, 0, 1, 2) == [value_of(0), value_of(1), value_of(2)]

    # --- time -------------------------------------------------------------------------------------

    def test_a_life_ends(self, tier: Tier, clock: VirtualClock) -> None:
        if not self.obeys_clock:
            pytest.skip("the tier keeps its own time")
        tier.put([key_of(1)], [parts_of(value_of(1))], SECONDS, ttl_seconds=5.0)
        _put(tier, 2)
        clock.advance(4.0)
        assert tier.find([key_of(1)], SECONDS) == bytes([Found.HELD])
        clock.advance(2.0)
        assert tier.find([key_of(1), key_of(2)], SECONDS) == bytes([Found.GHOST, Found.HELD])
        assert tier.get([key_of(1)], [blank(1000)], SECONDS) == bytes([Got.ABSENT])
        assert _put(tier, 1) == bytes([Put.STORED])

    def test_no_time_is_no_answer(self, tier: Tier) -> None:
        _put(tier, 1)
        try:
            statuses = tier.get([key_of(1)] * 3, [blank(1000) for _ in range(3)], -1.0)
        except StoreError as error:
            pytest.fail(f"get answers per key and never raises: {error}")
        assert set(statuses) <= {Got.OK, Got.LATE, Got.FAILED}

    # --- leases and notes -------------------------------------------------------------------------

    def test_a_lease_has_one_holder(self, tier: Tier) -> None:
        names = [key_of(1), key_of(2)]
        assert tier.lease(names, b"a", 60.0, SECONDS) == bytes([1, 1])
        assert tier.lease([*names, key_of(3)], b"b", 60.0, SECONDS) == bytes([0, 0, 1])
        assert tier.lease(names, b"a", 60.0, SECONDS) == bytes([1, 1])

    def test_a_lease_shows_until_the_block_is_there(self, tier: Tier) -> None:
        tier.lease([key_of(1)], b"a", 60.0, SECONDS)
        assert tier.find([key_of(1), key_of(2)], SECONDS) == bytes([Found.LEASED, Found.ABSENT])
        _put(tier, 1)
        assert tier.find([key_of(1)], SECONDS) == bytes([Found.HELD])

    def test_only_the_holder_gives_a_lease_back(self, tier: Tier) -> None:
        tier.lease([key_of(1)], b"a\r\n", 60.0, SECONDS)
        tier.release([key_of(1), key_of(2)], b"b", SECONDS)
        assert tier.lease([key_of(1)], b"b", 60.0, SECONDS) == b"\x00"
        tier.release([key_of(1)], b"a\r\n", SECONDS)
        assert tier.lease([key_of(1)], b"b", 60.0, SECONDS) == b"\x01"

    def test_a_lease_ends_by_itself(self, tier: Tier, clock: VirtualClock) -> None:
        if not self.obeys_clock:
            pytest.skip("the tier keeps its own time")
        tier.lease([key_of(1)], b"a", 5.0, SECONDS)
        clock.advance(6.0)
        assert tier.find([key_of(1)], SECONDS) == bytes([Found.ABSENT])
        assert tier.lease([key_of(1)], b"b", 5.0, SECONDS) == b"\x01"

    def test_notes(self, tier: Tier) -> None:
        assert tier.read_note("a/b", SECONDS) is None
        assert tier.write_note("a/b", b"\x00first\r\n", SECONDS, if_absent=True) is True
        assert tier.write_note("a/b", b"second", SECONDS, if_absent=True) is False
        assert tier.read_note("a/b", SECONDS) == b"\x00first\r\n"
        assert tier.write_note("a/b", b"third", SECONDS) is True
        assert tier.read_note("a/b", SECONDS) == b"third"

    def test_notes_are_listed_by_prefix(self, tier: Tier) -> None:
        for name in ("a/2", "a/1", "b/1", "a*", "..", "a[1]"):
            tier.write_note(name, b"x", SECONDS)
        _put(tier, 1)
        assert tier.notes("a/", SECONDS) == ["a/1", "a/2"]
        assert tier.notes("a*", SECONDS) == ["a*"]
        assert tier.notes("", SECONDS) == ["..", "a*", "a/1", "a/2", "a[1]", "b/1"]

    # --- reading commands -------------------------------------------------------------------------

    def test_scan_and_usage_tell_what_is_held(self, tier: Tier) -> None:
        _put(tier, 1, 2, 3)
        tier.drop([key_of(2)], SECONDS)
        tier.write_note("note", b"n", SECONDS)
        entries = sorted(tier.scan(SECONDS), key=lambda entry: entry.key)
        assert [entry.key for entry in entries] == sorted([key_of(1), key_of(3)])
        assert {entry.value_bytes for entry in entries} == {1000}
        usage = tier.usage(SECONDS)
        assert usage.blocks in (2, None)
        assert usage.used_bytes is None or usage.used_bytes >= 2000

    def test_closing_twice_is_fine(self, tmp_path: Path, clock: VirtualClock) -> None:
        tier = self.open_tier(tmp_path, clock=clock)
        tier.close()
        tier.close()

    # --- capacity ---------------------------------------------------------------------------------

    def test_keeps_to_its_capacity(self, tmp_path: Path, clock: VirtualClock) -> None:
        if not self.capacity_enforced:
            pytest.skip("the tier has no capacity of its own")
        with contextlib.closing(self.open_tier(tmp_path, capacity_bytes=3000, clock=clock)) as tier:
            for i in range(5):
                assert _put(tier, i) == bytes([Put.STORED])
                clock.advance(1.0)
            found = tier.find([key_of(i) for i in range(5)], SECONDS)
            held = found.count(Found.HELD)
            assert 1 <= held <= 3
            assert found[4] == Found.HELD
            assert found.count(Found.GHOST) == 5 - held
            usage = tier.usage(SECONDS)
            assert usage.used_bytes is not None
            assert usage.used_bytes <= 3000
            assert usage.evicted_blocks in (5 - held, None)
            assert usage.evicted_unread_blocks in (5 - held, None)

    def test_a_capacity_is_worth_no_more_than_it_is(self, tmp_path: Path, clock: VirtualClock) -> None:
        if not self.capacity_enforced:
            pytest.skip("the tier has no capacity of its own")
        with contextlib.closing(self.open_tier(tmp_path, capacity_bytes=5000, clock=clock)) as tier:
            _put(tier, 1, 2)
            usage = tier.usage(SECONDS)
            assert usage.capacity_bytes in (5000, None)
            assert usage.effective_bytes is None or 2000 <= usage.effective_bytes <= 5000

    def test_a_value_beyond_the_capacity_is_full(self, tmp_path: Path, clock: VirtualClock) -> None:
        if not self.capacity_enforced:
            pytest.skip("the tier has no capacity of its own")
        with contextlib.closing(self.open_tier(tmp_path, capacity_bytes=1, clock=clock)) as tier:
            assert _put(tier, 1, 2) == bytes([Put.FULL, Put.FULL])
            assert tier.find([key_of(1)], SECONDS) == bytes([Found.ABSENT])

    # --- sharing and threads ----------------------------------------------------------------------

    def test_two_openers_share_one_store(self, tmp_path: Path, clock: VirtualClock) -> None:
        if not self.shared:
            pytest.skip("the tier belongs to one process")
        with (
            contextlib.closing(self.open_tier(tmp_path, clock=clock)) as first,
            contextlib.closing(self.open_tier(tmp_path, clock=clock)) as second,
        ):
            _put(first, 1)
            assert _got(second, 1) == [value_of(1)]
            assert _put(second, 1) == bytes([Put.HELD])
            second.drop([key_of(1)], SECONDS)
            assert first.find([key_of(1)], SECONDS) == bytes([Found.GHOST])
            first.lease([key_of(2)], b"a", 60.0, SECONDS)
            assert second.lease([key_of(2)], b"b", 60.0, SECONDS) == b"\x00"
            second.write_note("n", b"x", SECONDS)
            assert first.read_note("n", SECONDS) == b"x"

    def test_threads_never_see_a_torn_value(self, tier: Tier) -> None:
        wrong: list[str] = []

        def work(seed: int) -> None:
            for step in range(30):
                number = (seed + step) % 5
                tier.put([key_of(number)], [parts_of(value_of(number))], SECONDS)
                into = blank(1000)
                status = tier.get([key_of(number)], [into], SECONDS)[0]
                if status == Got.OK and joined(into) != value_of(number):
                    wrong.append(f"torn value {number}")
                if status not in (Got.OK, Got.ABSENT):
                    wrong.append(f"status {status}")
                if step % 3 == 0:
                    tier.drop([key_of((number + 1) % 5)], SECONDS)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    # --- frames -----------------------------------------------------------------------------------

    def test_a_damaged_frame_is_corrupt_and_a_foreign_one_is_alien(self, tier: Tier) -> None:
        ours, theirs = FramedTier(tier, b"o" * 32), FramedTier(tier, b"t" * 32)
        keys = [key_of(i) for i in range(3)]
        payloads = [parts_of(value_of(i))[0] for i in range(3)]
        assert ours.put(keys, payloads, SECONDS) == bytes([Put.STORED]) * 3
        raw = blank(HEADER_BYTES + 1000)
        tier.get(keys[1:2], [raw], SECONDS)
        tier.drop(keys[1:2], SECONDS)
        raw[0][700] ^= 1
        tier.put(keys[1:2], [raw], SECONDS)
        into = blank(1000, 1000, 1000)
        assert ours.get(keys, into, SECONDS) == bytes([Got.OK, Got.CORRUPT, Got.OK])
        assert theirs.get(keys, into, SECONDS) == bytes([Got.ALIEN]) * 3

    # --- any sequence of calls --------------------------------------------------------------------

    def test_any_sequence_of_calls_agrees_with_a_dictionary(self, tmp_path: Path) -> None:
        suite = self

        class Machine(_AgainstADictionary):
            def fresh(self) -> tuple[Tier, VirtualClock]:
                clock = VirtualClock()
                place = TemporaryDirectory(dir=tmp_path)
                self.cleanup.callback(place.cleanup)
                tier = suite.open_tier(Path(place.name), clock=clock)
                self.cleanup.callback(tier.close)
                return tier, clock

            obeys_clock = self.obeys_clock

        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )


_NUMBERS = st.integers(0, 7)
_BATCH = st.lists(_NUMBERS, min_size=1, max_size=5, unique=True)


class _AgainstADictionary(RuleBasedStateMachine):
    """Drives a tier without capacity pressure and compares with what a dictionary would hold."""

    obeys_clock = True

    def __init__(self) -> None:
        super().__init__()
        self.cleanup = contextlib.ExitStack()

    def fresh(self) -> tuple[Tier, VirtualClock]:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.tier, self.clock = self.fresh()
        self.model: dict[int, tuple[bytes, float]] = {}
        self.ever: set[int] = set()
        self.leases: dict[int, tuple[bytes, float]] = {}

    def teardown(self) -> None:
        self.cleanup.close()

    @rule(numbers=_BATCH, version=st.integers(0, 2), size=st.integers(1, 5000), cut=st.integers(0, 5000))
    def put(self, numbers: list[int], version: int, size: int, cut: int) -> None:
        values = [value_of(10 * number + version, size) for number in numbers]
        statuses = self.tier.put(
            [key_of(n) for n in numbers], [parts_of(v, min(cut, size)) for v in values], SECONDS
        )
        for number, value, status in zip(numbers, values, statuses, strict=True):
            assert status == (Put.HELD if number in self.model else Put.STORED)
            self.model.setdefault(number, (value, float("inf")))
            self.ever.add(number)

    @precondition(lambda self: self.obeys_clock)
    @rule(number=_NUMBERS, life=st.integers(1, 9))
    def put_for_a_while(self, number: int, life: int) -> None:
        if number not in self.model:
            value = value_of(number)
            status = self.tier.put([key_of(number)], [parts_of(value)], SECONDS, ttl_seconds=float(life))
            assert status == bytes([Put.STORED])
            self.model[number] = (value, self.clock.now() + life)
            self.ever.add(number)

    @rule(numbers=_BATCH, cut=st.integers(0, 5000))
    def get(self, numbers: list[int], cut: int) -> None:
        held = [self.model.get(number, (b"?" * 10, 0.0))[0] for number in numbers]
        into = [blank(min(cut, len(value)), len(value) - min(cut, len(value))) for value in held]
        statuses = self.tier.get([key_of(n) for n in numbers], into, SECONDS)
        for number, value, parts, status in zip(numbers, held, into, statuses, strict=True):
            assert status == (Got.OK if number in self.model else Got.ABSENT)
            assert number not in self.model or joined(parts) == value

    @rule(numbers=_BATCH, ghost=st.booleans())
    def drop(self, numbers: list[int], ghost: bool) -> None:
        dropped = self.tier.drop([key_of(n) for n in numbers], SECONDS, ghost=ghost)
        assert dropped == sum(number in self.model for number in numbers)
        for number in numbers:
            self.model.pop(number, None)

    @rule(number=_NUMBERS, holder=st.sampled_from([b"a", b"b"]))
    def lease(self, number: int, holder: bytes) -> None:
        taken = self.tier.lease([key_of(number)], holder, 60.0, SECONDS)
        has, _ = self.leases.get(number, (holder, 0.0))
        assert taken == bytes([has == holder])
        if has == holder:
            self.leases[number] = (holder, self.clock.now() + 60.0)

    @rule(number=_NUMBERS, holder=st.sampled_from([b"a", b"b"]))
    def release(self, number: int, holder: bytes) -> None:
        self.tier.release([key_of(number)], holder, SECONDS)
        if self.leases.get(number, (b"", 0.0))[0] == holder:
            del self.leases[number]

    @precondition(lambda self: self.obeys_clock)
    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds + 0.5)
        now = self.clock.now()
        self.model = {n: held for n, held in self.model.items() if held[1] > now}
        self.leases = {n: lease for n, lease in self.leases.items() if lease[1] > now}

    @invariant()
    def finds_what_the_dictionary_holds(self) -> None:
        found = self.tier.find([key_of(number) for number in range(8)], SECONDS)
        for number, state in enumerate(found):
            assert state in self._allowed(number), f"key {number}: {Found(state).name}"

    def _allowed(self, number: int) -> Sequence[Found]:
        if number in self.model:
            return (Found.HELD,)
        if number in self.leases:
            return (Found.LEASED,)
        return (Found.ABSENT, Found.GHOST) if number in self.ever else (Found.ABSENT,)


def _put(tier: Tier, *numbers: int) -> bytes:
    return tier.put([key_of(n) for n in numbers], [parts_of(value_of(n), 128) for n in numbers], SECONDS)


def _got(tier: Tier, *numbers: int) -> list[bytes]:
    into: list[Any] = [blank(128, 872) for _ in numbers]
    assert set(tier.get([key_of(n) for n in numbers], into, SECONDS)) == {Got.OK}
    return [joined(parts) for parts in into]
