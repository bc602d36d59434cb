from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvferry.errors import ConfigError
from kvferry.store.codec import BlockLayout


def layout(**changes: Any) -> BlockLayout:
    return BlockLayout(
        **{"layers": 2, "kv_heads": 3, "block_tokens": 4, "head_dim": 5, "dtype": "float32", **changes}
    )


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_a_block_has_the_bytes_of_its_numbers(dtype: str, width: int) -> None:
    assert layout(dtype=dtype).block_bytes == 2 * 2 * 3 * 4 * 5 * width


def test_another_order_is_seen_in_the_canonical_one() -> None:
    lying = np.arange(240, dtype=np.float32).reshape(4, 2, 2, 3, 5)
    seen = layout(order="token.layer.kv.head.width").array(memoryview(lying.tobytes()))
    assert (seen == lying.transpose(1, 2, 3, 0, 4)).all()


def test_writing_through_the_view_reaches_the_block() -> None:
    block = memoryview(bytearray(layout().block_bytes))
    layout().array(block)[1, 1, 2, 3, 4] = 1.0
    assert np.frombuffer(block, np.float32)[-1] == 1.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layers": 0}, "layers"),
        ({"head_dim": -1}, "head_dim"),
        ({"dtype": "float8"}, "'float8'.*float32, float16, bfloat16"),
        ({"order": "layer.kv.head.token"}, "order"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        layout(**changes)
