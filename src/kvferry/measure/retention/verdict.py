"""Whether a map may be used: thresholds that were fixed before anything was measured, and the word.

The default is no. It is lifted where intervals, not estimates, clear the thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...runs.retention_summary import Figure, Longer, Refused, Verdict

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


def judge(
    figures: Mapping[str, Figure], gains: Mapping[str, Figure], documents: int, longer: Longer | Refused
) -> Verdict:
    """The word on a map.

    `figures` by the names of --require; `gains` over each control that there is; documents continued, within
    the calibrated positions; what was found on longer contexts, which the same thresholds judge apart.
    """
    reasons, failed = _faults(figures["top1@32"], figures["floor_retention"], gains, documents)
    usable = not reasons
    far = _far_reasons(longer)
    beyond = figures["beyond_top1"]
    # Where further behind shows nothing, longer contexts show it all.
    shifted = (
        []
        if isinstance(beyond, Refused)
        else _short_of(beyond, "agreement beyond the calibrated positions", TOP1_AT_32)
    )
    useful = "use" if not far and not shifted else "use inside the calibrated positions"
    return Verdict(
        answer=useful if usable else "do not use",
        usable=usable,
        failed=failed,
        reasons=(*reasons, *shifted),
        thresholds={
            "top1@32": TOP1_AT_32,
            "floor_retention": FLOOR_RETENTION,
            "beyond_top1": TOP1_AT_32,
            "longer_top1": TOP1_AT_32,
            "longer_floor_retention": FLOOR_RETENTION,
            "documents": float(FEWEST_DOCUMENTS),
        },
        longer=_far_line(longer, far),
    )


def _far_reasons(longer: Longer | Refused) -> list[str]:
    if isinstance(longer, Refused):
        return [longer.reason]
    gains = {name: longer.gains[name] for name in CONTROLS if name in longer.gains}
    none = Refused(reason="no longer item has a continuation: give the task code, or items with one")
    top1 = longer.top1.get("mapped", none)
    return _faults(top1, longer.floor_retention, gains, longer.continued_documents)[0]


def _far_line(longer: Longer | Refused, reasons: list[str]) -> str:
    if isinstance(longer, Refused):
        return f"contexts longer than those calibrated: not judged, {longer.reason}"
    said = (
        f"contexts of {longer.shortest:,} to {longer.longest:,} tokens, longer than the "
        f"{longer.calibrated:,} calibrated positions: "
    )
    return said + ("use" if not reasons else f"do not use; {'; '.join(reasons)}")


def _faults(
    top1: Figure, floor_retention: Figure, gains: Mapping[str, Figure], documents: int
) -> tuple[list[str], bool]:
    """What is short of its threshold, and whether the map is no better than a control."""
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
    reasons += _short_of(top1, "agreement with the target over 32 tokens", TOP1_AT_32)
    reasons += _short_of(floor_retention, "what it keeps of a context's worth", FLOOR_RETENTION)
    return reasons, failed


def _short_of(figure: Figure, said: str, least: float) -> list[str]:
    if isinstance(figure, Refused):
        return [f"{said} is not known: {figure.reason}"]
    if figure.low >= least:
        return []
    return [
        f"{said} is {figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f}); "
        f"the lower end must reach {least:g}"
    ]
