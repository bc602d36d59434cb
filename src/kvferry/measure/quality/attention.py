"""The error of attention's output when its queries meet another KV.

The queries are those of a real forward pass, layer by layer, and each layer is judged alone: what an earlier
layer got wrong does not reach it. How the errors add up is for `continuation.py` to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Attended", "Witness", "attention_errors"]


@dataclass(frozen=True, slots=True)
class Attended:
    """One layer's attention as it happened: tensors [1, heads, tokens, width]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    options: dict[str, Any]
    output: torch.Tensor


@dataclass
class Witness(TorchFunctionMode):
    """While it is entered, keeps every call of scaled dot-product attention, in order."""

    calls: list[Attended] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        answer = func(*args, **options)
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key, value = args[:3]
            # The mask may stand behind the three by position.
            named = dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False))
            self.calls.append(Attended(query, key, value, {**options, **named}, answer))
        return answer


def attention_errors(calls: Sequence[Attended], kv: torch.Tensor) -> list[float]:
    """Relative L2 error of each layer's output when its first tokens are those of `kv`.

    `kv` is [layers, 2, KV heads, tokens, width]; raises ValueError where the layers are not as many as the
    calls.
    """
    if len(calls) != kv.shape[0]:
        raise ValueError(f"{len(calls)} calls of attention for {kv.shape[0]} layers: use attention='sdpa'")
    errors = []
    for call, layer in zip(calls, kv, strict=True):
        key, value = (_begin(whole, part) for whole, part in zip((call.key, call.value), layer, strict=True))
        with torch.inference_mode():
            output = torch.nn.functional.scaled_dot_product_attention(call.query, key, value, **call.options)
        errors.append(float((output - call.output).norm() / call.output.norm()))
    return errors


def _begin(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`whole` [1, heads, tokens, width], its first tokens replaced by `part` [KV heads, fewer tokens, width].

    Where the engine repeats KV heads for its query heads, so do we.
    """
    repeated = part.repeat_interleave(whole.shape[1] // part.shape[0], dim=0)
    return torch.cat([repeated.unsqueeze(0), whole[:, :, part.shape[1] :]], dim=2)
