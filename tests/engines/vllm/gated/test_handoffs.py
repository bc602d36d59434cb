"""Which kv_transfer_params mean a hand-off, and on which side of it the request is."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.engines.vllm.gated.handoffs import is_handoff, receives


@pytest.mark.parametrize(
    ("params", "handoff", "receiving"),
    [
        (None, False, False),
        ({}, False, False),
        ({"max_load_tokens": 0}, False, False),
        ({"kvferry": {"data_class": "public"}}, False, False),
        ({"do_remote_prefill": True, "remote_block_ids": [1]}, True, True),
        ({"do_remote_prefill": False, "do_remote_decode": True, "remote_block_ids": None}, True, False),
        ({"do_remote_decode": True, "remote_block_ids": [1, 2]}, True, False),
        ({"do_remote_prefill": False, "do_remote_decode": False}, False, False),
        ({"disagg_spec": {"req_id": "1"}}, True, False),
    ],
)
def test_signs(params: dict[str, Any] | None, handoff: bool, receiving: bool) -> None:
    assert (is_handoff(params), receives(params)) == (handoff, receiving)
