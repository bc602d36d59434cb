"""How many bytes a model's cache really holds after a prefix, in transformers.

Owns building the model (a folder's, or a tiny random one from a config) and summing the tensors of its
cache. Knows no formula: what it returns is what one is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as theirs

from ...errors import ModelError

__all__ = ["Held", "cache_bytes", "load_model", "random_model"]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what transformers says of speed and of odd configs: here only bytes count."""
    level, shown = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()  # type: ignore[no-untyped-call]
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if shown:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]


class Held:
    """A model that can be asked what its cache holds; `config` is its text part's, as JSON would have it."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        # transformers writes None where a config says nothing; so does JSON.
        text = model.config.get_text_config(decoder=True)
        self.config: dict[str, Any] = text.to_dict()
        self.vocabulary = int(text.vocab_size)

    @torch.inference_mode()
    def bytes_after(self, tokens: int) -> int:
        """Bytes of the cache after a prefix of `tokens` tokens, one sequence."""
        generator = torch.Generator().manual_seed(tokens)
        ids = torch.randint(1, max(2, self.vocabulary - 1), (1, tokens), generator=generator)
        output = self._model(input_ids=ids, use_cache=True)
        cache = getattr(output, "past_key_values", None)
        if cache is None:
            cache = getattr(output, "cache_params", None)
        if cache is None:
            raise ModelError(f"{self.config.get('model_type')}: transformers returned no cache")
        return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(cache))


def load_model(folder: Path) -> Held:
    """The model of a folder in the dtype that it was saved in. Raises `ModelError`."""
    try:
        with _quiet():
            return Held(AutoModelForCausalLM.from_pretrained(folder, dtype="auto"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: transformers cannot load it: {error}") from error


def random_model(config: Mapping[str, Any]) -> Held:
    """A model with random weights in float32, from the fields of a config. Raises `ModelError`."""
    fields = dict(config)
    name = str(fields.pop("model_type"))
    try:
        with _quiet():
            made = AutoConfig.for_model(name, **fields)
            torch.manual_seed(0)
            return Held(AutoModelForCausalLM.from_config(made, dtype=torch.float32))  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{name}: transformers cannot build it: {error}") from error


def cache_bytes(held: Held, prefixes: Sequence[int]) -> list[int]:
    """Bytes after each of several prefixes, each computed on its own."""
    with _quiet():
        return [held.bytes_after(tokens) for tokens in prefixes]


def _tensors(cache: Any) -> Iterator[torch.Tensor]:
    """Every tensor that a cache holds, once: of its layers, and of lists that it keeps beside them."""
    seen: set[int] = set()
    beside = [value for name, value in vars(cache).items() if name != "layers" and isinstance(value, list)]
    for holder in (*(vars(layer) for layer in cache.layers), *({"beside": value} for value in beside)):
        for name, value in holder.items():
            # Counters of positions are no part of the cache's content.
            if name.startswith(("_", "cumulative")):
                continue
            found = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
            )
            for tensor in found:
                if isinstance(tensor, torch.Tensor) and tensor.numel() > 1 and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor
