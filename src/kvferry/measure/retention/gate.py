"""The first gate: nothing is measured before two things hold, since every figure would be of something else.

Stripped keys are the model's own before it turned them (both models), and a native cache that is injected
again gives the logits that it gave (the target).
"""

from __future__ import annotations

import torch

from ...errors import ModelError
from ...runs.retention_summary import Gate
from .reader import Reader

__all__ = ["check_gate"]

_TOKENS = 48


def check_gate(source: Reader, target: Reader) -> Gate:
    """Raises ModelError where one does not hold."""
    strips = source.model.check_strip(), target.model.check_strip()
    error = injected_error(target)
    allowed = 1e-3 if target.model.dtype == torch.float32 else 0.1
    if not error <= allowed:
        raise ModelError(
            f"{target.kv.name}: with its own KV injected again its logits are off by {error:.2g} of their "
            f"spread (at most {allowed:g} is rounding): nothing that is injected can be judged"
        )
    return Gate(source_strip_error=strips[0], target_strip_error=strips[1], injected_logit_error=error)


def injected_error(reader: Reader) -> float:
    """Largest difference of log-probabilities, read in one go and behind injected KV, over their spread.

    The text is a third within the KV and the rest behind it; its tokens are spread over the vocabulary.
    """
    size = int(reader.model.config.vocab_size)
    ids = [(1 + at * max(1, size // (_TOKENS + 1))) % size for at in range(_TOKENS)]
    held = _TOKENS // 3
    (whole,) = reader.behind(None, 0, ids[:1], [ids[1:]])
    layers = reader.prefill(ids[: held - 1]).layers
    (injected,) = reader.behind(layers, held - 1, ids[held - 1 : held], [ids[held:]])
    plain = whole[held - 1 :]
    return float((plain - injected).abs().max() / plain.std())
