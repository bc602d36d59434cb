"""What the engine asks of a shared cache, and the cache that is not there.

The engine's thread makes every call, and none may block: whatever takes time is answered later, through
`news`. The cache calls the function given to `on_wake`, from any thread, when there is news or when `ask`
would answer something else, so that the engine sleeps without polling.

The life of a request, as the cache sees it:

    arrive     once, first. Hashes of the prompt's full blocks are known.
    ask        until it answers LoadUpTo or Compute. May be asked again after Compute, with a larger
               `local_tokens`, when another request has filled the local cache meanwhile: the engine
               computes whatever the answer, and the last `local_tokens` are the ones to book.
    begin      after LoadUpTo, once there is memory for blocks [local, end). If there is none after all,
               the engine computes, and `begin` is not called.
    (news)     Loaded(rid, end_block, safe) ends the load. Blocks before `end_block` are whole and verified.
               With `safe` the rest of the memory is the engine's again; without, only at Free.
    computed   the prompt's KV is in the memory that is given, at most once. True lends that memory until
               Free(rid); False gives it back at once.
    finish     once, last, also for aborted and failed requests; the answer is the decision record. An
               unfinished load is cancelled; memory that it may still write to comes back with Free(rid).

Free(rid) may come before or after `finish`, and also for a request that has nothing lent: it is ignored.
It speaks of everything that was lent for the request until the moment `news` returns it; so a cache must
not lend anew in `computed` while a Free for that request still waits to be fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..cache.commands import BlockMemory, News
from ..config import RequestFields

__all__ = [
    "Adapter",
    "Answer",
    "CacheRequest",
    "CacheSide",
    "Compute",
    "EngineLoad",
    "LoadUpTo",
    "NoCache",
    "Pass",
    "Step",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Adapter:
    """What was added to the model's weights for a request."""

    name: str
    version: str


class CacheRequest(Protocol):
    """What the cache has to know of a request."""

    @property
    def rid(self) -> str: ...
    @property
    def hashes(self) -> Sequence[bytes]:
        """Of every full block of the prompt, in order."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def fields(self) -> RequestFields: ...
    @property
    def adapter(self) -> Adapter | None: ...


@dataclass(frozen=True, slots=True)
class Wait:
    """Not known yet; ask again after the wake-up."""


@dataclass(frozen=True, slots=True)
class LoadUpTo:
    """Load blocks up to `end_block`, counted from the prompt's first block."""

    end_block: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Nothing to load, or not worth it."""


Answer = Wait | LoadUpTo | Compute


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is at the moment of an `ask`; the asking request is not counted."""

    decoding_requests: int
    waiting_requests: int
    """Not decoding yet: queued, asking, loading or in prefill."""
    prefill_tokens_ahead: int
    """Prompt tokens of other requests that will be computed before this one's."""
    free_blocks: int
    """Blocks of memory that a load could get now."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass, as it was timed."""

    rid: str
    kind: Literal["prefill", "decode"]
    tokens: int
    context: int
    """Tokens before these."""
    seconds: float
    loads_in_flight: int
    """Requests that were loading meanwhile."""
    decoding_requests: int


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass over several requests at once, as it was timed."""

    seconds: float
    prefills: Sequence[tuple[str, int, int]]
    """Request, prompt tokens that were computed for it, tokens before these."""
    decodes: int
    """Requests that decoded one token, or a few, in it."""


class CacheSide(Protocol):
    """A shared cache beside one engine. See the module's text for the order of calls."""

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Called once, before everything else: `wake` is thread-safe and cheap."""

    def arrive(self, request: CacheRequest) -> None: ...

    def ask(self, rid: str, local_tokens: int, load: EngineLoad) -> Answer:
        """Idempotent and cheap. `local_tokens` are whole blocks that the engine holds itself."""

    def begin(self, rid: str, end_block: int, memory: BlockMemory) -> None: ...

    def news(self) -> Sequence[News]:
        """What has happened since the last call; deadlines that have passed are acted upon here."""

    def step(self, step: Step) -> None:
        """A timing, for the estimates."""

    def computed(self, rid: str, tokens: int, clean: bool, source: BlockMemory) -> bool:
        """KV of the prompt's first `tokens` (whole blocks) lies in `source`; True keeps it lent."""

    def finish(self, rid: str, aborted: bool, ttft_seconds: float | None) -> dict[str, Any] | None: ...

    def next_deadline(self) -> float | None:
        """When `news` must be called at the latest, on the engine's clock."""

    def broke(self, cause: str) -> None:
        """One of these calls raised, for `cause`: the engine goes on without this cache, and closes it."""

    def close(self) -> None:
        """The engine has stopped: nothing will be asked any more."""


class NoCache:
    """No shared cache: the engine's own prefix cache is all there is."""

    def on_wake(self, wake: Callable[[], None]) -> None:
        pass

    def arrive(self, request: CacheRequest) -> None:
        pass

    def ask(self, rid: str, local_tokens: int, load: EngineLoad) -> Answer:
        return Compute()

    def begin(self, rid: str, end_block: int, memory: BlockMemory) -> None:
        raise RuntimeError(f"{rid}: there is nothing to load from")

    def news(self) -> Sequence[News]:
        return ()

    def step(self, step: Step) -> None:
        pass

    def computed(self, rid: str, tokens: int, clean: bool, source: BlockMemory) -> bool:
        return False

    def finish(self, rid: str, aborted: bool, ttft_seconds: float | None) -> dict[str, Any] | None:
        return None

    def next_deadline(self) -> float | None:
        return None

    def broke(self, cause: str) -> None:
        pass

    def close(self) -> None:
        pass
