"""One item as a line of a run's requests.jsonl: what every arm made of it.

Owns the line's names. Texts are left out: they are the user's, or can be made again from the seed.
"""

from __future__ import annotations

from typing import Any

from .asking import SHORT, Asked
from .scoring import Continued

__all__ = ["record_of"]


def record_of(asked: Asked, number: int) -> dict[str, Any]:
    """Figures of each arm; an arm of another vocabulary has no KL and no agreement."""
    return {
        "item": number,
        "task": asked.item.task,
        "document": asked.item.document,
        "context_tokens": asked.context_tokens,
        "arms": {
            **{name: _continued(one) for name, one in asked.continued.items()},
            **{name: {"right": one.right, "exact": one.exact} for name, one in asked.chosen.items()},
        },
        "hold_back": {
            str(tokens): {name: _continued(one) for name, one in arms.items()}
            for tokens, arms in asked.held_back.items()
        },
        "beyond": {name: _continued(one) for name, one in asked.beyond.items()},
    }


def _continued(one: Continued) -> dict[str, Any]:
    return {
        "tokens": int(one.nll.size),
        "nll": float(one.nll.sum()),
        "characters": one.characters,
        "kl": None if one.kl is None else float(one.kl.mean()),
        "top1": None if one.same is None else float(one.same.mean()),
        f"top1_at_{SHORT}": None if one.same is None else float(one.same[:SHORT].mean()),
    }
