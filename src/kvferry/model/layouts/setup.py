"""A deployment as its KV cache sees it: engine, parallelism, dtypes, sizes.

Owns the settings of `kvferry size` and their limits. What None stands for is the engine's to say.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from ...errors import UsageError

__all__ = ["ENGINES", "Engine", "Setup", "StateMode"]

Engine = Literal["vllm", "sglang", "llama.cpp", "transformers", "tensorrt-llm", "lmdeploy"]
ENGINES: tuple[str, ...] = get_args(Engine)
StateMode = Literal["none", "align", "all"]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says; sizes are per rank, in bytes or tokens."""

    engine: str = "vllm"
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    """Decode context parallel ranks, among which tokens are divided."""
    key_dtype: str = "auto"
    value_dtype: str = "auto"
    block_tokens: int | None = None
    memory_bytes: int | None = None
    """What a rank has for the cache."""
    context: int | None = None
    """The engine's longest context (max_model_len, n_ctx); None for the model's own."""
    draft_layers: int = 0
    """Attention layers that a draft or multi-token-prediction head adds."""
    draft_tokens: int | None = None
    """Tokens drafted at a time; None for one a draft layer."""
    sequences: int | None = None
    """Requests whose states are held at a time (llama.cpp's -np, SGLang's max_mamba_cache_size)."""
    streams: int = 1
    """llama.cpp: buffers that sequences are split over; 1 is the unified cache."""
    batch_tokens: int | None = None
    """Tokens computed in one step (max_num_batched_tokens, n_ubatch)."""
    state_dtype: str | None = None
    """dtype of the matrix part of states; None for the engine's rule."""
    state_mode: StateMode = "none"
    """vLLM's mamba_cache_mode: none without prefix caching, align or all with it."""
    block_align: int | None = None
    """vLLM: what an attention backend wants blocks to be multiples of."""
    hybrid: bool = True
    """vLLM: whether the hybrid cache manager is on; without it windows are kept as full attention."""
    full_window: bool = False
    """llama.cpp's --swa-full: sliding layers keep everything."""
    flash_attention: bool = True
    """llama.cpp: whether it is on; without it V is transposed and padded."""
    latent: bool = True
    """Whether llama.cpp and transformers keep MLA's latent; older releases keep the expanded heads."""
    sharing: bool | None = None
    """Whether layers that share a cache keep none; None for the engine's habit."""
    window_ratio: float = 0.8
    """SGLang's swa_full_tokens_ratio."""
    state_share: float = 0.9
    """SGLang's mamba_full_memory_ratio: memory of states over memory of the KV cache."""
    version: tuple[int, ...] | None = None
    """The engine's version, where its log changed meaning; None for the newest."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UsageError(f"--engine: no engine {self.engine!r}; there are {', '.join(ENGINES)}")
        for name in ("tp", "pp", "dcp", "streams"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name}: {getattr(self, name)} ranks; write 1 or more")
        for name in ("block_tokens", "context", "sequences", "batch_tokens", "block_align"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')}: {value}; write 1 or more")
        for name in ("draft_layers", "draft_tokens"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"--{name.replace('_', '-')}: {getattr(self, name)}; write 0 or more")
        if self.dcp > 1 and self.engine != "vllm":
            raise UsageError(f"--dcp {self.dcp}: only vllm divides tokens among ranks")
        if self.tp % self.dcp:
            raise UsageError(f"--dcp {self.dcp} does not divide --tp {self.tp}")
        if self.tp > 1 and self.engine in ("llama.cpp", "transformers"):
            raise UsageError(
                f"--tp {self.tp}: {self.engine} splits layers over devices, not heads; write --pp {self.tp}"
            )

    @property
    def drafted(self) -> int:
        """Tokens drafted at a time."""
        return self.draft_layers if self.draft_tokens is None else self.draft_tokens
