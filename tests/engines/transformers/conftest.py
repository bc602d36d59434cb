"""A tiny random Llama with a byte tokenizer, and a shared cache whose every move a test decides."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HAVE_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None
collect_ignore_glob = [] if HAVE_TORCH else ["test_*.py"]

if HAVE_TORCH:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from kvferry.cache.commands import BlockMemory, Loaded, News
    from kvferry.clock import MonotonicClock
    from kvferry.engines.cacheside import (
        Answer,
        CacheSide,
        Compute,
        EngineLoad,
        LoadUpTo,
        NoCache,
    )
    from kvferry.engines.transformers.arena import Arena
    from kvferry.engines.transformers.request import Ended, EngineRequest, Failed, Output
    from kvferry.engines.transformers.runner import Runner
    from kvferry.engines.transformers.scheduler import Scheduler
    from kvferry.keys.blocks import block_hashes
    from kvferry.serving.contract import Sampling

BLOCK = 8
VOCABULARY = 260


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=257,
        bos_token_id=256,
        pad_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<s>", "</s>", "<user>", "<bot>"]
    words = {token: index for index, token in enumerate(alphabet + specials)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>")
    wrapped.chat_template = (
        "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}<bot>"
    )
    wrapped.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def runner(tiny_folder: Path) -> Runner:
    return Runner(tiny_folder, block_tokens=BLOCK, threads=1)


@pytest.fixture
def arena(runner: Runner) -> Arena:
    return Arena(16, runner.layout)


class Heard:
    """Collects what an engine says of one request."""

    def __init__(self) -> None:
        self.outputs: queue.Queue[Output] = queue.Queue()

    def __call__(self, output: Output) -> None:
        self.outputs.put(output)

    def wait(self, seconds: float = 20.0) -> Ended | Failed:
        while True:
            output = self.outputs.get(timeout=seconds)
            if isinstance(output, Ended | Failed):
                return output

    def ended(self) -> Ended:
        last = self.wait()
        assert isinstance(last, Ended), last
        return last


class Stack:
    """A scheduler with its arena and cache, started."""

    def __init__(self, runner: Runner, cache: CacheSide, blocks: int = 64, **options: Any) -> None:
        self.runner = runner
        self.arena = Arena(blocks, runner.layout)
        self.cache = cache
        self.scheduler = Scheduler(runner, self.arena, cache, MonotonicClock(), **options)
        self.scheduler.start()

    def submit(self, rid: str, prompt: Sequence[int], *, salt: str | None = None, **sampling: Any) -> Heard:
        heard = Heard()
        asked = Sampling(**{"max_tokens": 4, "ignore_eos": True, **sampling})
        hashes = block_hashes(prompt, BLOCK, salt=salt)
        request = EngineRequest(rid, tuple(prompt), hashes, asked, MonotonicClock().now())
        self.scheduler.submit(request, heard)
        return heard

    def run(self, rid: str, prompt: Sequence[int], **options: Any) -> Ended:
        return self.submit(rid, prompt, **options).ended()

    def on_engine(self, look: Callable[[], Any]) -> Any:
        """The value of `look()` on the engine's thread, between two steps."""
        answer: queue.Queue[Any] = queue.Queue()
        self.scheduler.call(lambda: answer.put(look()))
        return answer.get(timeout=20)


@pytest.fixture
def stacks(runner: Runner) -> Iterator[Callable[..., Stack]]:
    started: list[Stack] = []

    def make(cache: CacheSide | None = None, **options: Any) -> Stack:
        started.append(Stack(runner, NoCache() if cache is None else cache, **options))
        return started[-1]

    yield make
    for stack in started:
        stack.scheduler.stop()


class PoolCache:
    """A `CacheSide` over a dict of blocks. Loads end at once unless `hold`; tests may then call `deliver`."""

    def __init__(
        self, pool: dict[bytes, bytes] | None = None, *, hold: bool = False, lend: bool = False
    ) -> None:
        self.pool = {} if pool is None else pool
        self.hold = hold
        self.lend = lend
        self.calls: list[tuple[Any, ...]] = []
        self.requests: dict[str, EngineRequest] = {}
        self.memory: dict[str, tuple[BlockMemory, int, int]] = {}
        self.local: dict[str, int] = {}
        self.begun = queue.Queue[str]()
        self.coming: list[News] = []
        self.wake: Callable[[], None] = lambda: None
        self.steps: list[Any] = []
        self.closed = False

    def on_wake(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def arrive(self, request: EngineRequest) -> None:
        self.calls.append(("arrive", request.rid))
        self.requests[request.rid] = request

    def ask(self, rid: str, local_tokens: int, load: EngineLoad) -> Answer:
        self.calls.append(("ask", rid, local_tokens, load))
        request = self.requests[rid]
        local = self.local[rid] = local_tokens // BLOCK
        end = local
        while end < (request.prompt_tokens - 1) // BLOCK and request.hashes[end] in self.pool:
            end += 1
        end = min(end, local + load.free_blocks)
        return LoadUpTo(end) if end > local else Compute()

    def begin(self, rid: str, end_block: int, memory: BlockMemory) -> None:
        self.calls.append(("begin", rid, end_block))
        self.memory[rid] = (memory, self.local[rid], end_block)
        self.begun.put(rid)
        if not self.hold:
            self.deliver(rid)

    def deliver(self, rid: str, blocks: int | None = None, *, safe: bool = True) -> None:
        """Write `blocks` (None: all) into the memory of the load, then say that it has ended."""
        memory, start, stop = self.memory[rid]
        end = stop if blocks is None else start + blocks
        hashes = self.requests[rid].hashes
        for view, block_hash in zip(memory.views(start, end), hashes[start:end], strict=True):
            view[:] = self.pool[block_hash]
        self.tell(Loaded(rid, end, safe))

    def tell(self, news: News) -> None:
        self.coming.append(news)
        self.wake()

    def news(self) -> Sequence[News]:
        heard, self.coming = self.coming, []
        return heard

    def step(self, step: Any) -> None:
        self.steps.append(step)

    def computed(self, rid: str, tokens: int, clean: bool, source: BlockMemory) -> bool:
        self.calls.append(("computed", rid, tokens, clean))
        request = self.requests[rid]
        views = source.views(0, tokens // BLOCK)
        self.pool.update({key: bytes(view) for key, view in zip(request.hashes, views, strict=False)})
        return self.lend

    def finish(self, rid: str, aborted: bool, ttft_seconds: float | None) -> dict[str, Any] | None:
        self.calls.append(("finish", rid, aborted))
        return {"rid": rid, "aborted": aborted}

    def broke(self, cause: str) -> None:
        self.calls.append(("broke", cause))

    def next_deadline(self) -> float | None:
        return None

    def close(self) -> None:
        self.closed = True

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == name]


@pytest.fixture
def pool_cache() -> type[PoolCache]:
    return PoolCache


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, 256, (tokens,), generator=generator)]


@pytest.fixture
def prompts() -> Callable[..., list[int]]:
    return prompt_of
