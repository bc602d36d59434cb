"""vLLM engines in this process, several at a time: what a replica is asked, says, books and keeps.

vLLM has one worker's connector for a process; here each engine's is put in its place while it runs.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.engine import core

from kvferry.runs.decisions import DecisionRecord, decode_record

__all__ = ["BLOCK", "SETTINGS", "Answer", "Replica", "prompt_of", "save_gemma", "save_llama", "save_lora"]

BLOCK = 32
VOCABULARY = 512
SETTLE_SECONDS = 20.0
SETTINGS: Mapping[str, Any] = {
    "publish": "all",
    # A tiny model is computed faster than anything is loaded: what is tried here is carrying, not choosing.
    "gate": {"policy": "always", "holdout_share": 0.0, "explore_share": 0.0, "auto_off": False},
    "limits": {"new_replica_loads": 4},
    # Generous where a loaded machine must not be taken for a lost pool, short where a test waits for it.
    "timeouts": {
        "connect": "2s",
        "probe": "2s",
        "load": "20s",
        "store": "5s",
        "lease": "5s",
        "backoff_first": "10ms",
        "backoff_most": "20ms",
    },
}
_NUMBERS = itertools.count(1)
_ENDED: list[LLM] = []
"""Kept until the process ends: vLLM's own end of one engine takes groups and connectors from all others."""
core.cleanup_dist_env_and_memory = lambda: None  # the same, for engines that fail to start


@dataclass(frozen=True)
class Answer:
    """What a replica said to one prompt, how sure it was, and what it booked."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the tokens it chose."""
    cached: int
    """As vLLM counts: from its own cache or from ours."""
    record: DecisionRecord | None

    def agrees_with(self, other: Answer) -> bool:
        """The same tokens, with the same probabilities as far as float32 goes."""
        close = all(abs(a - b) < 1e-3 for a, b in zip(self.logprobs, other.logprobs, strict=False))
        return self.tokens == other.tokens and close

    @property
    def ledger(self) -> dict[str, int]:
        """Prompt tokens by outcome."""
        assert self.record is not None
        return {outcome.value: tokens for outcome, tokens in self.record.ledger.items() if tokens}


def prompt_of(seed: object, tokens: int) -> list[int]:
    """A prompt of its own for each seed."""
    draw = random.Random(str(seed))
    return [draw.randrange(5, VOCABULARY - 5) for _ in range(tokens)]


