"""One request on its way past the gate, and the load that it may have in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ....cache.account import LoadedRun
from ....cache.requests import Request
from ....cache.settings import CacheSettings
from ....config import RequestFields, parse_request_fields
from ....errors import ConfigError
from ....gate.arms import arm_of, uniform
from ....gate.facts import Arm
from ....store.tier import Kind
from .handoffs import is_handoff, receives

__all__ = ["EngineRequest", "Passing", "Transfer", "arrival"]


class EngineRequest(Protocol):
    """What the gate reads of the engine's own request while it lives."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV exists, before the step that is being made."""

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Chained hashes of its full blocks."""


class Transfer(msgspec.Struct, eq=False):
    """A load that the inner connector was told to do."""

    started: float
    tokens: int
    start_token: int
    bytes: int
    asynchronous: bool
    in_flight: int
    """Loads when it began, this one included."""
    blocks: tuple[int, ...]
    """The engine's block ids from the prompt's first block on, to find failed ones; may be empty."""
    sources: Mapping[Kind, int]
    """Tokens by where the connector says it has them."""
    learns: bool
    """Whether its seconds say something of this connector: a hand-off also waits for its prefill."""
    books: bool
    """Whether it is the load that the request was admitted with; one after a preemption is not booked."""
    failed_at: int | None = None
    """The first block that failed, counted from the prompt's first."""


class Passing(msgspec.Struct, eq=False):
    """One request: the books' own record of it, and what the gate has to remember besides."""

    books: Request
    engine: EngineRequest
    fields: RequestFields
    arrived_wall: float
    hands_off: bool
    receives: bool
    asked_at: float | None = None
    answered: bool = False
    """Whether the inner connector has said what it has."""
    found_tokens: int = 0
    """What the inner connector offered beyond the local tokens when it was decided."""
    vetoed: bool = False
    admitted: bool = False
    """The engine has given it blocks once; from then on its books are closed to new decisions."""
    holds_slot: bool = False
    transfer: Transfer | None = None
    external_tokens: int = 0
    """Tokens that the inner connector brought, or brings."""
    runs: list[LoadedRun] = msgspec.field(default_factory=list)
    computed_tokens: int = 0
    prefill_seconds: float = 0.0
    first_step_at: float | None = None

    @property
    def rid(self) -> str:
        """The engine's id."""
        return self.books.rid


def arrival(
    engine: EngineRequest,
    *,
    rid: str,
    prompt_tokens: int,
    params: Mapping[str, Any] | None,
    now: float,
    wall: float,
    mode: str,
    settings: CacheSettings,
    data_class: str,
) -> Passing:
    """A request as it arrives: its arm, its own fields, and whether it carries a hand-off."""
    notes: list[str] = []
    try:
        fields = parse_request_fields(params)
    except ConfigError as error:
        # It asked for less, in words that cannot be read: it gets nothing that it might have refused.
        fields = RequestFields(max_load_tokens=0)
        notes.append(f"{error}; nothing is loaded for this request")
    arm = arm_of(
        mode,
        uniform(rid, "arm"),
        canary_share=settings.canary_share,
        holdout_share=settings.holdout_share,
    )
    hands_off = is_handoff(params)
    if hands_off:
        arm = Arm.OFF
        notes.append("a hand-off: passed on, not decided")
    books = Request(
        rid=rid,
        arrived=now,
        arm=arm,
        keys=(),
        namespace=b"",
        data_class=fields.data_class or data_class,
        tokens=prompt_tokens,
        explore=arm is Arm.ON and uniform(rid, "explore") < settings.explore_share,
        max_load_tokens=fields.max_load_tokens,
        deadline=None if fields.deadline_seconds is None else now + fields.deadline_seconds,
        notes=notes,
    )
    return Passing(
        books=books,
        engine=engine,
        fields=fields,
        arrived_wall=wall,
        hands_off=hands_off,
        receives=receives(params),
    )
