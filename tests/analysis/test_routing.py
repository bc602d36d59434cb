from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import BLOCK, Prompt, prompts, touched, trace_of

from kvferry.analysis.replicas import ROUTINGS
from kvferry.analysis.routing import RoutingCount


def counted(asked: list[Prompt], replicas: int, room: int | None, pool: int | None = None) -> RoutingCount:
    count = RoutingCount(replicas, room, pool, BLOCK, compiled=False)
    for part in touched(trace_of(asked)):
        count.add(part, np.zeros(len(part.matched), dtype=np.int64))
    return count


@given(asked=prompts, replicas=st.integers(1, 4), room=st.none() | st.integers(1, 8))
def test_causes_sum_to_the_prompts(asked: list[Prompt], replicas: int, room: int | None) -> None:
    tokens = sum(len(path) * BLOCK + rest or 1 for path, rest in asked)
    for one in counted(asked, replicas, room).results().values():
        m = one.misses
        parts = (m.hit, m.never_seen, m.evicted, m.placement, m.partial_block)
        assert min(parts) >= 0
        assert sum(parts) == tokens
        assert one.hit_useful_tokens == pytest.approx(m.hit / max(1, tokens))


def test_each_cause_is_found_where_it_was_planted() -> None:
    asked = [("aaaa", 0), ("bb", 1), ("aaaa", 0), ("bb", 2), ("aaaa", 0)]
    # In turn on two replicas: the third request meets its own chain on the first, the fourth on the second.
    found = counted(asked, 2, None).results()["round-robin"].misses
    assert (found.hit, found.never_seen, found.evicted, found.placement, found.partial_block) == (
        40,
        24,
        0,
        0,
        3,
    )
    # Shifted by one, the chains lie on the other replica.
    found = counted([("aaaa", 0), ("aaaa", 0)], 2, None).results()["round-robin"].misses
    assert (found.hit, found.placement) == (0, 16)
    # With room for one chain, the other one has driven it out.
    found = counted([("aaaa", 0), ("bbbb", 0), ("aaaa", 0)], 1, 4).results()["round-robin"].misses
    assert (found.hit, found.evicted, found.never_seen) == (0, 16, 32)


def test_one_replica_for_everything_is_not_the_best_routing() -> None:
    # Everything begins with one block, so the longest prefix is always on the first replica.
    asked = [("a" + tail, 0) for tail in ("a", "b", "ab", "ba", "bb", "aa") for _ in range(3)]
    count = counted(asked, 3, None)
    assert count.results()["longest-prefix"].busiest_share == 1.0
    assert count.best != "longest-prefix"


def test_a_pool_is_compared_with_the_best_local_routing() -> None:
    count = counted([("aaaa", 0), ("bbbb", 0)] * 6, 3, 4, 12)
    gain, results = count.pool_gain(10.0), count.results()
    assert gain.best_local == count.best
    assert gain.best_local_hit_by_token == max(results[name].hit_by_token for name in ROUTINGS)
    assert gain.pool_hit_by_token == 80 / 96
    assert gain.pool_capacity_bytes == 12 * BLOCK * 10


def test_what_a_pool_adds_is_counted_by_length() -> None:
    asked = [("aaaa", 0), ("aaaa", 1), ("a", 0), ("aaaa", 0)]
    # In turn on four replicas, nothing is where it is asked for.
    alone = RoutingCount(4, None, None, BLOCK, routings=("round-robin",), compiled=False)
    for part in touched(trace_of(asked)):
        alone.add(part, np.zeros(len(part.matched), dtype=np.int64))
    sharing = alone.sharing()[0]
    assert (sharing.local_tokens, sharing.remote_tokens, sharing.remote_requests) == (0, 36, 3)
    assert [(one.requests, one.remote_tokens, one.pair_tokens) for one in sharing.lengths] == [
        (1, 4, 8.0),
        (2, 32, 256.0),
    ]
