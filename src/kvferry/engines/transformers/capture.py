"""KV of a whole prefill out of transformers, and back into a cache that generation goes on from.

Owns loading a model for that (every layer may slide), the capture, the restoring, and the first gate: that
what this package takes for the position in a key is what the model put there. Knows nothing of maps.

A sliding-window layer's own cache keeps window - 1 positions. Reading KV from such a cache loses the rest,
and writing what was read into a new cache makes the layer believe that the prompt began there: every later
position is shifted. So capture happens during the prefill, in a cache that keeps all; and restoring gives
each sliding layer its last window - 1 positions and the number of tokens that have passed through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache, DynamicCache
from transformers.utils import logging as progress

from ...errors import ModelError, UsageError
from ...handoff.mapping.rope import strip_rope
from ...handoff.mapping.ropes import ropes_of
from ...handoff.mapping.shapes import LayerKv, LayerShape, ModelKv, Prefill
from ...keys import canonical_text
from ..digests import tokenizer_digest, weights_digest

__all__ = ["Captured", "check_computing", "open_captured", "restore"]

_GATE_TOKENS = 48

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Captured:
    """A model whose prefills can be read whole.

    `model` is a causal language model of transformers in evaluation mode. `kv` describes its KV. Raises
    ModelError for a model whose KV is shared between layers, compressed, or no attention's at all.
    """

    def __init__(
        self, model: Any, *, name: str, weights_revision: str, tokenizer_revision: str, tokenizer: Any = None
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.config: Any = model.config.get_text_config(decoder=True)
        self._refuse(name)
        first = self.prefill_by_config_alone()
        self.kv = ModelKv(
            name=name,
            weights_revision=weights_revision,
            tokenizer=tokenizer_revision,
            position=canonical_text(
                dict(getattr(self.config, "rope_parameters", None) or {"rope_type": "none"})
            ),
            layers=self._shapes(first),
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, hence of the cache."""
        kind: torch.dtype = self.model.dtype
        return kind

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with what the tokenizer puts before one (Gemma needs its BOS)."""
        if self.tokenizer is None:
            raise ModelError(f"{self.kv.name} was opened without a tokenizer")
        ids: list[int] = self.tokenizer(text, verbose=False)["input_ids"]
        return ids

    @torch.inference_mode()
    def prefill(self, token_ids: Sequence[int], *, offset: int = 0, queries: bool = False) -> Prefill:
        """KV of every position of every layer; the first token stands at position `offset`.

        With `queries`, those of each layer too, where the model computes attention by torch's own function;
        otherwise none.
        """
        cache, witness = DynamicCache(), _Witness()
        ids = torch.tensor([list(token_ids)], dtype=torch.long, device=self.model.device)
        positions = torch.arange(offset, offset + ids.shape[1], device=self.model.device)
        options = {"past_key_values": cache, "use_cache": True, "position_ids": positions[None]}
        if queries:
            with witness:
                self._forward(ids, options)
        else:
            self._forward(ids, options)
        layers = [LayerKv(layer.keys[0], layer.values[0]) for layer in _layers(cache)]
        seen = witness.calls if len(witness.calls) == len(layers) else []
        return Prefill(
            layers,
            positions,
            self._length(positions),
            [query for query, _ in seen],
            [scale for _, scale in seen],
        )

    def strip_error(self) -> float:
        """The first gate: largest difference between stripped cached keys and those before the turning.

        Relative to the largest key. What is compared with is the output of each layer's k_proj, through its
        k_norm where the model has one, so that a scaling, a partial rotation or an order of pairs that was
        misread is seen. Raises ModelError where the model names these parts otherwise.
        """
        modules = self._key_modules()
        made: dict[int, torch.Tensor] = {}

        def keep(at: int) -> Callable[[Any, Any, torch.Tensor], None]:
            def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
                made[at] = output.detach()

            return hook

        hooks = [module.register_forward_hook(keep(at)) for at, (module, _) in enumerate(modules)]
        step = max(1, int(self.config.vocab_size) // (_GATE_TOKENS + 1))
        ids = [(1 + index * step) % int(self.config.vocab_size) for index in range(_GATE_TOKENS)]
        try:
            found = self.prefill(ids)
        finally:
            for hook in hooks:
                hook.remove()
        worst = 0.0
        for at, (shape, layer) in enumerate(zip(self.kv.layers, found.layers, strict=True)):
            short = layer.keys.dtype in (torch.float16, torch.bfloat16)
            stripped = strip_rope(
                layer.keys,
                shape.rope,
                found.positions,
                length=found.length,
                rounded_to=layer.keys.dtype if short else None,
            )
            plain = made[at]
            if modules[at][1]:
                start = shape.query_heads * shape.key_width
                plain = plain[..., start : start + shape.kv_heads * shape.key_width]
            plain = _by_head(plain, shape.kv_heads)
            worst = max(worst, float((stripped - plain).abs().max() / plain.abs().max()))
        return worst

    def check_strip(self) -> float:
        """`strip_error`, refused above what rounding explains. Raises ModelError."""
        error = self.strip_error()
        allowed = 1e-4 if self.dtype == torch.float32 else 0.03
        if not error <= allowed:
            raise ModelError(
                f"{self.kv.name}: stripped keys differ from the model's own by {error:.2g} (at most "
                f"{allowed:g} is rounding): its positions are not understood, so its keys cannot be mapped"
            )
        return error

    @torch.inference_mode()
    def prefill_by_config_alone(self) -> list[tuple[int, int, int]]:
        """(KV heads, key width, value width) of each layer, read off a prefill of two tokens."""
        cache = DynamicCache()
        self._forward(
            torch.zeros((1, 2), dtype=torch.long, device=self.model.device),
            {"past_key_values": cache, "use_cache": True},
        )
        shapes = []
        for layer in _layers(cache):
            if layer.keys is None or layer.values is None or layer.keys.shape[-2] != 2:
                raise ModelError(f"{type(self.model).__name__}: a layer keeps no KV of two tokens")
            shapes.append((layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]))
        if len(shapes) != int(self.config.num_hidden_layers):
            raise ModelError(
                f"{self.config.num_hidden_layers} layers keep {len(shapes)} caches: KV is shared"
            )
        return shapes

    def _forward(self, ids: torch.Tensor, options: dict[str, Any]) -> None:
        self.model(input_ids=ids, logits_to_keep=1, **options)

    def _shapes(self, found: Sequence[tuple[int, int, int]]) -> tuple[LayerShape, ...]:
        ropes = ropes_of(self.config.to_dict())
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * len(found)
        window = getattr(self.config, "sliding_window", None)
        everywhere = getattr(self.config, "layer_types", None) is None and window is not None
        return tuple(
            LayerShape(
                kv_heads=heads,
                query_heads=int(self.config.num_attention_heads),
                key_width=keys,
                value_width=values,
                rope=rope,
                window=int(window) if window and (everywhere or kind == "sliding_attention") else None,
            )
            for (heads, keys, values), rope, kind in zip(found, ropes, kinds, strict=True)
        )

    def _refuse(self, name: str) -> None:
        kinds = set(getattr(self.config, "layer_types", None) or ())
        kinds -= {"full_attention", "sliding_attention"}
        if getattr(self.config, "kv_lora_rank", None):
            kinds.add("multi-head latent attention")
        if getattr(self.config, "num_kv_shared_layers", None):
            kinds.add("layers that share KV")
        if getattr(self.config, "is_encoder_decoder", False):
            kinds.add("cross attention")
        if kinds:
            raise ModelError(
                f"{name} has layers whose KV cannot be mapped ({', '.join(sorted(kinds))}); "
                "full and sliding-window attention can"
            )

    def _length(self, positions: torch.Tensor) -> int | None:
        """The length that a varying rope was last set for; a dynamic one remembers the longest prompt."""
        lengths = [
            int(module.max_seq_len_cached)
            for module in self.model.modules()
            if isinstance(getattr(module, "rope_type", None), str)
            and "dynamic" in module.rope_type
            and hasattr(module, "max_seq_len_cached")
        ]
        return max([int(positions.max()) + 1, *lengths])

    def _key_modules(self) -> list[tuple[Any, bool]]:
        """What gives each layer's keys before RoPE, and whether queries and values come out beside them."""
        found = [
            (
                getattr(module, "k_norm", None) or getattr(module, "k_proj", None) or module.qkv_proj,
                not hasattr(module, "k_proj"),
            )
            for module in self.model.modules()
            if hasattr(module, "layer_idx") and (hasattr(module, "k_proj") or hasattr(module, "qkv_proj"))
        ]
        if len(found) != len(self.kv.layers):
            raise ModelError(
                f"{self.kv.name}: {len(found)} of {len(self.kv.layers)} layers show their keys before RoPE"
            )
        return found


