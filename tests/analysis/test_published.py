from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic import BLOCK, touched

from kvferry.analysis.published import PUBLICATION_POLICIES, PublicationCount
from kvferry.gate.publication import Publication
from kvferry.traces import Request, from_requests

asked = st.lists(
    st.tuples(st.text("ab", min_size=1, max_size=6), st.none() | st.integers(0, 30)), max_size=30
)


def by_the_gate(requests: list[tuple[str, int | None]], policy: str) -> tuple[int, int, int]:
    """(written, served, never read) blocks, by the gate's own rule and a pool that is a set."""
    rule = Publication(policy, ["shared"])
    pool: set[bytes] = set()
    read: set[bytes] = set()
    served = 0
    for path, boundary in requests:
        keys = [path[: n + 1].encode() for n in range(len(path))]
        held = next((n for n, key in enumerate(keys) if key not in pool), len(keys))
        served += held
        read.update(keys[:held])
        end = rule.end_block(keys, block_tokens=BLOCK, boundary_tokens=boundary, data_class="shared")
        pool.update(keys[:end])
    return len(pool), served, len(pool - read)


@pytest.mark.parametrize("policy", PUBLICATION_POLICIES)
@given(requests=asked)
def test_every_policy_is_the_gates(policy: str, requests: list[tuple[str, int | None]]) -> None:
    trace = from_requests(
        [
            Request(
                arrival_seconds=float(number),
                input_tokens=len(path) * BLOCK,
                blocks=[path[: n + 1] for n in range(len(path))],
                boundary_tokens=-1 if boundary is None else min(boundary, len(path) * BLOCK),
            )
            for number, (path, boundary) in enumerate(requests)
        ],
        BLOCK,
    )
    count, blocks = PublicationCount(), 0
    for part in touched(trace):
        blocks = int(part.blocks.max()) + 1
        count.add(part, np.zeros(len(part.matched), dtype=np.int64), blocks)
    found = [int(column.sum()) // BLOCK for column in count.of(policy, np.zeros(blocks, dtype=np.int32), 1)]
    assert found == list(by_the_gate(requests, policy))
