"""The engine's one thread: it joins requests, the forward pass, the local prefix cache and a shared cache.

Each turn it takes in what arrived, hears the shared cache, moves waiting requests on, computes one chunk of
one prompt and one token of every running request. With nothing to compute it sleeps until somebody calls
`wake`. Only this thread touches the model and the arena's table.

It knows no HTTP and no event loop: results go to listeners. What fails for one request ends that request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...cache.commands import Free, Loaded, News
from ...clock import Clock
from ...errors import EngineError, InputError, KvferryError
from ..cacheside import CacheSide, Compute, EngineLoad, LoadUpTo, Step
from ..failopen import FailOpen
from .arena import Arena
from .holdings import Holdings
from .mailbox import Mailbox
from .request import Ended, EngineRequest, Failed, Listener, Output, Phase, Progress, Written
from .runner import Runner
from .sampling import Chooser
from .span import Span
from .spans import SpanPool
from .text import Writer

__all__ = ["Scheduler"]

_log = logging.getLogger(__name__)

_LONGEST_SLEEP_SECONDS = 5.0
"""A wake-up that got lost must not stop the engine for good."""

_STOPPING = "the engine is stopping"


@dataclass(frozen=True, slots=True)
class _Abort:
    rid: str


@dataclass(frozen=True, slots=True)
class _Call:
    """Work for the engine's thread that is no request."""

    work: Callable[[], None]


