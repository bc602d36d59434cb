"""A tiny random Llama, and both roles over it in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HAVE_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None
collect_ignore_glob = [] if HAVE_TORCH else ["test_*.py"]

sys.path.insert(0, str(Path(__file__).parents[2] / "e2e"))

if HAVE_TORCH:
    import torch

    from kvferry.clock import MonotonicClock
    from kvferry.config import load
    from kvferry.engines.transformers.runner import Runner
    from kvferry.gate.facts import GateTerms
    from kvferry.handoff.transports.tcp import TcpListener, dial_tcp
    from kvferry.keys.pool import DEFAULT_SECRET
    from kvferry.measure.handoff.decoding import Answered, DecodeNode
    from kvferry.measure.handoff.namespace import handoff_namespace
    from kvferry.measure.handoff.prefilling import PrefillNode
    from model import VOCABULARY, save_tiny_llama


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model") / "tiny-llama", seed=7)


@pytest.fixture(scope="session")
def runner(folder: Path) -> Runner:
    return Runner(folder, block_tokens=8, threads=1)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Another model of the same name and shape."""
    other = save_tiny_llama(tmp_path_factory.mktemp("other") / "tiny-llama", seed=8)
    return Runner(other, block_tokens=8, threads=1)


def prompt(tokens: int = 150, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, VOCABULARY - 4, (tokens,), generator=generator)]


@pytest.fixture
def prompts() -> Callable[..., list[int]]:
    return prompt


class Roles:
    """A decode node that listens, and prefill nodes that come to it."""

    def __init__(self, runner: Runner) -> None:
        self.clock = MonotonicClock()
        self.runner = runner
        self.namespace = handoff_namespace(load().config, runner)
        self.listener = TcpListener("127.0.0.1", 0, self.clock)

    def decode(self, policy: str = "always", codecs: tuple[str, ...] = ("raw",)) -> DecodeNode:
        terms = GateTerms(policy=policy)
        return DecodeNode(self.runner, self.namespace, DEFAULT_SECRET, self.clock, codecs=codecs, terms=terms)

    def prefill(self, runner: Runner | None = None) -> PrefillNode:
        source = runner or self.runner
        return PrefillNode(source, handoff_namespace(load().config, source), DEFAULT_SECRET, self.clock)

    def dial(self, deadline: float) -> Any:
        return dial_tcp("127.0.0.1", self.listener.port, deadline, self.clock)

    def serving(self, node: DecodeNode, **options: Any) -> Callable[[], Answered]:
        """Serve one request in a thread; the answer is waited for by the call."""
        answers: list[Any] = []

        def run() -> None:
            try:
                answers.append(
                    node.serve(self.listener, **{"answer_tokens": 8, "wait_seconds": 30.0} | options)
                )
            except BaseException as error:  # told to the test
                answers.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def result() -> Answered:
            thread.join(60)
            (answer,) = answers
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return result

    def local(self, ids: list[int], count: int = 8) -> tuple[int, ...]:
        """The answer of a replica that computes the prompt itself."""
        span = self.runner.new_span(len(ids) + count)
        self.runner.prefill_chunk(span, ids[:-1])
        token = int(self.runner.decode(span, ids[-1]).argmax())
        said = [token]
        while len(said) < count:
            said.append(int(self.runner.decode(span, said[-1]).argmax()))
        return tuple(said)


@pytest.fixture
def roles(runner: Runner) -> Iterator[Roles]:
    made = Roles(runner)
    yield made
    made.listener.close()
