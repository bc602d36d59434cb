"""summary.json of a demo run with vLLM: what its figures are called, and what each arm tried.

Owns the demo's arms as far as a reader of its records has to know them.
"""

from __future__ import annotations

import msgspec

from .demo_summary import Arm

__all__ = ["ARMS", "VllmDemoSummary"]

ARMS = ("cold", "local", "pool", "handoff", "told", "broken", "killed")
"""What was tried: each is an arm of its own, whatever became of its requests."""


class VllmDemoSummary(msgspec.Struct, frozen=True, kw_only=True):
    """summary.json of a demo with vLLM. Times in seconds."""

    model: str
    plan: str
    vllm: str
    prompt_tokens: int
    """Of the longest prompt."""
    block_tokens: int
    bytes_per_token: int
    arms: dict[str, Arm]
    """Time to the first token as the client saw it, by `ARMS`."""
    loaded_tokens: dict[str, int]
    """Tokens that came from the pool, or were handed over, by arm."""
    ledger: dict[str, int]
    """Of every request, those too that only computed a prompt for the other server."""
    reasons: dict[str, int]
    """Decisions of the gate by reason."""
    pool_minus_local_seconds: float | None
    outputs_identical: bool
    differing: tuple[str, ...]
    metrics: dict[str, dict[str, float]]
    """By server: counters of its /metrics at the end."""
    checks: dict[str, bool]
