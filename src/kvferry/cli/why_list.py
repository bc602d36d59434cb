"""`kvferry why RUN` without a request: which requests there are, the most telling first.

Owns the order and the few columns by which a reader picks a request; its story is `why`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..report.decisions import seconds
from ..runs.decisions import DecisionRecord
from ..units import counted
from .output import write_columns

__all__ = ["list_requests"]

_MOST_ROWS = 12


def list_requests(run: str, records: Sequence[DecisionRecord]) -> None:
    """Print how many requests took which path, a dozen of them, and how to see one."""
    paths = Counter(_outcome(record) for record in records)
    spread = ", ".join(f"{n:,} {path}" for path, n in paths.most_common())
    print(f"{counted(len(records), 'request')} in {run}: {spread}")
    # By what a wrong decision lost; those that lost nothing, the newest first.
    order = sorted(records, key=lambda record: (-record.lost_seconds, -record.arrival))
    rows: list[tuple[str, ...]] = [
        ("request", "replica", "prompt", "became ready by", "decision", "first token", "lost")
    ]
    rows += [_row(record) for record in order[:_MOST_ROWS]]
    write_columns(rows, right=(2, 5, 6), indent="  ")
    left_out = len(records) - _MOST_ROWS
    if left_out > 0:
        print(f"  ... and {left_out:,} more, in {run}/decisions.jsonl")
    print(f"kvferry why {run} {order[0].request_id}  tells its story")


def _outcome(record: DecisionRecord) -> str:
    return "aborted" if record.aborted else record.path.replace("_", " ")


def _row(record: DecisionRecord) -> tuple[str, ...]:
    return (
        record.request_id,
        record.replica,
        f"{record.prompt_tokens:,}",
        _outcome(record),
        "-" if record.decision is None else record.decision.reason.value.replace("_", " "),
        seconds(record.actual.ttft_seconds),
        seconds(record.lost_seconds) if record.lost_seconds > 0.0 else "-",
    )
