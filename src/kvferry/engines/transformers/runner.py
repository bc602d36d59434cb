"""The forward pass: token ids in, logits out, KV appended to a request's span.

Owns the model, its tokenizer and what must be known of both to name a block. Refuses every model whose
layers are not all full attention, since a block of tokens does not hold such a layer's whole state. Knows
nothing of requests, queues or caches.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.utils import logging as progress

from ...errors import ModelError
from ..digests import tokenizer_digest, weights_digest
from .layout import KvLayout
from .span import Span

__all__ = ["Runner"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_PROBE_TOKENS = 32
"""Length of the probe: long enough for every layer to mix tokens, short enough to cost little."""


class Runner:
    """One model on the CPU.

    `folder` is a Hugging Face folder, `name` what the model is called in namespaces. Raises ModelError when
    the model cannot be loaded, or has layers that are not full attention.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str | None = None,
        block_tokens: int = 32,
        dtype: str = "float32",
        threads: int | None = None,
        attention: str = "sdpa",
        revision: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        if dtype not in _DTYPES:
            raise ModelError(f"dtype {dtype!r} is not served; write one of {', '.join(_DTYPES)}")
        if threads is not None:
            torch.set_num_threads(threads)
        self.folder = folder
        self.name = name or folder.name
        self.revision = revision
        self.config = _config(folder)
        self.text_config: Any = self.config.get_text_config(decoder=True)
        _refuse_by_config(self.name, self.text_config)
        self.model, self.tokenizer = _load(folder, _DTYPES[dtype], attention)
        self.attention = attention
        self.layout = self._measure_layout(_DTYPES[dtype], block_tokens)
        self.max_tokens = _context(self.name, self.text_config, max_tokens)
        self.vocabulary = int(self.text_config.vocab_size)
        self.stop_ids = self._stop_ids()

    @property
    def layers(self) -> int:
        return self.layout.layers

    @property
    def kv_heads(self) -> int:
        return self.layout.kv_heads

    @property
    def head_dim(self) -> int:
        """Width of K and of V per head."""
        return self.layout.width

    @property
    def bytes_per_token(self) -> int:
        return self.layout.bytes_per_token

    def new_span(self, capacity: int) -> Span:
        """Empty KV for a request of at most `capacity` tokens."""
        return Span(self.layout, capacity)

    def prefill_chunk(self, span: Span, token_ids: Sequence[int]) -> torch.Tensor:
        """Append tokens to the span; the logits behind the last one, [vocabulary] in float32."""
        if not token_ids:
            raise ValueError("a chunk needs at least one token")
        if span.length + len(token_ids) > span.capacity:
            raise ValueError(f"{len(token_ids)} more tokens do not fit the span of {span.capacity}")
        with torch.inference_mode():
            answer = self.model(
                input_ids=torch.tensor([token_ids], dtype=torch.long),
                past_key_values=span,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: torch.Tensor = answer.logits[0, -1].float()
        return logits

    def decode(self, span: Span, token_id: int) -> torch.Tensor:
        """Append one token; the logits of the next one."""
        return self.prefill_chunk(span, (token_id,))

    def probe(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The KV of a fixed short prompt, float32 [layers, 2, KV heads, tokens, width].

        The ids come from the vocabulary's size alone, so equal models give equal prompts; it shows by
        numbers whether two replicas compute the same KV.
        """
        step = max(1, self.vocabulary // (_PROBE_TOKENS + 1))
        ids = [(1 + index * step) % self.vocabulary for index in range(_PROBE_TOKENS)]
        span = self.new_span(_PROBE_TOKENS)
        self.prefill_chunk(span, ids)
        return span.kv.float().numpy().copy()

    def namespace_fields(self) -> dict[str, Any]:
        """Everything of the model and engine that must be equal for blocks to be interchangeable.

        `attention` and `position` are nested parameter tables, the rest strings and ints.
        """
        text = self.text_config
        return {
            "model": self.name,
            "weights_revision": self.revision or weights_digest(self.folder),
            "tokenizer": tokenizer_digest(self.folder),
            "attention": {
                "kind": "full",
                "layers": self.layout.layers,
                "heads": int(text.num_attention_heads),
                "kv_heads": self.layout.kv_heads,
                "width": self.layout.width,
                "bias": bool(getattr(text, "attention_bias", False)),
                "qk_norm": any("q_norm" in name for name, _ in self.model.named_modules()),
                "scaling": _scaling(self.model),
                "logit_softcap": getattr(text, "attn_logit_softcapping", None) or 0.0,
            },
            "position": dict(getattr(text, "rope_parameters", None) or {"rope_type": "none"}),
            "implementation": f"transformers-{self.attention}",
            "kv_dtype": self.layout.dtype_name,
            "layout": self.layout.fingerprint(),
            "block_tokens": self.layout.block_tokens,
            "parallel_rank": 0,
            "parallel_size": 1,
        }

    def engine_versions(self) -> dict[str, str]:
        """Releases for the manifest beside the namespace; they are not part of a block's name."""
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    def _measure_layout(self, dtype: torch.dtype, block_tokens: int) -> KvLayout:
        """Read the KV shape off a forward pass: what is cached is not always what the config promises."""
        if "past_key_values" not in inspect.signature(self.model.forward).parameters:
            raise ModelError(f"{self.name}: {type(self.model).__name__} keeps a state that is no KV cache")
        cache = DynamicCache(config=self.model.config)
        with torch.inference_mode():
            self.model(input_ids=torch.zeros((1, 2), dtype=torch.long), past_key_values=cache, use_cache=True)
        layers: list[Any] = list(cache.layers)
        odd = sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})
        if odd:
            raise _not_full(self.name, odd)
        shapes = {
            (None if part is None else tuple(part.shape))
            for layer in layers
            for part in (layer.keys, layer.values)
        }
        expected = int(self.text_config.num_hidden_layers)
        if len(layers) != expected or len(shapes) != 1 or None in shapes:
            raise ModelError(
                f"{self.name}: its {expected} layers cache {len(layers)} parts of shapes "
                f"{sorted(map(str, shapes))}; only models with one KV shape in every layer are served"
            )
        (shape,) = shapes
        if shape is None or shape[2] != 2:
            raise ModelError(f"{self.name}: two tokens cache KV of shape {shape}; KV is shared or compressed")
        return KvLayout(
            layers=len(cache.layers),
            kv_heads=shape[1],
            width=shape[3],
            dtype=dtype,
            block_tokens=block_tokens,
        )

    def _stop_ids(self) -> frozenset[int]:
        found: set[int] = set()
        for source in (self.model.generation_config.eos_token_id, self.tokenizer.eos_token_id):
            if isinstance(source, int):
                found.add(source)
            elif source is not None:
                found.update(source)
        return frozenset(found)


