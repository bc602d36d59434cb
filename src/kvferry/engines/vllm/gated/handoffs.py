"""Which requests carry a hand-off: prefill on one replica, decode on another, for this very request.

A hand-off is no prefix hit: somebody else has computed this prompt for us, or waits for what we compute. The
gate lets it pass and books it apart. The signs are those that vLLM's connectors put into
kv_transfer_params.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_handoff", "receives"]

_RECEIVING = ("do_remote_prefill", "remote_block_ids", "remote_request_id")
_SENDING = ("do_remote_decode", "disagg_spec")


def receives(params: Mapping[str, Any] | None) -> bool:
    """Whether the prompt's KV comes from the replica that did this request's prefill."""
    # A sender may name remote blocks too: those it is to write into.
    if params is None or any(params.get(sign) for sign in _SENDING):
        return False
    return any(params.get(sign) for sign in _RECEIVING)


def is_handoff(params: Mapping[str, Any] | None) -> bool:
    """Whether the request is one half of a hand-off, on either side."""
    return receives(params) or (params is not None and any(params.get(sign) for sign in _SENDING))
