"""A tiny Llama with random weights, and vLLM engines in this process that serve it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BLOCK = 32


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("tiny-llama")
    transformers.LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


class Served:
    """One engine, and what the tests ask of it."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    @property
    def connector(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler.connector

    def ask(
        self, prompt: list[int], *, reset: bool = True, max_tokens: int = 4, **params: Any
    ) -> tuple[list[int], int]:
        """(tokens of the answer, prompt tokens that were cached), the engine's own cache reset before."""
        from vllm import SamplingParams

        if reset:
            assert self.llm.reset_prefix_cache()
        sampling = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, extra_args=params or None
        )
        output = self.llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)[0]
        return list(output.outputs[0].token_ids), output.num_cached_tokens or 0


@pytest.fixture(scope="module")
def engines(tiny_llama: Path) -> Iterator[Callable[[dict[str, Any] | None], Served]]:
    """Starts engines with a kv-transfer-config; one lives at a time, the last until the module's end."""
    pytest.importorskip("vllm", reason="engines are vLLM's: pip install 'kvferry[vllm]'")
    patch = pytest.MonkeyPatch()
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }.items():
        patch.setenv(name, value)
    patch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    running: list[Any] = []

    def start(transfer: dict[str, Any] | None, **more: Any) -> Served:
        from vllm import LLM

        stop()
        llm = LLM(
            model=str(tiny_llama),
            skip_tokenizer_init=True,
            dtype="float32",
            block_size=BLOCK,
            kv_cache_memory_bytes=16 << 20,
            max_model_len=1024,
            max_num_seqs=8,
            enforce_eager=True,
            kv_transfer_config=transfer,
            **more,
        )
        running.append(llm)
        return Served(llm)

    def stop() -> None:
        if not running:
            return
        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

        running.pop().llm_engine.engine_core.shutdown()
        ensure_kv_transfer_shutdown()
        cleanup_dist_env_and_memory()
        gc.collect()

    yield start
    stop()
    patch.undo()
