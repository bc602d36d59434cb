"""Under every policy, no block goes before one that continues it, and one that may go is found."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.errors import ConfigError
from kvferry.store.eviction import LRU, POLICIES, EvictionPolicy, Evictor, policy_named

MAKERS = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
Make = Callable[[], EvictionPolicy]


def key_of(chain: int, block: int) -> bytes:
    return b"%d/%d" % (chain, block)


def chain_of(chain: int, blocks: int) -> list[bytes]:
    return [key_of(chain, block) for block in range(blocks)]


def never(key: bytes) -> bool:
    return False


def store(
    evictor: Evictor, keys: list[bytes], worth: float | None = None, after: bytes | None = None
) -> None:
    evictor.insert(keys, [(key, 100, worth) for key in keys], after)


def drain(evictor: Evictor) -> list[bytes]:
    """Evict everything; the order in which it went."""
    gone = []
    while (key := evictor.choose(never)) is not None:
        evictor.remove(key)
        gone.append(key)
    return gone


@MAKERS
def test_a_chain_goes_from_its_tail(make: Make) -> None:
    evictor = Evictor(make())
    store(evictor, chain_of(0, 9))
    assert drain(evictor) == list(reversed(chain_of(0, 9)))


@MAKERS
def test_a_chain_read_in_pieces_goes_from_its_tail(make: Make) -> None:
    evictor = Evictor(make())
    keys = chain_of(0, 9)
    for start in (0, 3, 6):
        store(evictor, keys[start : start + 3], after=keys[start - 1] if start else None)
    for start in (0, 3, 6):
        evictor.use(keys[start : start + 3])
    assert drain(evictor) == list(reversed(keys))


@MAKERS
def test_a_chain_whose_tail_alone_is_read_goes_from_its_tail(make: Make) -> None:
    evictor = Evictor(make())
    store(evictor, chain_of(0, 4))
    for _ in range(5):
        evictor.use([key_of(0, 3)])
    assert drain(evictor) == list(reversed(chain_of(0, 4)))


@MAKERS
def test_a_chain_whose_later_blocks_save_more_goes_from_its_tail(make: Make) -> None:
    evictor = Evictor(make())
    keys = chain_of(0, 5)
    evictor.insert(keys, [(key, 100, 1.0 + n) for n, key in enumerate(keys)])
    assert drain(evictor) == list(reversed(keys))


@MAKERS
def test_nothing_before_a_pinned_block_goes(make: Make) -> None:
    evictor = Evictor(make())
    keys = chain_of(0, 4)
    store(evictor, keys)
    assert evictor.choose(lambda key: key == keys[3]) is None
    assert evictor.choose(lambda key: key == keys[0]) == keys[3]


@MAKERS
def test_a_head_that_was_dropped_and_stored_anew_is_kept_again(make: Make) -> None:
    evictor = Evictor(make())
    keys = chain_of(0, 3)
    store(evictor, keys)
    evictor.remove(keys[0])
    evictor.insert(keys, [(keys[0], 100, None)])
    assert drain(evictor) == list(reversed(keys))


@MAKERS
def test_two_orders_of_the_same_keys_block_nothing(make: Make) -> None:
    evictor = Evictor(make())
    store(evictor, [b"a", b"b"])
    evictor.remove(b"a")
    evictor.insert([b"b", b"a"], [(b"a", 100, None)])
    evictor.remove(b"b")
    evictor.insert([b"a", b"b"], [(b"b", 100, None)])
    assert sorted(drain(evictor)) == [b"a", b"b"]


@MAKERS
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_sequence_keeps_heads_behind_tails(make: Make, data: st.DataObject) -> None:
    evictor = Evictor(make())
    stored: set[bytes] = set()
    parents: dict[bytes, bytes] = {}
    for _ in range(data.draw(st.integers(5, 30))):
        chain, start = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 5))
        # The first two blocks are a prefix that all chains share.
        keys = [key_of(0 if n < 2 else chain, n) for n in range(start, data.draw(st.integers(start, 8)))]
        act = data.draw(st.sampled_from(["store", "use", "evict", "drop"]))
        if act == "store":
            # Blocks are stored with those before them, or behind one that is there.
            front = key_of(0 if start - 1 < 2 else chain, start - 1)
            if start and front not in stored:
                continue
            fresh = [(key, 100, data.draw(st.floats(0, 5))) for key in keys if key not in stored]
            evictor.insert(keys, fresh, front if start else None)
            line = [front, *keys] if start else keys
            for before, key in itertools.pairwise(line):
                if key in {k for k, _, _ in fresh} or parents.get(key) not in stored:
                    parents[key] = before
            if not start and keys and keys[0] in {k for k, _, _ in fresh}:
                parents.pop(keys[0], None)
            stored |= set(keys)
        elif act == "use":
            evictor.use([key for key in keys if key in stored])
        elif act == "drop" and (held := [key for key in keys if key in stored]):
            evictor.remove(held[0])
            stored.remove(held[0])
        elif act == "evict":
            victim = evictor.choose(never)
            assert (victim is None) == (not stored)
            if victim is not None:
                assert [key for key in stored if parents.get(key) == victim] == []
                evictor.remove(victim)
                stored.remove(victim)
    assert sorted(drain(evictor)) == sorted(stored)


def test_removing_tells_the_tail_that_is_left() -> None:
    evictor = Evictor(LRU())
    store(evictor, [b"a", b"b", b"c"])
    evictor.insert([b"b", b"d"], [(b"d", 1, None)])
    assert evictor.remove(b"d") is None
    assert evictor.remove(b"c") == b"b"
    assert evictor.remove(b"a") is None
    assert evictor.remove(b"b") is None


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(ConfigError, match=r"policy: 'fifo' is no eviction policy; write one of lru, s3fifo"):
        policy_named("fifo", "policy")
