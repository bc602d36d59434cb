"""The setups that differ from one in a single flag: where a log that does not fit is likely to come from."""

from __future__ import annotations

from collections.abc import Iterator

from .layouts.setup import Setup

__all__ = ["nearby"]


def nearby(setup: Setup) -> Iterator[tuple[str, dict[str, object]]]:
    """The flag, and the fields of a `Setup` that it changes."""
    dtypes = ("q8_0", "q4_0", "f16") if setup.engine == "llama.cpp" else ("bf16", "fp8", "nvfp4", "float32")
    for name in dtypes:
        yield f"--kv-dtype {name}", {"key_dtype": name, "value_dtype": name}
    if setup.engine != "llama.cpp":
        for ranks in (1, 2, 4, 8, 16):
            if ranks != setup.tp:
                yield f"--tp {ranks}", {"tp": ranks, "dcp": 1}
    for stages in (1, 2, 4, 8):
        if stages != setup.pp:
            yield f"--pp {stages}", {"pp": stages}
    yield "--draft-layers 1", {"draft_layers": 1}
    if setup.engine == "vllm":
        yield "--state-mode align", {"state_mode": "align"}
        yield "--state-mode none", {"state_mode": "none"}
        yield "--state-dtype float32", {"state_dtype": "float32"}
        yield "--state-dtype bf16", {"state_dtype": "bf16"}
        yield "--no-hybrid", {"hybrid": False}
        for size in (16, 32, 64, 128):
            yield f"--block-tokens {size}", {"block_tokens": size}
    if setup.engine == "llama.cpp":
        yield "--no-flash-attention", {"flash_attention": False}
        yield "--swa-full", {"full_window": True}
        yield "--no-latent", {"latent": False}
    yield "--shared", {"sharing": True}
    yield "--no-shared", {"sharing": False}
