"""What `kvferry handoff send` and `receive` print for people: one line a hand-off."""

from __future__ import annotations

from typing import Any

from ..units import format_bytes, format_rate, format_seconds
from .output import write_columns

__all__ = ["receive_table", "send_table"]


def send_table(lines: list[dict[str, Any]]) -> None:
    """Of the prefill node."""
    rows = [("hand-off", "tokens", "codec", "bytes", "prefill", "ready there", "longest leg", "answer")]
    for line in lines:
        said = line["reason"].replace("_", " ") + (f": {line['detail']}" if line["detail"] else "")
        rows.append(
            (
                line["id"],
                str(line["prompt_tokens"]),
                line["codec"],
                format_bytes(line["bytes"]),
                format_seconds(line["prefill_seconds"]),
                _seconds(line["ready_seconds"]),
                line["dominant_leg"].replace("_", " "),
                said,
            )
        )
        if line["bytes_per_second"] is not None:
            print(
                f"link: {format_rate(line['bytes_per_second'])}, "
                f"round trip {format_seconds(line['round_trip_seconds'])}"
            )
    write_columns(rows, right=(1, 3, 4, 5))


def receive_table(lines: list[dict[str, Any]]) -> None:
    """Of the decode node."""
    rows = [("hand-off", "codec", "ready", "local prefill", "first token", "ledger", "decision", "answer")]
    for line in lines:
        predicted = line["predicted"] or {}
        local = line["local_prefill_seconds"] or predicted.get("local_prefill_seconds")
        mark = "" if line["local_prefill_seconds"] else "~"
        rows.append(
            (
                line["id"],
                line["codec"],
                _seconds(line["ready_seconds"]),
                mark + _seconds(local),
                _seconds(line["first_token_seconds"]),
                ", ".join(f"{name} {tokens}" for name, tokens in line["ledger"].items()),
                (line["detail"] or line["reason"]).replace("_", " "),
                " ".join(line["text"].split())[:40],
            )
        )
    write_columns(rows, right=(2, 3, 4))


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
