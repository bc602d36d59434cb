"""Whether a map may be used: thresholds that were fixed before anything was measured, and the word.

The default is no. It is lifted where intervals, not estimates, clear the thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runs.retention_summary import Figure, Refused, Verdict

__all__ = [
    "CONTROLS",
    "FEWEST_DOCUMENTS",
    "FLOOR_RETENTION",
    "TOP1_AT_32",
    "judge",
]

TOP1_AT_32 = 0.90
"""At least so much agreement with the target over 32 tokens: the lower end of the interval."""

FLOOR_RETENTION = 0.90
"""At least so much of what a context is worth in likelihood: the lower end of the interval."""

FEWEST_DOCUMENTS = 8
"""Fewer say too little to lift a no."""

CONTROLS = ("none", "random", "wrong")
"""Arms that a map must beat, by an interval that excludes nothing, to have carried anything at all."""


def judge(figures: Mapping[str, Figure], gains: Mapping[str, Figure], documents: int) -> Verdict:
    """`figures` by the names of --require; `gains` over each control that there is; documents continued."""
    reasons, failed = [], False
    for control in CONTROLS:
        gain = gains.get(control)
        if gain is None:
            continue
        if isinstance(gain, Refused):
            failed = True
            reasons.append(f"not compared with {control}: {gain.reason}")
        elif gain.low <= 0:
            failed = True
            reasons.append(
                f"failed: not surely better than {control} ({gain.value:+.3f} nats a character, "
                f"{gain.low:+.3f} to {gain.high:+.3f})"
            )
    if documents < FEWEST_DOCUMENTS:
        reasons.append(f"{documents} documents with a continuation; {FEWEST_DOCUMENTS} are the fewest")
    for name, said, least in (
        ("top1@32", "agreement with the target over 32 tokens", TOP1_AT_32),
        ("floor_retention", "what it keeps of a context's worth", FLOOR_RETENTION),
    ):
        reasons += _short_of(figures[name], said, least)
    inside = not reasons
    beyond = _short_of(figures["beyond_top1"], "agreement beyond the calibrated positions", TOP1_AT_32)
    useful = "use inside the calibrated positions" if beyond else "use"
    return Verdict(
        answer=useful if inside else "do not use",
        usable=inside,
        failed=failed,
        reasons=(*reasons, *beyond),
        thresholds={
            "top1@32": TOP1_AT_32,
            "floor_retention": FLOOR_RETENTION,
            "beyond_top1": TOP1_AT_32,
            "documents": float(FEWEST_DOCUMENTS),
        },
    )


def _short_of(figure: Figure, said: str, least: float) -> list[str]:
    if isinstance(figure, Refused):
        return [f"{said} is not known: {figure.reason}"]
    if figure.low >= least:
        return []
    return [
        f"{said} is {figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f}); "
        f"the lower end must reach {least:g}"
    ]
