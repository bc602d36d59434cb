"""Every metric, label and span name of kvferry.

Owns the names, their meaning and the values that labels may take; dashboards, alerts and their tests read
them from here. Knows no library and records nothing.

Counters count events, tokens, seconds or bytes, never a rate: a rate is a query over two counters with one
denominator. Labels have few and known values; a tenant, a request or a namespace is never one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from ..gate.facts import Arm, Reason
from ..outcomes import Outcome
from ..store.tier import Kind

__all__ = [
    "LABEL_VALUES",
    "METRICS",
    "SPANS",
    "Bound",
    "Choice",
    "Metric",
    "Mode",
    "Part",
    "Path",
    "Span",
    "SpanKey",
    "StepKind",
]


class Choice(StrEnum):
    """What was chosen for blocks that were on offer."""

    LOAD = "load"
    RECOMPUTE = "recompute"


class Mode(StrEnum):
    """What a replica may do, as its settings say."""

    OFF = "off"
    SHADOW = "shadow"
    CANARY = "canary"
    ON = "on"


class Path(StrEnum):
    """How the prompt of one request became ready: distributions that are never mixed."""

    COLD = "cold"
    """Computed; nothing was held anywhere."""
    LOCAL_HIT = "local_hit"
    """The engine's own prefix cache held the useful part."""
    HOST_HIT = "host_hit"
    DISK_HIT = "disk_hit"
    POOL_HIT = "pool_hit"
    """Loaded, the farthest tier that was read."""
    HANDOFF = "handoff"
    """Loaded from what another replica computed for this very request."""
    DECLINED = "declined"
    """Blocks were on offer; the gate, the arm or a cap chose to compute."""
    FALLBACK = "fallback"
    """A load was begun and did not bring all of its blocks."""


class Part(StrEnum):
    """Which part of kvferry failed and let the engine go on without it."""

    PROBE = "probe"
    LOAD = "load"
    STORE = "store"
    CACHE = "cache"
    """All of it: something raised where nothing may, and the engine goes on without kvferry for good."""


class Bound(StrEnum):
    """Which end of an interval a gauge shows."""

    ESTIMATE = "estimate"
    LOW = "low"
    HIGH = "high"


class StepKind(StrEnum):
    """What one forward pass of the engine was for."""

    PREFILL = "prefill"
    DECODE = "decode"


LABEL_VALUES: Mapping[str, type[StrEnum]] = {
    "arm": Arm,
    "bound": Bound,
    "choice": Choice,
    "mode": Mode,
    "outcome": Outcome,
    "part": Part,
    "path": Path,
    "reason": Reason,
    "step": StepKind,
    "tier": Kind,
}
"""All labels, and the values that each may take."""


_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_BYTES = tuple(float(2**exponent) for exponent in range(16, 36, 2))


