"""One request inside the engine: what was asked, which never changes, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...config import RequestFields
from ...errors import KvferryError
from ...serving.contract import Sampling
from ..cacheside import Adapter
from .sampling import Chooser
from .span import Span
from .text import Writer

__all__ = ["Ended", "EngineRequest", "Failed", "Listener", "Output", "Phase", "Progress", "Written"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What was asked."""

    rid: str
    token_ids: tuple[int, ...]
    hashes: Sequence[bytes]
    """Of every full block of the prompt, in order."""
    sampling: Sampling
    arrival_seconds: float
    """On the engine's clock, when the request reached this process."""
    fields: RequestFields = field(default_factory=RequestFields)
    cache_salt: str | None = None

    adapter: Adapter | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.token_ids)


class Phase(Enum):
    """Where a request stands. A request moves down this list, and may end from anywhere."""

    QUEUED = "queued"
    """Arrived; all places for active requests are taken."""
    ASKING = "asking"
    """The shared cache has not said yet whether to load."""
    LOADING = "loading"
    READY = "ready"
    """Nothing more to wait for but the requests before it."""
    PREFILLING = "prefilling"
    DECODING = "decoding"


@dataclass(frozen=True, slots=True)
class Written:
    """New text, and the ids behind it (text may lag behind ids, never the other way round)."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The last word on a request that was not failed."""

    reason: str
    """stop (end of text, or a stop string), length or abort."""
    token_ids: tuple[int, ...]
    cached_tokens: int
    """Prompt tokens whose KV was not computed for this request."""
    decision: dict[str, object] | None
    ttft_seconds: float | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not serve the request; others go on."""

    error: KvferryError


Output = Written | Ended | Failed
Listener = Callable[[Output], None]
"""Called on the engine's thread: must not block, must not raise."""


@dataclass(slots=True, eq=False)
class Progress:
    """How far a request has come. Touched by the engine's thread alone."""

    request: EngineRequest
    listener: Listener
    chooser: Chooser
    writer: Writer
    phase: Phase = Phase.QUEUED
    rows: list[int] = field(default_factory=list)
    """Arena rows of the prompt's leading blocks, in order, each with this request's reference."""
    loading_rows: list[int] = field(default_factory=list)
    """Rows behind `rows` that a load may be writing to."""
    loaded_blocks: int = 0
    kept: bool = False
    """The prompt's KV has been offered to the caches."""
    span: Span | None = None
    cached_tokens: int = 0
    generated: list[int] = field(default_factory=list)
    first_token_seconds: float | None = None
