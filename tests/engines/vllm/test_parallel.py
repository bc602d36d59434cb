"""Two ranks: each keeps its part of every block, and all load the same blocks or none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from prometheus_client import REGISTRY

from .conftest import Truth, balanced, prompt_for, step_until
from .replicas import Replica

TOKENS, BLOCKS = 300, 9
Make = Callable[..., Replica]

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers of vLLM need two cores")


def shown(name: str, **labels: str) -> dict[str, float]:
    """Values on the page of this process, by the engine's process that counted them."""
    return {
        sample.labels.get("process", ""): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


@pytest.fixture
def pair(replica: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Replica, Path]]:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    folder = tmp_path / "pool"
    two = replica({"pool": f"files://{folder}"}, tensor_parallel_size=2, distributed_executor_backend="mp")
    yield two, folder
    two.engine.engine_core.shutdown()


def test_all_ranks_load_the_same_blocks_or_none(pair: tuple[Replica, Path], truth: Truth) -> None:
    two, folder = pair
    prompt = prompt_for("ranks", TOKENS)
    first = two.ask(prompt)
    assert first.agrees_with(truth(prompt))
    two.forget()
    files = sorted(folder.glob("blocks/*/*"))
    assert len(files) == 2 * BLOCKS

    whole = two.ask(prompt)
    assert whole.agrees_with(truth(prompt))
    assert whole.ledger == {"pool_hit": 288, "partial_block": 12}
    two.forget()

    digests = two.connector._scheduler._spaces.digests("default", None)
    assert len({digest for (digest,) in digests}) == 2
    of_second = [file for file in files if digests[1][0] in file.read_bytes()[:256]]
    assert len(of_second) == BLOCKS
    with of_second[0].open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    broken = two.ask(prompt)
    assert broken.agrees_with(truth(prompt))
    assert broken.ledger["corrupt"] > 0
    again = two.ask(prompt)
    assert again.agrees_with(truth(prompt))
    assert not two.connector.why_off
    two.settle()
    balanced(two)

    two.forget()
    assert two.ask(prompt).agrees_with(truth(prompt))


def test_host_memory_of_a_worker_in_a_process_of_its_own(
    replica: Make, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler cannot look into it: the worker tells what is there."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
    one = replica({"host_memory": "64MiB"}, distributed_executor_backend="mp", disable_log_stats=False)
    try:
        prompt = prompt_for("mirrored", TOKENS)
        assert one.ask(prompt).agrees_with(truth(prompt))
        one.forget()
        again = one.ask(prompt)
        assert again.agrees_with(truth(prompt))
        assert again.ledger == {"host_hit": 288, "partial_block": 12}
        # What each process counted, and what vLLM says of it in its own words, on vLLM's own page.
        step_until(
            one, lambda: shown("kvferry_ledger_tokens_total", outcome="host_hit").get("scheduler") == 288
        )
        end = time.monotonic() + 30.0
        while not shown("kvferry_read_bytes_total", tier="host").get("worker-0"):
            # A worker's metrics travel with steps; the last second's with the next request's.
            assert time.monotonic() < end
            one.ask([7, 8, 9], answer_tokens=1)
            time.sleep(0.05)
        assert shown("vllm:prompt_tokens_cached_by_source_total", source="host") == {"": 288}
    finally:
        one.engine.engine_core.shutdown()
