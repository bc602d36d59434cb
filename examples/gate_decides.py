"""The gate without an engine: facts written by hand, a decision, and the bandwidth at which it would turn.

A prompt of 2,048 tokens, of which a pool holds the first 48 blocks of 32. The gate is a pure function: the
same facts give the same decision, here, in a replica and in a replay.
"""

from __future__ import annotations

import msgspec

from kvferry.gate.decide import decide
from kvferry.gate.facts import Arm, Facts, GateTerms, Live, Segment
from kvferry.gate.turn import turning_rate
from kvferry.units import MIB, format_rate, format_seconds

LIVE = Live(
    prefill_step_seconds=0.004,  # a: every chunk of 256 tokens
    prefill_token_seconds=0.0015,  # b: every token
    prefill_pair_seconds=2e-7,  # c: every pair of tokens, which is attention
    prefill_median=1.0,
    prefill_observations=50,
    chunk_tokens=256,
)


def facts(bytes_per_second: float) -> Facts:
    """The request, with the pool behind a link of this speed."""
    pool = Segment(
        tier=0,
        stop_block=48,
        setup_seconds=0.003,
        seconds_per_byte=1 / bytes_per_second,
        spread_median=1.0,
        spread_high=1.4,  # 95 % of loads take at most 1.4 times what was predicted
        in_flight=0,
        observations=20,
    )
    return Facts(
        prompt_tokens=2048,
        local_tokens=0,
        block_tokens=32,
        bytes_per_token=46_080,
        segments=(pool,),
        live=LIVE,
        arm=Arm.ON,
        lookup_seconds=0.001,
    )


def main() -> None:
    terms = GateTerms()
    for bytes_per_second in (400 * MIB, 40 * MIB, 20 * MIB):
        decision = decide(facts(bytes_per_second), terms)
        print(
            f"{format_rate(bytes_per_second):>10}: load p95 {format_seconds(decision.load_high_seconds)}, "
            f"recompute p50 {format_seconds(decision.recompute_seconds)}, "
            f"margin {format_seconds(decision.margin_seconds)}: "
            f"{'load' if decision.loads else 'compute'} ({decision.reason})"
        )
    print(f"the rule turns at {format_rate(turning_rate(facts(400 * MIB), terms))}")
    waited_for = msgspec.structs.replace(facts(100 * MIB), deadline_seconds=0.5)
    partial = decide(waited_for, terms)
    print(
        f"over 100 MiB/s with half a second to wait: blocks 0 to {partial.end_block - 1} ({partial.reason})"
    )


if __name__ == "__main__":
    main()
