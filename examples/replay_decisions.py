"""Re-decides every request of a run from its record alone, and says where the answers differ.

    python examples/replay_decisions.py RUN

RUN is a run directory, or any folder with a run.json and a decisions.jsonl. A record holds everything that
the gate knew (`facts`) and everything that it was told (`terms`), so asking again must give the recorded
answer. Two reasons are not the gate's: `busy` and `no_memory` may be written by the cache, after the gate
has said to load, when no slot or no memory was to be had. Those are counted apart.

Exit status 1 when a decision differs.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from kvferry.gate.decide import decide
from kvferry.gate.facts import Decision, Reason
from kvferry.runs import RunDirectory
from kvferry.runs.decisions import DecisionRecord

_BY_THE_CACHE = (Reason.BUSY, Reason.NO_MEMORY)
_PRICES = ("load_median_seconds", "load_high_seconds", "recompute_seconds", "margin_seconds")


def compared(record: DecisionRecord, recorded: Decision) -> str:
    """same, overruled (by the cache, after the gate) or different."""
    if record.facts is None:
        return "different"
    again = decide(record.facts, record.terms)
    if (again.end_block, again.reason) == (recorded.end_block, recorded.reason):
        return "same"
    if again.loads and recorded.reason in _BY_THE_CACHE:
        return "overruled"
    return "different"


def farthest_price(record: DecisionRecord, recorded: Decision) -> float:
    """The largest relative difference between a recorded price and the same price now."""
    if record.facts is None:
        return 0.0
    again = decide(record.facts, record.terms)
    pairs: list[tuple[float, float]] = [(getattr(recorded, name), getattr(again, name)) for name in _PRICES]
    return max(abs(now - then) / then if then else abs(now) for then, now in pairs)


def main(run: str) -> int:
    counts: Counter[str] = Counter()
    farthest = 0.0
    records: list[DecisionRecord] = list(RunDirectory.open(Path(run)).decisions(DecisionRecord))
    for record in records:
        if record.decision is None:
            counts["without a decision"] += 1
            continue
        verdict = compared(record, record.decision)
        counts[verdict] += 1
        farthest = max(farthest, farthest_price(record, record.decision))
        if verdict != "same":
            print(f"{record.request_id}: {record.decision.reason} was recorded: {verdict}")
    print(f"{len(records)} records: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    print(f"prices agree within {farthest:.2%}")
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} RUN")
    sys.exit(main(sys.argv[1]))
