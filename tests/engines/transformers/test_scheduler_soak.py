"""Random arrivals, aborts, loads that end early or unsafely, and stores that let go late.

Whatever the order: every answer is the one of a cold engine, and all memory comes back.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.cache.commands import Free
from kvferry.engines.transformers.request import Ended


class Chance(threading.Thread):
    """Ends loads and stores from another thread, when and how chance says."""

    def __init__(self, cache: Any, seed: int) -> None:
        super().__init__(daemon=True)
        self.cache = cache
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.ended: set[str] = set()
        """Requests whose load writes nothing any more."""

    def run(self) -> None:
        while not self.over.is_set():
            try:
                rid = self.cache.begun.get(timeout=0.005)
            except Exception:
                continue
            time.sleep(self.random.random() * 0.01)
            _, start, stop = self.cache.memory[rid]
            blocks = self.random.randint(0, stop - start)
            self.cache.deliver(rid, blocks, safe=self.random.random() < 0.6)
            self.ended.add(rid)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_gives_the_same_tokens_and_all_memory_back(
    stacks: Callable[..., Any], prompts: Callable[..., list[int]], pool_cache: Any, seed: int
) -> None:
    chance = random.Random(seed)
    prefixes = [prompts(chance.randint(20, 120), index) for index in range(3)]
    asked = [[*chance.choice(prefixes), *prompts(chance.randint(1, 20), 100 + index)] for index in range(24)]
    cold = stacks()
    pool: dict[bytes, bytes] = {}
    stacks(pool_cache(pool)).run("fill", asked[0])
    stack = stacks(
        pool_cache(pool, hold=True, lend=True),
        blocks=24,
        chunk_tokens=chance.choice([4, 16, 64]),
        max_active=3,
    )
    ending = Chance(stack.cache, seed)
    ending.start()
    heard = []
    for index, prompt in enumerate(asked):
        heard.append(stack.submit(f"r{index}", prompt))
        if chance.random() < 0.2:
            stack.scheduler.abort(f"r{chance.randint(0, index)}")
        if chance.random() < 0.5:
            for rid in [call[1] for call in stack.cache.named("finish")]:
                if rid not in stack.cache.memory or rid in ending.ended:
                    stack.cache.tell(Free(rid))
        time.sleep(chance.random() * 0.004)
    for index, (one, prompt) in enumerate(zip(heard, asked, strict=True)):
        ended = one.wait()
        assert isinstance(ended, Ended)
        if ended.reason != "abort":
            assert ended.token_ids == cold.run(f"c{index}", prompt).token_ids
    ending.over.set()
    ending.join(5)
    for index in range(len(asked)):
        stack.cache.tell(Free(f"r{index}"))
    for _ in range(200):
        if stack.on_engine(lambda: stack.arena.available) == 24:
            break
        time.sleep(0.01)
    assert stack.on_engine(lambda: stack.arena.available) == 24
