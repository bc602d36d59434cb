"""SmolLM2-135M itself: it must speak sense, and its cached KV must change nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvferry.clock import MonotonicClock
from kvferry.config import cache_dir
from kvferry.engines.cacheside import NoCache
from kvferry.engines.transformers.arena import Arena
from kvferry.engines.transformers.request import EngineRequest
from kvferry.engines.transformers.resolve import DEFAULT_MODEL, resolve_model
from kvferry.engines.transformers.runner import Runner
from kvferry.engines.transformers.scheduler import Scheduler
from kvferry.keys.blocks import block_hashes
from kvferry.serving.contract import Sampling

pytestmark = [pytest.mark.real_model, pytest.mark.slow]


@pytest.fixture(scope="module")
def smol() -> Runner:
    folder: Path = resolve_model(DEFAULT_MODEL, cache_dir())
    return Runner(folder, name=DEFAULT_MODEL, threads=1)


@pytest.fixture
def ask(smol: Runner) -> Iterator[Callable[..., Any]]:
    started: list[Scheduler] = []

    def run(rid: str, prompt: list[int], tokens: int, *, fresh: bool) -> Any:
        if fresh or not started:
            started.append(Scheduler(smol, Arena(32, smol.layout), NoCache(), MonotonicClock()))
            started[-1].start()
        outputs: list[Any] = []
        done = threading.Event()

        def listen(output: Any) -> None:
            outputs.append(output)
            if not hasattr(output, "text"):
                done.set()

        hashes = block_hashes(prompt, smol.layout.block_tokens)
        request = EngineRequest(rid, tuple(prompt), hashes, Sampling(tokens), MonotonicClock().now())
        started[-1].submit(request, listen)
        assert done.wait(120)
        return outputs[-1]

    yield run
    for scheduler in started:
        scheduler.stop()


def test_the_capital_of_france(smol: Runner, ask: Callable[..., Any]) -> None:
    prompt = list(smol.tokenizer.encode("The capital of France is"))
    assert "Paris" in smol.tokenizer.decode(ask("a", prompt, 4, fresh=True).token_ids)


def test_a_local_hit_of_real_text_changes_no_token(smol: Runner, ask: Callable[..., Any]) -> None:
    text = (Path(torch.__file__).parent / "functional.py").read_text()
    prompt = list(smol.tokenizer.encode(text))[:500]
    cold = ask("a", prompt, 12, fresh=True)
    hit = ask("b", prompt, 12, fresh=False)
    assert (hit.token_ids, hit.cached_tokens) == (cold.token_ids, 480)
