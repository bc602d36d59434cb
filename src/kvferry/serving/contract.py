"""What an engine must do to be served over HTTP. The server knows no more of an engine than this."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..config import RequestFields

__all__ = ["Controls", "End", "Engine", "Event", "Generation", "Piece", "Sampling"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens, and when to stop. Temperature 0 is greedy, the default here."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One request, as it came over HTTP and was checked."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    cache_salt: str | None = None
    fields: RequestFields = field(default_factory=RequestFields)


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of the answer, and the token ids behind it."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The last event of an answer."""

    reason: str
    """stop, length or abort."""
    token_ids: tuple[int, ...]
    """All generated ids."""
    cached_tokens: int
    """Prompt tokens whose KV was not computed for this request."""
    decision: Mapping[str, Any] | None
    """The cache's record of the request; None without a cache."""
    ttft_seconds: float | None
    """From arrival to the first token, on the engine's side."""


Event = Piece | End


class Engine(Protocol):
    """An engine behind the HTTP server. Methods run on its event loop and do not block, but where said."""

    @property
    def model(self) -> str:
        """What the model is called towards clients."""

    @property
    def max_tokens(self) -> int:
        """Longest prompt and answer together."""

    @property
    def vocabulary(self) -> int:
        """Token ids are 0 to one less than this."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Token ids of a chat, ready for the assistant's answer. Raises InputError."""

    def generate(self, request: Generation) -> AsyncGenerator[Event, None]:
        """Pieces, then one End. Closing the iterator early aborts the request. Raises KvferryError."""

    def health(self) -> str | None:
        """None while requests can be served, else what is wrong."""

    def reset_prefix_cache(self) -> int:
        """Forget the engine's own prefix cache; how many blocks it held. May block: called on a thread."""


@runtime_checkable
class Controls(Protocol):
    """What experiments may see and switch at run time, beside the OpenAI routes. Called on a thread."""

    def settings(self) -> Mapping[str, Any]:
        """Run-time switches and their values."""

    def change(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set some of them; the values afterwards. Raises InputError, and then changes nothing."""

    def decisions(self, since: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Records of finished requests from number `since` on, and the number to ask for next."""

    def metrics(self) -> bytes:
        """Prometheus text."""
