"""vLLM's example connector made asynchronous, with a block that fails on request: an inner one for tests."""

from __future__ import annotations

import importlib
from typing import Any

import safetensors.torch

example: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.example_connector")


class LateMetadata(example.ExampleConnectorMetadata):
    """The example's, with the loads that run beside the steps: id, token ids, block ids."""

    late: list[tuple[str, list[int], list[int]]]


class LateConnector(example.ExampleConnector):
    """Loads between steps, and reports one block as failed where `fail_block` says which."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.fail_block: int | None = self._kv_transfer_config.get_from_extra_config("fail_block", None)
        self._late: list[tuple[str, list[int], list[int]]] = []
        self._caches: dict[str, Any] = {}
        self._done: set[str] = set()
        self._failed: set[int] = set()

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._caches = kv_caches

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        found, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found, found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            ids = list(request.prompt_token_ids)
            self._late.append((request.request_id, ids, list(blocks.get_block_ids()[0])))

    def build_connector_meta(self, scheduler_output: Any) -> LateMetadata:
        plain = super().build_connector_meta(scheduler_output)
        meta = LateMetadata(plain.requests)
        meta.late, self._late = self._late, []
        return meta

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        for rid, ids, blocks in self._get_connector_metadata().late:
            load = example.ReqMeta.make_meta(ids, blocks, self._block_size, False, [])
            for layer, cache in self._caches.items():
                path = self._generate_filename_debug(layer, load.token_ids, [])
                slots = load.slot_mapping
                stored = safetensors.torch.load_file(path)["kv_cache"]
                cache[slots // self._block_size, :, slots % self._block_size] = stored
            if self.fail_block is not None:
                self._failed.add(blocks[self.fail_block])
            self._done.add(rid)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        done, self._done = self._done, set()
        return None, done or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed
