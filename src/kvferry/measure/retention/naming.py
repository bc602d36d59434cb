"""The figures that `--require` knows, each from where it was found.

Owns which name is which figure; `requirements.py` says in which direction each is better.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runs.retention_summary import Beyond, Figure, Longer, Refused, Turns
from .answers import Choices
from .scoring import Continued
from .summing import HORIZONS, Continuations

__all__ = ["name_figures"]


def name_figures(
    continued: Continuations,
    chosen: Choices,
    top1: Mapping[str, Mapping[str, Figure]],
    gains: Mapping[str, Figure],
    beyond: Beyond | Refused,
    turns: Turns | Refused,
    longer: Longer | Refused,
) -> dict[str, Figure]:
    """Every name, the mapped arm's figure."""
    nothing = Refused(reason="no item has a continuation: give the task code, or items with one")

    def gain(name: str) -> Figure:
        return gains.get(name, nothing if not continued.asked else Refused(reason=f"there is no arm {name}"))

    return {
        "top1": top1["32"].get("mapped", nothing),
        **{f"top1@{horizon}": top1[str(horizon)].get("mapped", nothing) for horizon in HORIZONS},
        "kl": continued.kl().get("mapped", nothing),
        "nll_difference": continued.difference("mapped", "target", _nll),
        "floor_retention": continued.floor_retention(),
        "gap_recovered": continued.gap_recovered(),
        **{f"gain_over_{name}": gain(name) for name in ("none", "random", "wrong")},
        "beyond_top1": beyond if isinstance(beyond, Refused) else beyond.top1["mapped"],
        "longer_top1": longer if isinstance(longer, Refused) else longer.top1.get("mapped", nothing),
        "longer_floor_retention": longer if isinstance(longer, Refused) else longer.floor_retention,
        "longer_retention": longer if isinstance(longer, Refused) else longer.retention,
        "accuracy": chosen.mapped(),
        "retention": chosen.retention(),
        "floor_retention_accuracy": chosen.floor_retention(),
        "gap_recovered_accuracy": chosen.gap_recovered(),
        "slope_nll": turns if isinstance(turns, Refused) else turns.slope_nll,
        "slope_top1": turns if isinstance(turns, Refused) else turns.slope_top1,
    }


def _nll(one: Continued) -> float:
    return float(one.nll.mean())
