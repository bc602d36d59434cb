"""A shared cache that may break without taking the engine with it.

The first exception from the cache behind it is logged, and from then on the engine runs as if there were no
cache. Memory that the broken cache may still write to, or read from, is never used again: a leak is better
than a wrong token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ..cache.commands import BlockMemory, Loaded, News
from .cacheside import Answer, CacheRequest, CacheSide, Compute, EngineLoad, NoCache, Step

__all__ = ["FailOpen"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


class FailOpen:
    """A `CacheSide` that never raises."""

    def __init__(self, cache: CacheSide) -> None:
        self._cache: CacheSide = cache
        self._loading: set[str] = set()
        self.cause: str | None = None
        """Why there is no cache any more; None while there is one."""

    def on_wake(self, wake: Callable[[], None]) -> None:
        self._try(lambda: self._cache.on_wake(wake), None)

    def arrive(self, request: CacheRequest) -> None:
        self._try(lambda: self._cache.arrive(request), None)

    def ask(self, rid: str, local_tokens: int, load: EngineLoad) -> Answer:
        compute: Answer = Compute()
        return self._try(lambda: self._cache.ask(rid, local_tokens, load), compute)

    def begin(self, rid: str, end_block: int, memory: BlockMemory) -> None:
        self._loading.add(rid)
        self._try(lambda: self._cache.begin(rid, end_block, memory), None)

    def news(self) -> Sequence[News]:
        nothing: Sequence[News] = ()
        heard = self._try(self._cache.news, nothing)
        if self.cause is not None:
            ended = [Loaded(rid, 0, safe=False) for rid in sorted(self._loading)]
            self._loading.clear()
            return ended
        self._loading.difference_update(news.rid for news in heard if isinstance(news, Loaded))
        return heard

    def step(self, step: Step) -> None:
        self._try(lambda: self._cache.step(step), None)

    def computed(self, rid: str, tokens: int, clean: bool, source: BlockMemory) -> bool:
        return self._try(lambda: self._cache.computed(rid, tokens, clean, source), True)

    def finish(self, rid: str, aborted: bool, ttft_seconds: float | None) -> dict[str, Any] | None:
        self._loading.discard(rid)
        return self._try(lambda: self._cache.finish(rid, aborted, ttft_seconds), None)

    def next_deadline(self) -> float | None:
        return self._try(self._cache.next_deadline, None)

    def broke(self, cause: str) -> None:
        """Nothing is above that could break this one."""

    def close(self) -> None:
        self._try(self._cache.close, None)

    def _try(self, call: Callable[[], T], otherwise: T) -> T:
        """The answer of the cache, or `otherwise` in the one call that finds it broken."""
        try:
            return call()
        except Exception as error:  # whatever it is, the engine must go on
            _log.exception("the shared cache has failed; the engine goes on without it")
            broken, self._cache = self._cache, NoCache()
            self.cause = f"{type(error).__name__}: {error}"
            self._last(partial(broken.broke, self.cause))
            self._last(broken.close)
            return otherwise

    @staticmethod
    def _last(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            _log.exception("the failed cache could not be closed")