def check_computing(*, dtype: str = "float32", device: str = "cpu", threads: int | None = None) -> None:
    """Raise `UsageError` for what no model can be opened with here: to be asked before anything is loaded."""
    if dtype not in _DTYPES:
        raise UsageError(f"--dtype {dtype}: not known; write one of {', '.join(_DTYPES)}")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: at least 1, or leave it out for torch's own choice")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UsageError(f"--device {device}: not known; write cpu or cuda") from None
    if place.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: not one of those here; write cpu or cuda")
    found = torch.cuda.device_count() if place.type == "cuda" else 1
    if (place.index or 0) >= found:
        there = f"the GPUs here are {found}" if found else "torch finds no GPU here"
        raise UsageError(f"--device {device}: {there}; write cpu" + (" or cuda:0" if found else ""))


def open_captured(
    folder: Path,
    *,
    name: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    revision: str | None = None,
) -> Captured:
    """The model of a Hugging Face folder, ready to be read. Raises ModelError, `UsageError` for options."""
    check_computing(dtype=dtype, device=device, threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)
    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=_DTYPES[dtype], attn_implementation="sdpa", local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"{folder}: cannot be loaded: {error}") from error
    finally:
        if shown:
            progress.enable_progress_bar()  # type: ignore[no-untyped-call]
    model.to(device).train(False)
    return Captured(
        model,
        name=name or folder.name,
        weights_revision=revision or weights_digest(folder),
        tokenizer_revision=tokenizer_digest(folder),
        tokenizer=tokenizer,
    )


