"""A measurement as a page gets it: every part is there, and one share is refused."""

from __future__ import annotations

from kvferry.runs.retention_summary import (
    ARMS,
    Arm,
    Beyond,
    Bin,
    Figure,
    Gate,
    HoldBack,
    Interval,
    Longer,
    MapFacts,
    Refused,
    Retention,
    Settings,
    Turn,
    Turns,
    Verdict,
)

__all__ = ["a_retention", "between"]


def between(low: float, high: float) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high, n=8)


def _arms(*names: str) -> dict[str, Figure]:
    return {name: between(0.1 * at, 0.1 * at + 0.2) for at, name in enumerate(names or ARMS)}


def _bin(first: int, last: int, *names: str) -> Bin:
    return Bin(first=first, last=last, nll_per_token=_arms(*names), kl=_arms(*names), top1=_arms(*names))


def a_retention() -> Retention:
    some = ("target", "mapped", "raw", "none")
    names = ("top1@32", "floor_retention", "beyond_top1", "retention", "kl", "slope_nll")
    shares = ("floor_retention_accuracy", "gap_recovered_accuracy")
    return Retention(
        kvferry="0",
        source="small",
        target="large",
        map=MapFacts(name="closed form", file="map", trained_tokens=100, calibrated_positions=256),
        settings=Settings(
            tasks=("code",),
            items_file="",
            limit=8,
            context_tokens=192,
            continuation_tokens=128,
            hold_back=(1, 16),
            seed=0,
        ),
        gate=Gate(source_strip_error=1e-7, target_strip_error=1e-7, injected_logit_error=1e-6),
        arms={name: Arm(note=f"how {name} is made") for name in ARMS},
        documents=16,
        items={"code": 8, "needle": 8},
        figures={
            **{name: between(0.5, 0.6) for name in (*names, *shares)},
            "gap_recovered": Refused(reason="no gap"),
        },
        nll_per_character=_arms(),
        nll_per_token=_arms(),
        kl=_arms(),
        top1={horizon: _arms() for horizon in ("1", "32", "128")},
        gains=_arms("target", "source", "raw", "random", "wrong", "none"),
        accuracy={"needle": _arms(), "all": _arms()},
        exact={"needle": _arms(), "all": _arms()},
        accuracy_differences=_arms("target", "none"),
        curve=(_bin(1, 1), _bin(2, 4), _bin(5, 16), _bin(17, 32), _bin(33, 64)),
        beyond=Beyond(
            offset=1024,
            curve=(_bin(1, 1, *some), _bin(2, 4, *some), _bin(5, 16, *some), _bin(17, 32, *some)),
            nll_per_token=_arms(*some),
            kl=_arms(*some),
            top1=_arms(*some),
            lost_top1=_arms("mapped", "raw", "none"),
        ),
        longer=Longer(
            items=16,
            documents=16,
            continued_documents=8,
            calibrated=256,
            shortest=400,
            longest=512,
            nll_per_character=_arms(),
            kl=_arms(),
            top1=_arms(),
            gains=_arms("source", "raw", "random", "wrong", "none"),
            floor_retention=between(0.7, 0.8),
            accuracy={"needle": _arms(), "all": _arms()},
            retention=between(0.5, 0.6),
        ),
        hold_back=tuple(
            HoldBack(
                tokens=tokens,
                nll_per_token=_arms("mapped", "none"),
                top1=_arms("mapped", "none"),
                gain=between(0.1, 0.2),
            )
            for tokens in (1, 16)
        ),
        turns=Turns(
            turn_tokens=32,
            turns=tuple(
                Turn(
                    handoffs=at,
                    nll_difference=between(0.1 * at, 0.2 * at),
                    kl=between(0.1, 0.2),
                    top1=between(0.8, 0.9),
                )
                for at in (1, 2, 3)
            ),
            slope_nll=between(0.05, 0.1),
            slope_top1=between(-0.1, 0.0),
        ),
        notes=("a note",),
        seconds={"items": 1.0},
        verdict=Verdict(
            answer="do not use",
            usable=False,
            failed=False,
            reasons=("agreement is low",),
            thresholds={"top1@32": 0.9, "floor_retention": 0.9, "beyond_top1": 0.9, "documents": 8.0},
            longer="contexts of 400 to 512 tokens, longer than the 256 calibrated positions: do not use; low",
        ),
    )
