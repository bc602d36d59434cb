"""From logits to the next token. Greedy by default; otherwise seeded, so that a run can be repeated."""

from __future__ import annotations

import hashlib

import torch

from ...serving.contract import Sampling

__all__ = ["Chooser"]


class Chooser:
    """Chooses the tokens of one request.

    Without a seed of its own, a request's randomness comes from its id: never from the machine.
    """

    def __init__(self, sampling: Sampling, rid: str) -> None:
        self._temperature = sampling.temperature
        self._top_p = sampling.top_p
        self._random: torch.Generator | None = None
        if self._temperature > 0:
            seed = sampling.seed
            if seed is None:
                seed = int.from_bytes(hashlib.sha256(rid.encode()).digest()[:7], "big")
            self._random = torch.Generator().manual_seed(seed)

    def choose(self, logits: torch.Tensor) -> int:
        """The next token's id; `logits` is [vocabulary] in float32."""
        if self._random is None:
            return int(logits.argmax())
        chances = torch.softmax(logits / self._temperature, dim=-1)
        if self._top_p < 1:
            chances = _nucleus(chances, self._top_p)
        return int(torch.multinomial(chances, 1, generator=self._random))


def _nucleus(chances: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the likeliest tokens that together reach `top_p`; always at least one."""
    ordered, order = chances.sort(descending=True)
    beyond = ordered.cumsum(0) - ordered >= top_p
    beyond[0] = False
    return chances.scatter(0, order[beyond], 0.0)