def restore(model: Any, layers: Sequence[LayerKv], tokens: int) -> Cache:
    """A cache for `model` as if it had itself prefilled `tokens` tokens from position 0.

    `layers` hold every position. Full layers take all; a sliding one takes its last window - 1 and the count
    of all, from which its mask is made. Positions of what follows start at `tokens`. Raises ModelError where
    a layer does not hold them all, or is of a kind that cannot be restored.
    """
    cache = DynamicCache(config=model.config)
    if len(cache.layers) != len(layers):
        raise ModelError(f"{len(layers)} layers for a model of {len(cache.layers)}")
    for index, (place, layer) in enumerate(zip(_layers(cache), layers, strict=True)):
        if layer.keys.shape[1] != tokens or layer.values.shape[1] != tokens:
            raise ModelError(
                f"layer {index} holds {layer.keys.shape[1]} of {tokens} positions: capture it during the "
                "prefill, its own cache keeps its window only"
            )
        # Its own update keeps what the window needs and counts all.
        place.update(layer.keys[None], layer.values[None])
    return cache


def _layers(cache: Cache) -> list[Any]:
    """Typed as any: some kinds of layer have no keys, and `Captured` refuses models with such."""
    return list(cache.layers)


@dataclass
class _Witness(TorchFunctionMode):
    """While it is entered, keeps the queries of every call of attention and its factor on scores."""

    calls: list[tuple[torch.Tensor, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.scaled_dot_product_attention:
            query = args[0]
            scale = (kwargs or {}).get("scale") or 1 / math.sqrt(query.shape[-1])
            self.calls.append((query[0].detach(), float(scale)))
        return answer


def _by_head(made: torch.Tensor, heads: int) -> torch.Tensor:
    """Output of k_proj [1, tokens, heads x width], or of k_norm by head, as [heads, tokens, width]."""
    one = made[0].float()
    if one.ndim == 2:
        return one.reshape(one.shape[0], heads, -1).transpose(0, 1)
    return one if one.shape[0] == heads else one.transpose(0, 1)
