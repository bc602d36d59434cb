"""summary.json of a demo run: what its figures are called, and which requests count in which.

Owns the demo's stages as far as a reader of its records has to know them.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ARMS", "LINK", "Arm", "DemoSummary", "Policy", "is_free_choice", "left_out"]

ARMS = ("cold", "local_hit", "pool_hit", "declined", "fallback")
"""Ways in which a prompt became ready; never mixed."""

LINK = "link"
"""The stage of short requests that only measure a link; they need one token of answer."""

_FORCED = (LINK, "policy always", "policy never")
_REAL_LINK = ("pool", "return")


def is_free_choice(path: str, stage: str) -> bool:
    """Whether a request of this path, asked in this stage of a demo, counts in the path's distribution.

    Short loads measure the link, and throttled hits or forced policies are no free choice of the rule on the
    real link: they have tables of their own.
    """
    return left_out(path, stage) is None


def left_out(path: str, stage: str) -> str | None:
    """Why a request does not count in its path's distribution: the end of "one that"; None where it does."""
    if stage == LINK:
        return "measured the link"
    if stage in _FORCED:
        return "obeyed a forced policy"
    if path == "pool_hit" and stage not in _REAL_LINK:
        return "loaded over a throttled link"
    return None


class Arm(msgspec.Struct, frozen=True):
    """The distribution of one path: time to the first token, as the client saw it."""

    n: int
    p50_seconds: float | None
    p95_seconds: float | None
    """The largest below 20 values."""
    p95_is_max: bool


class Policy(msgspec.Struct, frozen=True):
    """One policy at the unseen bandwidths."""

    total_seconds: float
    lost_seconds: float
    n: int


class DemoSummary(msgspec.Struct, frozen=True, kw_only=True):
    """summary.json of a demo. Times in seconds, rates in bytes per second."""

    model: str
    plan: str
    block_tokens: int
    bytes_per_token: int
    arms: dict[str, Arm]
    ledger: dict[str, int]
    outputs_identical: bool
    differing: tuple[str, ...]
    """Questions that were not always answered with the same tokens; empty when all were."""
    flip: dict[str, float | bool | None]
    flips: tuple[dict[str, Any], ...]
    policies: dict[str, Policy]
    prediction: dict[str, float | int | None]
    pool_killed: dict[str, Any] | None
    bytes: dict[str, int]
    checks: dict[str, bool]
    sentences: tuple[str, ...]
