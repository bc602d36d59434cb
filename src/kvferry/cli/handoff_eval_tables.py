"""What `kvferry handoff eval` prints for people: arms, figures with their intervals, and the verdict last."""

from __future__ import annotations

from collections.abc import Mapping

from ..runs.retention_summary import ARMS, Figure, Interval, Refused, Retention
from .output import write_columns

__all__ = ["eval_tables"]

_NAMES = {
    "top1@1": "agreement with the target, first token",
    "top1@32": "agreement over 32 tokens",
    "top1@128": "agreement over 128 tokens",
    "beyond_top1": "agreement over 32, beyond the calibrated positions",
    "longer_top1": "agreement over 32, contexts longer than calibrated",
    "longer_floor_retention": "kept of what a longer context is worth (NLL)",
    "longer_retention": "answers right behind longer contexts, of the target's",
    "kl": "KL(target || mapped), nats a token",
    "nll_difference": "NLL above the target's, nats a token",
    "floor_retention": "kept of what the context is worth (NLL)",
    "gap_recovered": "gap from source to target recovered (NLL)",
    "accuracy": "answers right",
    "retention": "answers right, of the target's",
    "floor_retention_accuracy": "kept of what the context is worth (answers)",
    "gap_recovered_accuracy": "gap from source to target recovered (answers)",
    "slope_nll": "NLL more with each hand-off, nats a token",
}
"""In the order in which they are printed; what --require knows besides is in --json."""


def eval_tables(found: Retention) -> None:
    """Every arm, the mapped arm's figures, notes, what was required; the verdict last."""
    print(f"{found.source} to {found.target}, {found.map.name}, {found.map.file}")
    counts = ", ".join(f"{count} {task}" for task, count in found.items.items())
    print(f"{counts}; {found.documents} documents, the same in every arm")
    print()
    _print_arms(found)
    if found.accuracy:
        print()
        _print_answers(found)
    print()
    rows = [("the mapped arm", "", "95 % interval")]
    known = [name for name in _NAMES if isinstance(found.figures[name], Interval)]
    rows += [(_NAMES[name], *_shown(found.figures[name])) for name in known]
    write_columns(rows, right=(1,), indent="  ")
    for name in _NAMES:
        figure = found.figures[name]
        if isinstance(figure, Refused) and not name.startswith(("beyond", "longer")):
            print(f"  no {name}: {figure.reason}")
    print()
    _print_hold_back(found)
    for note in found.notes:
        print(f"note: {note}")
    for one in found.required:
        value = "no figure" if isinstance(one.figure, Refused) else _end(one.figure, one.end)
        print(f"required {one.text}: {'met' if one.met else 'NOT met'} ({value})")
    print()
    print(f"verdict: {found.verdict.answer}")
    for reason in found.verdict.reasons:
        print(f"  {reason}")
    print(f"verdict on {found.verdict.longer}")


def _print_arms(found: Retention) -> None:
    rows: list[tuple[str, ...]] = [
        ("arm", "NLL a character", "KL to target", "top-1 at 1", "at 32", "at 128")
    ]
    for name in ARMS:
        if found.arms[name].absent:
            continue
        rows.append(
            (
                name,
                _value(found.nll_per_character, name),
                _value(found.kl, name),
                *(_value(found.top1[horizon], name) for horizon in ("1", "32", "128")),
            )
        )
    if found.nll_per_character:
        write_columns(rows, right=(1, 2, 3, 4, 5), indent="  ")
    for name, arm in found.arms.items():
        if arm.absent:
            print(f"  no arm {name}: {arm.absent}")


def _print_answers(found: Retention) -> None:
    tasks = list(found.accuracy)
    rows = [("answers right", *tasks)]
    rows += [
        (name, *(_value(found.accuracy[task], name) for task in tasks))
        for name in ARMS
        if any(name in found.accuracy[task] for task in tasks)
    ]
    write_columns(rows, right=tuple(range(1, len(tasks) + 1)), indent="  ")


def _print_hold_back(found: Retention) -> None:
    rows = [("tokens re-read", "top-1 at 32, mapped", "none", "NLL a token, mapped", "none")]
    rows += [
        (
            str(one.tokens),
            _value(one.top1, "mapped"),
            _value(one.top1, "none"),
            _value(one.nll_per_token, "mapped"),
            _value(one.nll_per_token, "none"),
        )
        for one in found.hold_back
        if one.top1
    ]
    if len(rows) > 1:
        write_columns(rows, right=(0, 1, 2, 3, 4), indent="  ")
        print()


def _value(figures: Mapping[str, Figure], name: str) -> str:
    figure = figures.get(name)
    return f"{figure.value:.3f}" if isinstance(figure, Interval) else ""


def _end(figure: Interval, end: str) -> str:
    return f"upper end {figure.high:.4f}" if end == "high" else f"lower end {figure.low:.4f}"


def _shown(figure: Figure) -> tuple[str, str]:
    if isinstance(figure, Refused):
        return "", figure.reason
    return f"{figure.value:.3f}", f"{figure.low:.3f} to {figure.high:.3f} (n = {figure.n})"
