"""Spans that are used again: with pages already touched, a cached prefix is copied at memory speed."""

from __future__ import annotations

from .runner import Runner
from .span import Span

__all__ = ["SpanPool"]

_GRAIN_TOKENS = 512


class SpanPool:
    """At most `size` idle spans. Used by one thread."""

    def __init__(self, runner: Runner, size: int) -> None:
        self._runner = runner
        self._size = size
        self._idle: list[Span] = []

    def warm(self, tokens: int) -> None:
        """Have one idle span for `tokens` with its pages touched, so that the first request does not pay."""
        span = self.take(tokens)
        span.kv.zero_()
        self.give_back(span)

    def take(self, tokens: int) -> Span:
        """An empty span for at least `tokens`: the smallest idle one that fits, or a new one."""
        fitting = [span for span in self._idle if span.capacity >= tokens]
        if fitting:
            span = min(fitting, key=lambda idle: idle.capacity)
            self._idle.remove(span)
            return span
        return self._runner.new_span(-(-tokens // _GRAIN_TOKENS) * _GRAIN_TOKENS)

    def give_back(self, span: Span) -> None:
        """Empty it and keep it; of too many, the smallest is let go."""
        span.length = 0
        self._idle.append(span)
        if len(self._idle) > self._size:
            self._idle.remove(min(self._idle, key=lambda idle: idle.capacity))