def _config(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder}/config.json: not a model that transformers knows: {error}") from error


def _context(name: str, config: Any, wanted: int | None) -> int:
    """Longest prompt and answer together: what is wanted, within what the model was made for."""
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        if wanted is None:
            raise ModelError(f"{name}: config.json has no max_position_embeddings; give --max-context")
        return wanted
    if wanted is not None and not 2 <= wanted <= limit:
        raise ModelError(f"{name}: a context of {wanted} is not possible; write 2 to {limit}")
    return wanted or limit


def _load(folder: Path, dtype: torch.dtype, attention: str) -> tuple[Any, Any]:
    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"{folder}: cannot be loaded: {error}") from error
    finally:
        if shown:
            progress.enable_progress_bar()  # type: ignore[no-untyped-call]
    model.train(False)
    return model, tokenizer


def _refuse_by_config(name: str, config: Any) -> None:
    """Say no before hundreds of megabytes are read, where the config already tells."""
    kinds = set(getattr(config, "layer_types", None) or ())
    kinds.discard("full_attention")
    if getattr(config, "sliding_window", None) is not None and not getattr(config, "layer_types", None):
        kinds.add("sliding_attention")
    if getattr(config, "attention_chunk_size", None) is not None:
        kinds.add("chunked_attention")
    if getattr(config, "kv_lora_rank", None):
        kinds.add("multi-head latent attention")
    if getattr(config, "num_kv_shared_layers", None):
        kinds.add("layers that share KV")
    if getattr(config, "is_encoder_decoder", False):
        kinds.add("cross attention")
    if kinds:
        raise _not_full(name, sorted(kinds))
    missing = [
        field
        for field in ("num_hidden_layers", "num_attention_heads", "vocab_size")
        if getattr(config, field, None) is None
    ]
    if missing:
        raise ModelError(f"{name}: config.json has no {', '.join(missing)}")


def _not_full(name: str, kinds: Sequence[str]) -> ModelError:
    return ModelError(
        f"{name} has layers that are not full attention ({', '.join(kinds)}); "
        "choose a model with full attention in every layer, such as SmolLM2, Llama 3 or Qwen3"
    )


def _scaling(model: Any) -> float:
    """The factor on attention scores, as the first attention module uses it; 0 where it does not say."""
    for module in model.modules():
        if isinstance(value := getattr(module, "scaling", None), float):
            return value
    return 0.0