class Scheduler:
    """Serves requests on a thread of its own, from `start` to `stop`.

    `chunk_tokens` is the most that one step computes of a prompt, `max_active` how many requests may hold
    KV of their own at once. With `warm_tokens`, memory for one request of that length is touched before.
    """

    def __init__(
        self,
        runner: Runner,
        arena: Arena,
        cache: CacheSide,
        clock: Clock,
        *,
        chunk_tokens: int = 256,
        max_active: int = 8,
        warm_tokens: int = 0,
    ) -> None:
        self._runner = runner
        self._cache = FailOpen(cache)
        self._clock = clock
        self._chunk_tokens = chunk_tokens
        self._max_active = max_active
        self._holdings = Holdings(arena)
        self._spans = SpanPool(runner, max_active)
        if warm_tokens > 0:
            self._spans.warm(warm_tokens)
        self._inbox: Mailbox[Progress | _Abort | _Call] = Mailbox()
        self._requests: dict[str, Progress] = {}
        """By id, in order of arrival."""
        self._restless = False
        """The last turn changed something, so another turn may have to follow at once."""
        self._thread = threading.Thread(target=self._run, name="kvferry-engine", daemon=True)
        self._cache.on_wake(self._inbox.wake)

    # Called from other threads.

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End every request as aborted, then the thread."""
        self._inbox.close(_STOPPING)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def submit(self, request: EngineRequest, listener: Listener) -> None:
        """Serve `request`; `listener` hears of it on the engine's thread, ending with Ended or Failed."""
        writer = Writer(self._text_of, request.sampling.stop)
        progress = Progress(request, listener, Chooser(request.sampling, request.rid), writer)
        if not self._inbox.put(progress):
            self._refuse(progress)

    def abort(self, rid: str) -> None:
        """End a request early; one that has ended already is left alone."""
        self._inbox.put(_Abort(rid))

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` on the engine's thread, between two steps."""
        self._inbox.put(_Call(work))

    def health(self) -> str | None:
        """None while requests are served."""
        if self._inbox.closed is not None:
            return self._inbox.closed
        return None if self._thread.is_alive() else "the engine's thread is not running"

    # The engine's thread.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            _log.exception("the engine's thread has failed")
            self._inbox.close(f"the engine's thread has failed: {error}")
            for progress in list(self._requests.values()):
                self._refuse(progress)
        finally:
            for item in self._inbox.take():
                if isinstance(item, Progress):
                    self._refuse(item)
            self._cache.close()

    def _turn(self) -> bool:
        """One round; False when it is time to stop."""
        busy = self._next_prompt() is not None or bool(self._decoding())
        items = self._inbox.take(0.0 if busy or self._restless else self._patience())
        heard = self._cache.news()
        for news in heard:
            self._hear(news)
        for item in items:
            self._receive(item)
        if self._inbox.closed is not None:
            for progress in list(self._requests.values()):
                self._end(progress, "abort")
            return False
        self._restless = busy or bool(items) or bool(heard)
        self._advance()
        if (first := self._next_prompt()) is not None:
            self._guard(first, self._prefill)
        for progress in self._decoding():
            self._guard(progress, self._decode)
        return True

    def _patience(self) -> float:
        deadline = self._cache.next_deadline()
        if deadline is None:
            return _LONGEST_SLEEP_SECONDS
        return min(_LONGEST_SLEEP_SECONDS, max(0.0, deadline - self._clock.now()))

    def _receive(self, item: Progress | _Abort | _Call) -> None:
        if isinstance(item, _Abort):
            if (progress := self._requests.get(item.rid)) is not None:
                self._end(progress, "abort")
        elif isinstance(item, _Call):
            try:
                item.work()
            except Exception:
                _log.exception("work on the engine's thread failed")
        else:
            self._admit(item)

    def _admit(self, progress: Progress) -> None:
        rid = progress.request.rid
        # Memory is lent under the request's id: an old loan must not be confused with a new one.
        if rid in self._requests or self._holdings.lends(rid):
            self._say(progress, Failed(InputError(f"request_id: {rid!r} is still in use; write another")))
            return
        self._requests[rid] = progress
        self._guard(progress, lambda admitted: self._cache.arrive(admitted.request))

    def _hear(self, news: News) -> None:
        if isinstance(news, Free):
            self._holdings.free(news.rid)
        elif isinstance(news, Loaded):
            progress = self._requests.get(news.rid)
            if progress is not None and progress.phase is Phase.LOADING:
                self._holdings.loaded(progress, news.end_block, news.safe)
                progress.phase = Phase.READY
        # Again needs nothing: whoever waits is asked at every turn.

    def _advance(self) -> None:
        """Move requests that wait for a place or for an answer."""
        active = sum(progress.phase is not Phase.QUEUED for progress in self._requests.values())
        for progress in list(self._requests.values()):
            if progress.phase is Phase.QUEUED and active < self._max_active:
                active += 1
                progress.phase = Phase.ASKING
            if progress.phase is Phase.ASKING:
                self._guard(progress, self._ask)

    def _ask(self, progress: Progress) -> None:
        # What another request has loaded or computed while this one waited is not loaded again.
        self._holdings.match(progress)
        rid, local = progress.request.rid, self._holdings.local_tokens(progress)
        answer = self._cache.ask(rid, local, self._engine_load(progress))
        if isinstance(answer, Compute):
            progress.phase = Phase.READY
        elif isinstance(answer, LoadUpTo):
            memory = self._holdings.reserve(progress, answer.end_block)
            if memory is None:
                _log.warning("%s: no memory to load up to block %d; computing", rid, answer.end_block)
                progress.phase = Phase.READY
            else:
                progress.phase = Phase.LOADING
                self._cache.begin(rid, answer.end_block, memory)

    def _next_prompt(self) -> Progress | None:
        """The prompt in progress, or else the first that is ready."""
        ready = None
        for progress in self._requests.values():
            if progress.phase is Phase.PREFILLING:
                return progress
            if ready is None and progress.phase is Phase.READY:
                ready = progress
        return ready

    def _decoding(self) -> list[Progress]:
        return [progress for progress in self._requests.values() if progress.phase is Phase.DECODING]

    def _begin_prefill(self, progress: Progress) -> Span:
        """Copy what the local cache holds by now: other requests may have filled it meanwhile."""
        request = progress.request
        if self._holdings.match(progress) and not progress.loaded_blocks:
            local = self._holdings.local_tokens(progress)
            self._cache.ask(request.rid, local, self._engine_load(progress))
        span = progress.span = self._spans.take(request.prompt_tokens + request.sampling.max_tokens)
        self._holdings.gather(progress)
        progress.cached_tokens = span.length
        progress.phase = Phase.PREFILLING
        return span

    def _prefill(self, progress: Progress) -> None:
        """One chunk; chunks end at multiples of the chunk size, wherever the cached prefix ends."""
        span = progress.span or self._begin_prefill(progress)
        start = span.length
        stop = min((start // self._chunk_tokens + 1) * self._chunk_tokens, progress.request.prompt_tokens)
        began = self._clock.now()
        logits = self._runner.prefill_chunk(span, progress.request.token_ids[start:stop])
        self._report(progress, "prefill", stop - start, start, began)
        if stop == progress.request.prompt_tokens:
            progress.phase = Phase.DECODING
            self._emit(progress, progress.chooser.choose(logits))
            if progress.request.rid in self._requests:
                self._keep(progress)

    def _keep(self, progress: Progress) -> None:
        """Offer the prompt's KV to both caches: after the first token, since nobody waits for it."""
        if progress.kept:
            return
        progress.kept = True
        memory = self._holdings.keep(progress)
        if memory is not None and self._cache.computed(
            progress.request.rid, self._holdings.local_tokens(progress), True, memory
        ):
            self._holdings.lend_kept(progress)
        else:
            self._holdings.let_go(progress)

    def _decode(self, progress: Progress) -> None:
        span = progress.span
        if span is None:
            raise EngineError(f"{progress.request.rid}: decoding without memory")
        start, began = span.length, self._clock.now()
        logits = self._runner.decode(span, progress.generated[-1])
        self._report(progress, "decode", 1, start, began)
        self._emit(progress, progress.chooser.choose(logits))

    def _emit(self, progress: Progress, token: int) -> None:
        """Write one token, and end the request where it ends."""
        sampling = progress.request.sampling
        progress.generated.append(token)
        if progress.first_token_seconds is None:
            progress.first_token_seconds = self._clock.now()
        if token in self._runner.stop_ids and not sampling.ignore_eos:
            self._say(progress, Written(progress.writer.flush(), (token,)))
            self._end(progress, "stop")
            return
        text = progress.writer.add(token)
        last = len(progress.generated) >= sampling.max_tokens
        if last and not progress.writer.stopped:
            text += progress.writer.flush()
        self._say(progress, Written(text, (token,)))
        if progress.writer.stopped:
            self._end(progress, "stop")
        elif last:
            self._end(progress, "length")

    def _end(self, progress: Progress, reason: str, error: KvferryError | None = None) -> None:
        """The one way out: gives back all memory, closes the books, tells the listener."""
        request, first = progress.request, progress.first_token_seconds
        if progress.phase is Phase.DECODING and error is None:
            self._keep(progress)
        del self._requests[request.rid]
        self._holdings.let_go(progress)
        ttft = None if first is None else first - request.arrival_seconds
        decision = self._cache.finish(request.rid, error is not None or reason == "abort", ttft)
        if progress.span is not None:
            self._spans.give_back(progress.span)
            progress.span = None
        if error is not None:
            self._say(progress, Failed(error))
        else:
            ended = Ended(reason, tuple(progress.generated), progress.cached_tokens, decision, ttft)
            self._say(progress, ended)

    def _guard(self, progress: Progress, work: Callable[[Progress], None]) -> None:
        """What fails for one request ends that request, and no other."""
        if progress.request.rid not in self._requests:
            return
        try:
            work(progress)
        except Exception as error:
            _log.exception("request %s failed", progress.request.rid)
            if progress.request.rid in self._requests:
                self._end(progress, "error", _as_ours(error))

    def _refuse(self, progress: Progress) -> None:
        self._say(progress, Failed(EngineError(self._inbox.closed or _STOPPING)))

    def _say(self, progress: Progress, output: Output) -> None:
        try:
            progress.listener(output)
        except Exception:
            _log.exception("request %s: its listener failed", progress.request.rid)

    def _report(
        self, progress: Progress, kind: Literal["prefill", "decode"], tokens: int, context: int, began: float
    ) -> None:
        seconds = self._clock.now() - began
        phases = [other.phase for other in self._requests.values()]
        loading, decoding = phases.count(Phase.LOADING), phases.count(Phase.DECODING)
        self._cache.step(Step(progress.request.rid, kind, tokens, context, seconds, loading, decoding))

    def _engine_load(self, asking: Progress) -> EngineLoad:
        decoding = waiting = ahead = 0
        before = True
        for progress in self._requests.values():
            if progress is asking:
                before = False
            elif progress.phase is Phase.DECODING:
                decoding += 1
            else:
                waiting += 1
                if before or progress.phase is Phase.PREFILLING:
                    ahead += self._tokens_to_compute(progress)
        return EngineLoad(decoding, waiting, ahead, self._holdings.available)

    def _tokens_to_compute(self, progress: Progress) -> int:
        if progress.span is not None:
            return progress.request.prompt_tokens - progress.span.length
        held = self._holdings.local_tokens(progress) + self._holdings.loading_tokens(progress)
        return max(1, progress.request.prompt_tokens - held)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        return str(self._runner.tokenizer.decode(token_ids, skip_special_tokens=True))


def _as_ours(error: Exception) -> KvferryError:
    return error if isinstance(error, KvferryError) else EngineError(f"{type(error).__name__}: {error}")