class Metric(msgspec.Struct, frozen=True):
    """One metric family. `name` is as it is scraped; a histogram adds `_bucket`, `_sum` and `_count`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


DECISIONS = Metric(
    "kvferry_decisions_total",
    "counter",
    "Decisions of the gate on requests, by what was chosen and why.",
    ("choice", "reason", "arm"),
)
PROMPT_TOKENS = Metric(
    "kvferry_prompt_tokens_total",
    "counter",
    "Prompt tokens of settled requests: what the ledger's parts sum to, and the denominator of hit shares.",
)
LEDGER_TOKENS = Metric(
    "kvferry_ledger_tokens_total",
    "counter",
    "Prompt tokens by what became of them; every token is booked once.",
    ("outcome",),
)
READY_SECONDS = Metric(
    "kvferry_ready_seconds",
    "histogram",
    "From a request's arrival to its ready prompt, by the path it took.",
    ("path",),
    _SECONDS,
)
LOST_SECONDS = Metric(
    "kvferry_lost_seconds_total",
    "counter",
    "Seconds that the other choice was predicted to save, where the choice turned out wrong.",
    ("choice",),
)
SAVED_SECONDS = Metric(
    "kvferry_saved_seconds_total",
    "counter",
    "Seconds by which loads were ready before the predicted recompute of the same blocks.",
)
SAVING_RATIO = Metric(
    "kvferry_saving_ratio",
    "gauge",
    "Share of recompute time saved against the holdout, with its 95 % interval; negative: it costs.",
    ("bound",),
)
FALLBACKS = Metric(
    "kvferry_fallbacks_total",
    "counter",
    "Loads that were begun and did not bring all of their blocks, by cause.",
    ("outcome",),
)
FAILURES = Metric(
    "kvferry_failures_total",
    "counter",
    "Failures inside kvferry after which the engine went on without it.",
    ("part",),
)
PROBE_SECONDS = Metric(
    "kvferry_probe_seconds", "histogram", "One look-up of a batch of blocks.", ("tier",), _SECONDS
)
PROBED_BLOCKS = Metric(
    "kvferry_probed_blocks_total", "counter", "Blocks that were looked up: the queries.", ("tier",)
)
FOUND_BLOCKS = Metric(
    "kvferry_found_blocks_total", "counter", "Blocks that a look-up found: the hits.", ("tier",)
)
LOAD_SECONDS = Metric("kvferry_load_seconds", "histogram", "One batch of reads.", ("tier",), _SECONDS)
LOAD_BYTES = Metric(
    "kvferry_load_bytes", "histogram", "Bytes that one batch of reads brought whole.", ("tier",), _BYTES
)
STORE_SECONDS = Metric("kvferry_store_seconds", "histogram", "One batch of writes.", ("tier",), _SECONDS)
STORE_BYTES = Metric(
    "kvferry_store_bytes", "histogram", "Bytes that one batch of writes stored.", ("tier",), _BYTES
)
PUBLISHED_BYTES = Metric(
    "kvferry_published_bytes_total", "counter", "Bytes that this process published.", ("tier",)
)
REFUSED_BLOCKS = Metric(
    "kvferry_refused_blocks_total", "counter", "Blocks that a tier did not take, for want of room.", ("tier",)
)
READ_BYTES = Metric(
    "kvferry_read_bytes_total", "counter", "Bytes that this process read from a tier.", ("tier",)
)
NEVER_READ_BYTES = Metric(
    "kvferry_never_read_bytes_total",
    "counter",
    "Bytes that were published and dropped without having been read.",
    ("tier",),
)
TIER_UP = Metric(
    "kvferry_tier_up",
    "gauge",
    "1 while calls reach the tier, 0 while it is left alone after a failure.",
    ("tier",),
)
TIER_BACKOFF_SECONDS = Metric(
    "kvferry_tier_backoff_seconds", "gauge", "How long the tier is still left alone.", ("tier",)
)
TIER_CAPACITY_BYTES = Metric(
    "kvferry_tier_capacity_bytes", "gauge", "What the tier may hold; absent where it is unknown.", ("tier",)
)
TIER_USED_BYTES = Metric(
    "kvferry_tier_used_bytes", "gauge", "What the tier holds; absent where it is unknown.", ("tier",)
)
LOADS_IN_FLIGHT = Metric("kvferry_loads_in_flight", "gauge", "Loads at work now.")
LOAD_CAP = Metric("kvferry_load_cap", "gauge", "Loads that may be at work at once in this process.")
STORES_IN_FLIGHT = Metric("kvferry_stores_in_flight", "gauge", "Publications at work now.")
STEP_SECONDS = Metric(
    "kvferry_step_seconds", "histogram", "One forward pass of the engine.", ("step",), _SECONDS
)
COMPUTED_TOKENS = Metric(
    "kvferry_computed_tokens_total",
    "counter",
    "Prompt tokens that the engine computed; all its prefill steps.",
)
MODE = Metric("kvferry_mode", "gauge", "1 for the mode that is in force, 0 for the others.", ("mode",))

METRICS: tuple[Metric, ...] = (
    DECISIONS,
    PROMPT_TOKENS,
    LEDGER_TOKENS,
    READY_SECONDS,
    LOST_SECONDS,
    SAVED_SECONDS,
    SAVING_RATIO,
    FALLBACKS,
    FAILURES,
    PROBE_SECONDS,
    PROBED_BLOCKS,
    FOUND_BLOCKS,
    LOAD_SECONDS,
    LOAD_BYTES,
    STORE_SECONDS,
    STORE_BYTES,
    PUBLISHED_BYTES,
    REFUSED_BLOCKS,
    READ_BYTES,
    NEVER_READ_BYTES,
    TIER_UP,
    TIER_BACKOFF_SECONDS,
    TIER_CAPACITY_BYTES,
    TIER_USED_BYTES,
    LOADS_IN_FLIGHT,
    LOAD_CAP,
    STORES_IN_FLIGHT,
    STEP_SECONDS,
    COMPUTED_TOKENS,
    MODE,
)
"""Every metric family, in the order in which it is exposed."""


class Span(StrEnum):
    """Names of spans: the steps of a request that can take time."""

    REQUEST = "kvferry.request"
    """From arrival to a ready prompt; the others are its children, and a store may end after it."""
    LOOKUP = "kvferry.lookup"
    GATE = "kvferry.gate"
    LOAD = "kvferry.load"
    STORE = "kvferry.store"


class SpanKey(StrEnum):
    """Names of span attributes. Spans are sampled and single, so a request's id may stand here."""

    REQUEST = "kvferry.request_id"
    TIER = "kvferry.tier"
    BLOCKS = "kvferry.blocks"
    FOUND = "kvferry.found_blocks"
    BYTES = "kvferry.bytes"
    CHOICE = "kvferry.choice"
    REASON = "kvferry.reason"
    OUTCOME = "kvferry.outcome"
    PATH = "kvferry.path"
    TOKENS = "kvferry.tokens"


SPANS: tuple[Span, ...] = tuple(Span)
