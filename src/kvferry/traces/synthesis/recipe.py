"""What a synthetic trace is made of: seed, arrivals and classes of prompts.

Owns the recipe, its checks, the ready-made ones and reading one from JSON.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from ...errors import ConfigError

__all__ = ["PRESETS", "PromptClass", "Recipe", "read_recipe"]


_BURSTIEST = 30.0
"""Beyond, nearly all gaps between sessions are 0, and all of them are under way at once."""
_MOST_TOKENS = 1 << 24
_WIDEST = 4.0
"""A sigma with which one draw in a hundred is ten thousand times the median."""


class PromptClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One class of sessions. A prompt: system tokens, a prefix of the class's pool, its own content."""

    name: str
    share: float = 1.0
    """Of all sessions, relative to the other classes'."""
    kind: Literal["single", "chat", "agent"] = "single"
    """single: one request. chat: grows by turns. agent: grows by tool calls, and may start subagents."""
    system_tokens: int = 0
    """Equal in every prompt of the class."""
    prefixes: int = 1
    """Prefixes (documents, examples) in the pool behind the system tokens."""
    prefix_tokens: int = 0
    """Median length of a prefix."""
    zipf: float = 1.0
    """Popularity of the pool's i-th prefix is i ** -zipf; 0: all alike."""
    content_tokens: int = 256
    """Median of what each turn adds: a question, or a tool's result."""
    output_tokens: int = 128
    """Median of an answer."""
    spread: float = 0.6
    """Sigma of the lognormal lengths; 0: all alike."""
    turns: float = 6.0
    """Mean number of requests of a chat or an agent (geometric)."""
    pause_seconds: float = 20.0
    """Mean pause before the next turn or tool result (exponential)."""
    subagents: float = 0.0
    """Probability that an agent's step starts a subagent, for which it waits."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole trace. It ends at whichever of `requests`, `seconds` and `accesses` comes first."""

    classes: tuple[PromptClass, ...]
    seed: int = 0
    block_tokens: int = 16
    sessions_per_second: float = 1.0
    burstiness: float = 1.0
    """Coefficient of variation of the times between sessions (gamma): 1 is Poisson, more is bursts."""
    context_tokens: int = 131_072
    """A session ends before its prompt grows beyond this."""
    requests: int | None = None
    seconds: float | None = None
    accesses: int | None = None
    """Block references."""

    def __post_init__(self) -> None:
        if not self.classes:
            raise ConfigError("recipe: classes is empty; write at least one")
        if self.requests is None and self.seconds is None and self.accesses is None:
            raise ConfigError("recipe: nothing ends this trace; set requests, seconds or accesses")
        for name in ("block_tokens", "context_tokens", "requests", "accesses"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"recipe: {name} is {value}; write 1 or more")
        for name in ("sessions_per_second", "burstiness", "seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"recipe: {name} is {value}; write a number above 0")
        if self.burstiness > _BURSTIEST:
            raise ConfigError(f"recipe: burstiness is {self.burstiness}; write at most {_BURSTIEST:g}")
        if self.seed < 0:
            raise ConfigError(f"recipe: seed is {self.seed}; write 0 or more")
        for one in self.classes:
            _check(one)
        if not sum(one.share for one in self.classes):
            raise ConfigError("recipe: every class has share 0; give one of them more")
        names = [one.name for one in self.classes]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"recipe: two classes are called {name!r}")


def _check(one: PromptClass) -> None:
    for name, least in (
        ("share", 0.0), ("system_tokens", 0), ("prefixes", 1), ("prefix_tokens", 0), ("zipf", 0.0),
        ("content_tokens", 1), ("output_tokens", 0), ("spread", 0.0), ("turns", 1.0), ("pause_seconds", 0.0),
        ("subagents", 0.0),
    ):  # fmt: skip
        value = getattr(one, name)
        if not least <= value < math.inf:
            raise ConfigError(f"recipe: class {one.name!r}: {name} is {value}; write {least} or more")
    for name in ("system_tokens", "prefix_tokens", "content_tokens", "output_tokens"):
        if getattr(one, name) > _MOST_TOKENS:
            raise ConfigError(
                f"recipe: class {one.name!r}: {name} is {getattr(one, name)}; write at most {_MOST_TOKENS:,}"
            )
    if one.spread > _WIDEST:
        raise ConfigError(f"recipe: class {one.name!r}: spread is {one.spread}; write at most {_WIDEST:g}")
    if one.subagents > 0.9:
        raise ConfigError(f"recipe: class {one.name!r}: subagents is {one.subagents}; write at most 0.9")
    if one.prefixes > 10_000_000:
        raise ConfigError(f"recipe: class {one.name!r}: {one.prefixes} prefixes; write at most 10,000,000")


_CHAT = PromptClass(
    name="chat",
    kind="chat",
    system_tokens=1_200,
    content_tokens=180,
    output_tokens=320,
    turns=5,
    pause_seconds=45,
)
_DOCUMENTS = PromptClass(
    name="documents", system_tokens=300, prefixes=400, prefix_tokens=12_000, zipf=1.1, content_tokens=60,
    output_tokens=200,
)  # fmt: skip
_AGENTS = PromptClass(
    name="agents", kind="agent", system_tokens=9_000, content_tokens=900, output_tokens=250, turns=14,
    pause_seconds=6, subagents=0.06,
)  # fmt: skip
_ONCE = PromptClass(name="once", content_tokens=3_000, output_tokens=150, spread=1.0)

PRESETS: dict[str, tuple[PromptClass, ...]] = {
    "chat": (_CHAT,),
    "documents": (_DOCUMENTS,),
    "agents": (_AGENTS,),
    "mixed": tuple(
        msgspec.structs.replace(one, share=share)
        for one, share in ((_CHAT, 0.45), (_DOCUMENTS, 0.25), (_AGENTS, 0.1), (_ONCE, 0.2))
    ),
}
"""Classes to begin with. They are made up: no measured traffic stands behind them."""


def read_recipe(path: Path) -> Recipe:
    """A recipe from a JSON file. Raises `ConfigError` that names the field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read this file: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
