"""Facts for the gate: one plain situation to vary, and any situation that can be."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from kvferry.gate.facts import Arm, Facts, GateTerms, Live, Segment

BLOCK = 16
BYTES_PER_TOKEN = 1024

LIVE = Live(
    prefill_step_seconds=0.002,
    prefill_token_seconds=0.0005,
    prefill_pair_seconds=1e-8,
    prefill_median=1.0,
    prefill_observations=50,
    chunk_tokens=2048,
)
SEGMENT = Segment(
    tier=0,
    stop_block=64,
    setup_seconds=0.001,
    seconds_per_byte=1e-9,
    spread_median=1.0,
    spread_high=1.2,
    in_flight=0,
    observations=20,
)
FACTS = Facts(
    prompt_tokens=64 * BLOCK + 7,
    local_tokens=0,
    block_tokens=BLOCK,
    bytes_per_token=BYTES_PER_TOKEN,
    segments=(SEGMENT,),
    live=LIVE,
    arm=Arm.ON,
)


def facts(live: dict[str, Any] | None = None, segment: dict[str, Any] | None = None, **changes: Any) -> Facts:
    """64 blocks held by one fast, steady tier: loading pays, unless changed."""
    if live:
        changes["live"] = msgspec.structs.replace(LIVE, **live)
    if segment:
        changes["segments"] = (msgspec.structs.replace(SEGMENT, **segment),)
    return msgspec.structs.replace(FACTS, **changes)


@st.composite
def any_facts(draw: st.DrawFn, **fixed: Any) -> Facts:
    """Any situation that a machine could describe."""
    block = draw(st.sampled_from([1, 16, 32, 256]))
    prompt = draw(st.integers(0, 64 * block))
    local = draw(st.one_of(st.just(0), st.integers(0, prompt)))
    stop, segments = local // block, []
    for tier in range(draw(st.integers(0, 3))):
        stop += draw(st.integers(1, 30))
        median = draw(st.floats(0.5, 2.0))
        segments.append(
            Segment(
                tier=tier,
                stop_block=stop,
                setup_seconds=draw(st.sampled_from([0.0, 1e-4, 0.01, 1.0])),
                seconds_per_byte=draw(st.sampled_from([0.0, 1e-10, 1e-9, 1e-8, 1e-6])),
                spread_median=median,
                spread_high=median * draw(st.floats(1.0, 5.0)),
                in_flight=draw(st.integers(0, 4)),
                observations=draw(st.sampled_from([0, 3, 100])),
            )
        )
    live = Live(
        prefill_step_seconds=draw(st.sampled_from([0.0, 0.001, 0.1])),
        prefill_token_seconds=draw(st.sampled_from([0.0, 1e-5, 1e-3])),
        prefill_pair_seconds=draw(st.sampled_from([0.0, 1e-9, 1e-6])),
        prefill_median=draw(st.floats(0.5, 2.0)),
        prefill_observations=draw(st.sampled_from([10, 10, 10, 0])),
        chunk_tokens=draw(st.sampled_from([16, 512, 4096])),
        dispatch_seconds=draw(st.sampled_from([0.0, 0.1])),
        running_requests=draw(st.integers(0, 50)),
        decode_growth=draw(st.sampled_from([0.0, 0.1, 2.0])),
        held_seconds_per_load=draw(st.sampled_from([0.0, 0.01])),
        free_blocks=draw(st.sampled_from([1 << 40, 1 << 40, 1 << 40, 7, 1, 0])),
    )
    made = Facts(
        prompt_tokens=prompt,
        local_tokens=local,
        block_tokens=block,
        bytes_per_token=draw(st.sampled_from([1, 1024, 147_456])),
        segments=tuple(segments),
        live=live,
        arm=draw(st.sampled_from([Arm.ON, Arm.ON, Arm.ON, *Arm])),
        lookup_seconds=draw(st.sampled_from([0.0, 0.002])),
        queue_seconds=draw(st.sampled_from([0.0, 0.5])),
        max_load_tokens=draw(st.sampled_from([None, None, None, 1000, 100, 10, 0])),
        deadline_seconds=draw(st.sampled_from([None, 30.0, 30.0, 1.0, 0.01, 0.0])),
        explore=draw(st.booleans()),
    )
    return msgspec.structs.replace(made, **fixed)


@st.composite
def loadable_facts(draw: st.DrawFn) -> Facts:
    """Situations without caps in which loading may well pay."""
    stop, segments = 0, []
    for tier in range(draw(st.integers(1, 3))):
        stop += draw(st.integers(1, 30))
        segments.append(
            Segment(
                tier=tier,
                stop_block=stop,
                setup_seconds=draw(st.sampled_from([0.0, 0.001, 0.01])),
                seconds_per_byte=draw(st.floats(1e-11, 1e-7)),
                spread_median=1.0,
                spread_high=draw(st.floats(1.0, 2.0)),
                in_flight=0,
                observations=9,
            )
        )
    live = msgspec.structs.replace(
        LIVE,
        prefill_step_seconds=draw(st.sampled_from([0.0, 0.01])),
        prefill_token_seconds=draw(st.floats(1e-4, 1e-2)),
        running_requests=draw(st.integers(0, 20)),
        decode_growth=draw(st.sampled_from([0.0, 0.1])),
        chunk_tokens=draw(st.sampled_from([16, 4096])),
    )
    return msgspec.structs.replace(FACTS, prompt_tokens=stop * BLOCK + 1, segments=tuple(segments), live=live)


@st.composite
def any_terms(draw: st.DrawFn, **fixed: Any) -> GateTerms:
    """Any settings."""
    made = GateTerms(
        policy=draw(st.sampled_from(["rule", "rule", "always", "never"])),
        objective=draw(st.sampled_from(["latency", "throughput"])),
        margin_seconds=draw(st.sampled_from([1e-6, 0.002, 0.1])),
        margin_share=draw(st.sampled_from([0.0, 0.05, 0.5])),
        explore_limit=draw(st.sampled_from([1.0, 3.0])),
    )
    return msgspec.structs.replace(made, **fixed)
