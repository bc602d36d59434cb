"""Everything the gate may know about one request, and what it answers.

Facts are complete: together with the gate's settings they give the same decision again, so a record of
them replays a decision years later. Times are seconds, sizes bytes, lengths tokens; block numbers count
from the first block of the prompt.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["Arm", "Decision", "Facts", "GateTerms", "Live", "Reason", "Segment"]


class Arm(StrEnum):
    """How a request takes part, fixed when it arrives."""

    ON = "on"
    """The gate decides and its decision is carried out."""
    SHADOW = "shadow"
    """Decides and books; loads and stores nothing."""
    HOLDOUT = "holdout"
    """Never loads, for ever: beside it, what sharing saves can be measured."""
    OUTSIDE = "outside"
    """Not in the canary's share: as holdout, but only while the canary lasts."""
    OFF = "off"
    """No lookup at all."""


class Reason(StrEnum):
    """Why the gate chose what it chose."""

    PAYS = "pays"
    """Loading is clearly faster."""
    PAYS_IN_PART = "pays_in_part"
    """Loading the leading blocks is; the rest does not fit memory, a cap or the deadline."""
    EXPLORES_LOAD = "explores_load"
    """Declined by the rule, loaded all the same as one of the few that keep the estimates alive."""
    UNMEASURED = "unmeasured"
    """Loaded because nothing is known of the tier yet."""
    ALWAYS = "always"
    """The policy of an experiment."""
    NOTHING_FOUND = "nothing_found"
    SLOWER = "slower"
    """Loading is not clearly faster."""
    EXPLORES_RECOMPUTE = "explores_recompute"
    """Accepted by the rule, computed all the same to keep the estimates alive."""
    NEVER = "never"
    """The policy of an experiment."""
    OFF = "off"
    SHADOW = "shadow"
    HOLDOUT = "holdout"
    OUTSIDE = "outside"
    NO_MEMORY = "no_memory"
    """No free blocks to load into."""
    NOT_ALLOWED = "not_allowed"
    """The request allows fewer tokens than one block (max_load_tokens)."""
    DEADLINE = "deadline"
    """Not even one block would be there in time."""
    BUSY = "busy"
    """Every slot for loads is taken, and waiting for one would cost more than computing."""
    UNKNOWN_PREFILL = "unknown_prefill"
    """Nothing has been computed here yet, so computing cannot be priced: compute, and learn."""

    @property
    def loads(self) -> bool:
        """Whether blocks are carried for this reason."""
        return self in _LOADING


class Segment(msgspec.Struct, frozen=True):
    """Consecutive blocks that one tier holds, with the measured price of reading from it."""

    tier: int
    stop_block: int
    """One past the last block; the segment begins where the one before it stops."""
    setup_seconds: float
    seconds_per_byte: float
    """At the present share of the link."""
    spread_median: float
    spread_high: float
    """Ratio of actual to predicted at the gate's load quantile."""
    in_flight: int
    """Loads on this tier now, without this one."""
    observations: int
    """How many transfers the price rests on; 0 means that it is unknown."""


class Live(msgspec.Struct, frozen=True):
    """What the engine knows at this moment."""

    prefill_step_seconds: float
    """a of a + b n + c n (context + n / 2)."""
    prefill_token_seconds: float
    prefill_pair_seconds: float
    prefill_median: float
    """Median ratio of actual to predicted prefill."""
    prefill_observations: int
    chunk_tokens: int
    dispatch_seconds: float = 0.0
    """Wait before a prefill of this request could begin: the engine's queue."""
    running_requests: int = 0
    """Requests that decode, or wait, and would be slowed."""
    decode_growth: float = 0.0
    """Relative growth of a decode step beside a transfer."""
    held_seconds_per_load: float = 0.0
    free_blocks: int = 1 << 40


class Facts(msgspec.Struct, frozen=True):
    """One request at the moment of its decision."""

    prompt_tokens: int
    local_tokens: int
    block_tokens: int
    bytes_per_token: int
    segments: tuple[Segment, ...]
    live: Live
    arm: Arm
    lookup_seconds: float = 0.0
    queue_seconds: float = 0.0
    """Until a load of this request could start: other loads hold the slots."""
    max_load_tokens: int | None = None
    deadline_seconds: float | None = None
    """Budget for the load, from now."""
    explore: bool = False


class GateTerms(msgspec.Struct, frozen=True):
    """The settings a decision depends on; part of its record."""

    policy: str = "rule"
    objective: str = "latency"
    margin_seconds: float = 0.002
    margin_share: float = 0.05
    load_quantile: float = 0.95
    recompute_quantile: float = 0.5
    explore_limit: float = 3.0
    """Explore only where the other side is predicted to take at most so many times as long."""


class Decision(msgspec.Struct, frozen=True):
    """What to do with the blocks that were found, and what both ways were predicted to take."""

    end_block: int
    """Load blocks up to here; equal to the local blocks when nothing is loaded."""
    reason: Reason
    load_median_seconds: float = 0.0
    load_high_seconds: float = 0.0
    recompute_seconds: float = 0.0
    """Median, of the same blocks."""
    interference_seconds: float = 0.0
    """What loading takes from other requests; for the objective `throughput`, less what computing does."""
    margin_seconds: float = 0.0
    candidate_end_block: int = 0
    """The end for which both ways were priced; for a declined load, what was on offer."""
    candidate_bytes: int = 0

    @property
    def loads(self) -> bool:
        """Whether blocks are carried."""
        return self.reason.loads


_LOADING = (Reason.PAYS, Reason.PAYS_IN_PART, Reason.EXPLORES_LOAD, Reason.UNMEASURED, Reason.ALWAYS)
