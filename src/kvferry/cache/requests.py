"""The state of one request inside the cache. Only the machine changes it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from ..gate.facts import Arm, Decision, Facts
from ..outcomes import Outcome
from .account import LoadedRun

__all__ = [
    "CHOSEN",
    "KNOWN",
    "LOADING",
    "PROBING",
    "SETTLED",
    "Answer",
    "Compute",
    "LoadTo",
    "Phase",
    "Request",
    "Wait",
]


class Wait(msgspec.Struct, frozen=True):
    """Nothing to say yet; ask again at the next step, or after `Again`."""


class LoadTo(msgspec.Struct, frozen=True):
    """Make memory for the blocks up to `end_block`, then call `begin`."""

    end_block: int


class Compute(msgspec.Struct, frozen=True):
    """Compute the rest; this answer never changes again."""


Answer = Wait | LoadTo | Compute


class Phase(Enum):
    """Where a request stands. It only moves forward, but for CHOSEN -> SETTLED without a load."""

    PROBING = 0
    KNOWN = 1
    """Probed, not decided: perhaps waiting for another request's load, or for a slot."""
    CHOSEN = 2
    """Decided to load; memory is being made."""
    LOADING = 3
    SETTLED = 4
    """What can be loaded has been: the rest is computed."""


# A member reached through its class costs as much as a call, and phases are looked at all the time.
PROBING, KNOWN, CHOSEN, LOADING, SETTLED = Phase


class Request(msgspec.Struct, eq=False):
    """One request. Times are the machine's, blocks are counted from the prompt's first."""

    rid: str
    arrived: float
    arm: Arm
    keys: Sequence[bytes]
    namespace: bytes
    data_class: str
    tokens: int
    explore: bool
    max_load_tokens: int | None
    deadline: float | None
    """No load may be waited for beyond it."""
    publish_end: int = 0
    handoff_end: int = 0
    """Leading blocks that another replica has computed for this request."""
    handoff_until: float = 0.0
    """How long to wait for its publication; 0 when that is over, or there is none."""
    asked_at: float = 0.0
    """When the last probe was emitted."""
    hashes: Sequence[bytes] | None = None
    phase: Phase = PROBING
    probe: int | None = None
    status: bytes = b""
    unknown: Outcome = Outcome.NOT_CACHEABLE
    """Cause of blocks of which no probe said anything."""
    lookup_seconds: float = 0.0
    alien_fields: str = ""
    local_tokens: int = 0
    facts: Facts | None = None
    decision: Decision | None = None
    expected_seconds: float | None = None
    """Predicted prefill of the whole prompt when blocks were first found for it: what the trial compares."""
    wait_until: float | None = None
    """End of waiting for a slot, or for another request's load; never moved later."""
    woken: bool = False
    """Whether the engine has been told that the wait is over."""
    chosen_at: float = 0.0
    claim_until: float = 0.0
    claimed: tuple[int, int] | None = None
    load_started: float = 0.0
    load_until: float = 0.0
    load_seconds: float | None = None
    end_block: int = 0
    """What the load in progress, or done, was to bring."""
    usable_end: int = 0
    failure: tuple[int, Outcome] | None = None
    """Where a load stopped short, and why."""
    loads: list[LoadedRun] = msgspec.field(default_factory=list)
    pending_loads: set[int] = msgspec.field(default_factory=set)
    pending_stores: set[int] = msgspec.field(default_factory=set)
    published: list[tuple[int, int]] = msgspec.field(default_factory=list)
    leaked: bool = False
    """An operation on its memory was given up: the memory is never free again."""
    ready_at: float | None = None
    finished: bool = False
    notes: list[str] = msgspec.field(default_factory=list)
