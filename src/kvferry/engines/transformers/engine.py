"""The embedded engine as the HTTP server sees it: a tokenizer in front, a scheduler behind asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ...clock import Clock
from ...errors import EngineError, InputError
from ...keys.blocks import block_hashes
from ...serving.contract import End, Event, Generation, Piece
from .arena import Arena
from .request import Ended, EngineRequest, Failed, Output
from .runner import Runner
from .scheduler import Scheduler

__all__ = ["TransformersEngine"]

_RESET_SECONDS = 30.0


class TransformersEngine:
    """Joins a runner and its scheduler to `serving.contract.Engine`."""

    def __init__(self, runner: Runner, arena: Arena, scheduler: Scheduler, clock: Clock) -> None:
        self._runner = runner
        self._arena = arena
        self._scheduler = scheduler
        self._clock = clock

    @property
    def model(self) -> str:
        return self._runner.name

    @property
    def max_tokens(self) -> int:
        return self._runner.max_tokens

    @property
    def vocabulary(self) -> int:
        return self._runner.vocabulary

    def encode(self, text: str) -> list[int]:
        return list(self._runner.tokenizer.encode(text))

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        tokenizer = self._runner.tokenizer
        if not tokenizer.chat_template:
            raise InputError(f"{self.model} has no chat template; use /v1/completions")
        try:
            text = tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template is the model author's program: it may raise anything
            raise InputError(f"messages: the model's chat template refuses them: {error}") from error
        # The template writes the special tokens itself.
        return list(tokenizer.encode(text, add_special_tokens=False))

    async def generate(self, request: Generation) -> AsyncGenerator[Event, None]:
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._scheduler.submit(
            EngineRequest(
                rid=request.request_id,
                token_ids=request.prompt,
                hashes=block_hashes(request.prompt, self._arena.layout.block_tokens, salt=request.cache_salt),
                sampling=request.sampling,
                arrival_seconds=self._clock.now(),
                fields=request.fields,
                cache_salt=request.cache_salt,
            ),
            lambda output: _post(loop, outputs, output),
        )
        over = False
        try:
            while not over:
                output = await outputs.get()
                over = isinstance(output, Ended | Failed)
                if isinstance(output, Failed):
                    raise output.error
                if isinstance(output, Ended):
                    yield End(
                        output.reason,
                        output.token_ids,
                        output.cached_tokens,
                        output.decision,
                        output.ttft_seconds,
                    )
                else:
                    yield Piece(output.text, output.token_ids)
        finally:
            if not over:
                self._scheduler.abort(request.request_id)

    def health(self) -> str | None:
        return self._scheduler.health()

    def reset_prefix_cache(self) -> int:
        """Waits for the step in progress; call it from a worker thread."""
        done = threading.Event()
        forgotten: list[int] = []

        def work() -> None:
            forgotten.append(self._arena.reset())
            done.set()

        self._scheduler.call(work)
        if not done.wait(_RESET_SECONDS):
            raise EngineError(f"the engine did not reset its prefix cache within {_RESET_SECONDS:g} s")
        return forgotten[0]


def _post(loop: asyncio.AbstractEventLoop, outputs: asyncio.Queue[Output], output: Output) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(outputs.put_nowait, output)
