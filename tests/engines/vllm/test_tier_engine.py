"""A real vLLM engine that offloads through its own connector, with our tier under it.

vLLM's copies between a GPU and host memory need a GPU; here the engine's KV lies in host memory already, and
a plain worker copies in their place. Scheduler, connector, manager and tier are what runs on a GPU.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

import torch
from prometheus_client import REGISTRY
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvferry.outcomes import Outcome
from kvferry.runs.decisions import DecisionRecord, decode_record

BLOCK = 32


class CopyWorker(OffloadingWorker):
    """Copies pages at once, on the engine's thread."""

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._tensors = [tensor.tensor for tensor in caches.tensors]
        self._rows = [region.create_next_worker_view(tensor.page_size_bytes) for tensor in caches.tensors]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for block, chunk in zip(src_spec.block_ids, dst_spec.chunk_ids, strict=True):
            for rows, tensor in zip(self._rows, self._tensors, strict=True):
                rows[int(chunk)].copy_(tensor[int(block)])
        self._done.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for chunk, block in zip(src_spec.chunk_ids, dst_spec.block_ids, strict=True):
            for rows, tensor in zip(self._rows, self._tensors, strict=True):
                tensor[int(block)].copy_(rows[int(chunk)])
        self._done.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        self._rows = []
        self._region.cleanup()


class CopySpec(TieringOffloadingSpec):
    """vLLM's tiering, with a worker that needs no GPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CopyWorker(kv_caches, region)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Engines:
    """One engine at a time."""

    def __init__(self, model: Path, pool: Path) -> None:
        self.model, self.folder = model, pool
        self._running: Any = None

    def start(self, name: str, **more: Any) -> Any:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        self.stop()
        tier = {
            "type": "FerryTier",
            "module_path": "kvferry.engines.vllm.tier",
            "pool": f"files://{self.folder}/pool",
            "publish": "second-touch",
            "record": f"{self.folder}/{name}",
            "replica": name,
            "gate": {"policy": "always", "holdout_share": 0.0, "explore_share": 0.0},
            "timeouts": {"probe": "10s", "connect": "5s"},
            **more,
        }
        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "CopySpec",
                "spec_module_path": __name__,
                "cpu_bytes_to_use": 16 << 20,
                "secondary_tiers": [tier],
            },
        )
        self._running = LLM(
            str(self.model),
            skip_tokenizer_init=True,
            dtype="float32",
            block_size=BLOCK,
            max_model_len=1024,
            kv_cache_memory_bytes=32 << 20,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            kv_transfer_config=transfer,
            enforce_eager=True,
            disable_log_stats=False,
        )
        return self._running

    def stop(self) -> None:
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        if self._running is not None:
            self._running.llm_engine.engine_core.shutdown()
            self._running = None
            ensure_kv_transfer_shutdown()
            cleanup_dist_env_and_memory()
            for collector in list(REGISTRY._collector_to_names):
                # vLLM takes its own off the page when the next engine of a process begins.
                if str(getattr(collector, "_name", "")).startswith("kvferry_"):
                    REGISTRY.unregister(collector)

    def records(self, name: str) -> list[DecisionRecord]:
        lines = (self.folder / name / "decisions.jsonl").read_bytes().splitlines()
        return [decode_record(line) for line in lines]


@pytest.fixture(scope="module")
def engines(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }.items():
            patch.setenv(name, value)
        made = Engines(model, tmp_path_factory.mktemp("shared"))
        yield made
        made.stop()


LONG = 330
"""Tokens of the prompt that the first engine publishes: ten blocks and a tail."""


@pytest.fixture(scope="module")
def computed(engines: Engines) -> dict[str, list[int]]:
    """What an engine answers that computes; a prefix that it was asked for twice is in the pool then."""
    one = engines.start("one")
    said = {"long": answer(one, LONG_IDS), "again": answer(one, LONG_IDS), "fork": answer(one, FORK_IDS)}
    engines.stop()
    assert [cached for _, cached in said.values()] == [0, 320, 192]
    return {name: tokens for name, (tokens, _) in said.items()}


def answer(llm: Any, ids: list[int], params: dict[str, Any] | None = None) -> tuple[list[int], int]:
    """Tokens of the answer, and how many of the prompt's were not computed."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    sampling = SamplingParams(max_tokens=8, temperature=0, detokenize=False)
    if params:
        sampling.extra_args = {"kv_transfer_params": params}
    output = llm.generate([TokensPrompt(prompt_token_ids=ids)], sampling, use_tqdm=False)[0]
    return list(output.outputs[0].token_ids), int(output.num_cached_tokens)


def page() -> dict[tuple[str, str], float]:
    """What vLLM's own /metrics shows of kvferry: by name and the label that is ours."""
    return {
        (sample.name, label): sample.value
        for family in REGISTRY.collect()
        if family.name.startswith("kvferry_")
        for sample in family.samples
        for name, label in sample.labels.items()
        if name in ("outcome", "mode") and sample.labels.get("process") is None
    }


def prompt(seed: int, tokens: int) -> list[int]:
    return [random.Random(seed * 10_007 + i).randrange(5, 500) for i in range(tokens)]


LONG_IDS = prompt(1, LONG)
FORK_IDS = LONG_IDS[:200] + prompt(2, 100)


def test_what_one_engine_computed_another_loads(engines: Engines, computed: dict[str, list[int]]) -> None:
    two = engines.start("two")
    assert answer(two, FORK_IDS) == (computed["fork"], 192)
    assert answer(two, LONG_IDS) == (computed["long"], 320)
    end = time.monotonic() + 20
    while (shown := page()).get(("kvferry_ledger_tokens_total", "pool_hit")) != 10 * BLOCK:
        # What a tier counts goes to vLLM's page with steps, and a request's end is known with the next.
        assert time.monotonic() < end, shown
        answer(two, [7, 8, 9])
    engines.stop()
    assert shown["kvferry_mode", "on"] == 1
    fork, long, *_ = engines.records("two")
    assert [(run.start_block, run.good_blocks) for run in (*fork.loads, *long.loads)] == [(0, 6), (6, 4)]
    assert fork.path == long.path == "pool_hit"
    assert [sum(r.ledger.values()) for r in (fork, long)] == [9 * BLOCK + 1, 10 * BLOCK + 1]


def test_an_engine_books_what_it_held_and_what_it_computed(
    engines: Engines, computed: dict[str, list[int]]
) -> None:
    first, again, fork = engines.records("one")
    assert (first.path, first.actual.computed_tokens) == ("cold", 10 * BLOCK)
    assert (again.path, again.ledger) == (
        "local_hit",
        {Outcome.DEVICE_HIT: 10 * BLOCK, Outcome.PARTIAL_BLOCK: 1},
    )
    # The first prompt's steps have taught what prefill costs.
    assert fork.facts is not None
    assert fork.facts.live.prefill_observations > 0


def test_damaged_blocks_are_computed(engines: Engines, computed: dict[str, list[int]]) -> None:
    for number, file in enumerate(sorted((engines.folder / "pool").rglob("*"))):
        if file.is_file() and file.stat().st_size > 16_384:
            raw = bytearray(file.read_bytes())
            raw[len(raw) // 2 + number % 7] ^= 0x40
            file.write_bytes(raw)
    three = engines.start("three")
    assert answer(three, LONG_IDS)[0] == computed["long"]
    engines.stop()
    assert engines.records("three")[0].fallback is Outcome.CORRUPT
