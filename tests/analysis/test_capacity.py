from __future__ import annotations

import pytest

from kvferry.analysis.capacity import effective_capacity
from kvferry.errors import UsageError


def test_what_is_left_for_a_cache() -> None:
    found = effective_capacity(100, active_decode_bytes=40, reserved_bytes=15, fragmentation_bytes=5)
    assert found.effective_bytes == 40


@pytest.mark.parametrize("taken", [{"active_decode_bytes": 100}, {"reserved_bytes": -1}])
def test_what_leaves_nothing_is_refused(taken: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        effective_capacity(100, **taken)