class Replica:
    """One engine. Without `pool` and settings of ours it is plain vLLM."""

    def __init__(
        self,
        model: Path,
        folder: Path | None,
        settings: Mapping[str, Any] | None = None,
        *,
        role: str = "kv_both",
        policy: str = "recompute",
        **engine: Any,
    ) -> None:
        self.name = f"replica-{next(_NUMBERS)}"
        self._records = None if folder is None else folder / self.name / "decisions.jsonl"
        options: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "block_size": BLOCK,
            "max_model_len": 2048,
            "kv_cache_memory_bytes": 8 << 20,
            "enable_prefix_caching": True,
            "prefix_caching_hash_algo": "sha256_cbor",
            "enforce_eager": True,
            "disable_log_stats": True,
        }
        if settings is not None and self._records is not None:
            options["kv_transfer_config"] = KVTransferConfig(
                kv_connector="FerryConnector",
                kv_connector_module_path="kvferry.engines.vllm.connector",
                kv_role=role,
                kv_load_failure_policy=policy,
                kv_connector_extra_config={
                    **SETTINGS,
                    "record": str(self._records.parent),
                    "replica": self.name,
                    **settings,
                },
            )
        others = kv_transfer_state._KV_CONNECTOR_AGENT
        kv_transfer_state._KV_CONNECTOR_AGENT = None
        try:
            self.llm = LLM(str(model), **{**options, **engine})
            self.worker: Any = kv_transfer_state._KV_CONNECTOR_AGENT
        finally:
            kv_transfer_state._KV_CONNECTOR_AGENT = others
        self.engine = self.llm.llm_engine
        self.scheduler: Any = self.engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.free_at_start = self.pool.get_num_free_blocks()

    @property
    def connector(self) -> Any:
        """The scheduler's half."""
        return self.scheduler.connector

    @contextmanager
    def running(self) -> Iterator[None]:
        """This engine's worker finds its own connector."""
        others = kv_transfer_state._KV_CONNECTOR_AGENT
        kv_transfer_state._KV_CONNECTOR_AGENT = self.worker
        try:
            yield
        finally:
            kv_transfer_state._KV_CONNECTOR_AGENT = others

    def ask(self, prompt: Sequence[int], **terms: Any) -> Answer:
        """One request, alone."""
        return self.ask_all([(prompt, terms)])[0]

    def ask_all(self, asked: Sequence[tuple[Sequence[int], Mapping[str, Any]]]) -> list[Answer]:
        """Requests at once."""
        ids = [self.send(prompt, **terms) for prompt, terms in asked]
        return self.wait(ids)

    def send(
        self,
        prompt: Sequence[int],
        *,
        answer_tokens: int = 6,
        salt: str | None = None,
        lora: LoRARequest | None = None,
        fields: Mapping[str, Any] | None = None,
        transfer: Mapping[str, Any] | None = None,
    ) -> str:
        """Hand a request in; it is worked on by `step` or `wait`."""
        rid = f"{self.name}-{next(_NUMBERS)}"
        text = TokensPrompt(prompt_token_ids=list(prompt))
        if salt is not None:
            text["cache_salt"] = salt
        params = SamplingParams(
            max_tokens=answer_tokens, temperature=0, detokenize=False, logprobs=0, ignore_eos=True
        )
        if fields is not None or transfer is not None:
            ours = {} if fields is None else {"kvferry": dict(fields)}
            params.extra_args = {"kv_transfer_params": {**(transfer or {}), **ours}}
        with self.running():
            self.engine.add_request(rid, text, params, lora_request=lora)
        return rid

    def step(self) -> dict[str, Any]:
        """One step of the engine; the outputs of requests that have ended, by id."""
        with self.running():
            outputs = self.engine.step()
        return {output.request_id: output for output in outputs if output.finished}

    def wait(self, ids: Sequence[str], seconds: float = 60.0) -> list[Answer]:
        """Step until these have ended."""
        done: dict[str, Any] = {}
        end = time.monotonic() + seconds
        while not done.keys() >= set(ids):
            if time.monotonic() > end:
                raise TimeoutError(f"stuck: {sorted(set(ids) - done.keys())}")
            done |= self.step()
        records = self.records()
        return [_answer(done[rid], _record_of(records, rid)) for rid in ids]

    def abort(self, rid: str) -> None:
        """The client has gone."""
        with self.running():
            self.engine.abort_request([rid])

    def settle(self) -> None:
        """Let publications end and what they held come back: steps with a prompt too short to cache."""
        end = time.monotonic() + SETTLE_SECONDS
        while self.pool.get_num_free_blocks() != self.free_at_start:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self.name} keeps {self.free_at_start - self.pool.get_num_free_blocks()} blocks"
                )
            self.wait([self.send([7, 8, 9], answer_tokens=1)])
            time.sleep(0.01)

    def forget(self) -> None:
        """The engine's own cache is empty afterwards."""
        self.settle()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be emptied")

    def records(self, since: int = 0) -> list[DecisionRecord]:
        """All that it has booked, but for the first `since`."""
        if self._records is None or not self._records.exists():
            return []
        return [decode_record(line) for line in self._records.read_text().splitlines()[since:]]

    def close(self) -> None:
        """End both halves of the connector, as an engine that stops does."""
        for half in (self.connector, self.worker):
            if half is not None:
                half.shutdown()
        _ENDED.append(self.llm)


def _answer(output: Any, record: DecisionRecord | None) -> Answer:
    said = output.outputs[0]
    tokens = tuple(said.token_ids)
    chosen = tuple(by_token[token].logprob for token, by_token in zip(tokens, said.logprobs, strict=True))
    return Answer(tokens, chosen, output.num_cached_tokens, record)


def _record_of(records: Sequence[DecisionRecord], rid: str) -> DecisionRecord | None:
    return next((r for r in records if r.request_id == rid or r.request_id.startswith(f"{rid}-")), None)


def save_llama(folder: Path, *, seed: int = 0) -> Path:
    """Two layers of random weights, large enough for every token of a prompt to tell in the answer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_gemma(folder: Path) -> Path:
    """Four layers, every other one with a window of 64 tokens: two KV cache groups."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(1)
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        query_pre_attn_scalar=32,
        initializer_range=0.3,
    )
    Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


def save_lora(folder: Path, *, seed: int) -> Path:
    """An adapter of rank 8 for `save_llama`, strong enough to change every answer."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(2):
        for name, rows in (("q_proj", 128), ("v_proj", 64)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{stem}.lora_A.weight"] = torch.randn(8, 64, generator=draw) * 0.3
            weights[f"{stem}.lora_B.weight"] = torch.randn(rows, 8, generator=draw) * 0.3
    save_file(weights, folder / "adapter_model.safetensors")
    terms = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny",
    }
    (folder / "adapter_config.json").write_text(json.dumps(terms))
    return folder
