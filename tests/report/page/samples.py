"""A made-up analysis in which every part of the page has something to show."""

from __future__ import annotations

import math

from kvferry.analysis.result import (
    Analysis,
    Capacity,
    ClassResult,
    CurvePoint,
    FlowPicture,
    FlowPoint,
    Flows,
    Hits,
    IntervalBin,
    Mark,
    Misses,
    PolicyPoint,
    PoolGain,
    ProblemLine,
    Publication,
    Routing,
    SampledCurve,
    TraceProblems,
    Window,
)

__all__ = ["HOSTILE", "a_class", "an_analysis"]

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
"""What a label in a user's file may hold."""

BYTES_PER_TOKEN = 327_680
GIB = 2**30


def hit_at(tokens: float) -> float:
    """A curve that looks like one of a conversation: 37.4% in the end."""
    return 0.374 / (1.0 + math.exp(-1.9 * (math.log10(tokens) - 6.6)))


def points(scale: float = 1.0) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(
            capacity_bytes=int(10 ** (4.0 + step / 30)) * BYTES_PER_TOKEN,
            capacity_tokens=int(10 ** (4.0 + step / 30)),
            hit_by_token=scale * hit_at(10 ** (4.0 + step / 30)),
            hit_useful_tokens=scale * 0.98 * hit_at(10 ** (4.0 + step / 30)),
        )
        for step in range(130)
    )


def policy(name: str, tokens: int, gain: float) -> PolicyPoint:
    hit = min(0.374, gain * hit_at(tokens))
    return PolicyPoint(
        policy=name,
        capacity_bytes=tokens * BYTES_PER_TOKEN,
        capacity_tokens=tokens,
        hit_by_token=hit,
        hit_useful_tokens=0.98 * hit,
    )


def mark(name: str, capacity_bytes: int) -> Mark:
    tokens = capacity_bytes // BYTES_PER_TOKEN
    return Mark(name=name, capacity_bytes=capacity_bytes, capacity_tokens=tokens, hit_by_token=hit_at(tokens))


def misses(hit: float, evicted: float, placement: float) -> Misses:
    total = 144_793_823
    parts = [int(share * total) for share in (hit, evicted, placement, 0.019)]
    return Misses(
        hit=parts[0],
        evicted=parts[1],
        placement=parts[2],
        partial_block=parts[3],
        never_seen=total - sum(parts),
    )


def routing(hit: float, evicted: float, placement: float, busiest: float) -> Routing:
    return Routing(
        hit_by_token=hit,
        hit_useful_tokens=0.98 * hit,
        busiest_share=busiest,
        misses=misses(hit, evicted, placement),
    )


def a_class(name: str, requests: int, share: float, hit: float) -> ClassResult:
    tokens = int(share * 144_793_823)
    return ClassResult(
        name=name,
        requests=requests,
        input_tokens=tokens,
        token_share=share,
        hit_by_token=hit,
        hit_useful_tokens=0.98 * hit,
        unique_tokens=int((1 - hit) * tokens),
        top_tenth_share=0.71 if hit else None,
        interval_p50_seconds=38.0 if hit else None,
        interval_p95_seconds=410.0 if hit else None,
        ttl_seconds=1260.0 if hit else None,
        never_read_tokens=int(0.7 * (1 - hit) * tokens),
        publication=tuple(
            Publication(
                policy=policy,
                written_tokens=int(written * tokens),
                served_tokens=int(served * hit * tokens),
                never_read_tokens=int(unread * tokens),
            )
            for policy, written, served, unread in (
                ("never", 0.0, 0.0, 0.0),
                ("declared", 0.1, 0.3, 0.02),
                ("second-touch", 0.22, 0.74, 0.05),
                ("all", 0.63, 1.0, 0.44),
            )
        ),
        sharing=None,
    )


def an_analysis(
    path: str = "conversation_trace.jsonl", class_name: str = "chat", mark_name: str = "one replica"
) -> Analysis:
    """Every field that the page draws is there."""
    return Analysis(
        path=path,
        format="mooncake",
        block_tokens=512,
        bytes_per_token=float(BYTES_PER_TOKEN),
        model="llama-3-70b",
        replicas=10,
        requests=12_031,
        input_tokens=144_793_823,
        output_tokens=4_121_801,
        span_seconds=3537.0,
        blocks=288_743,
        unique_blocks=182_790,
        unique_tokens=93_588_480,
        unique_bytes=93_588_480 * BYTES_PER_TOKEN,
        problems=TraceProblems(rows=2, first=(ProblemLine(line=17, message=f"not JSON: {class_name}"),)),
        cannot=("declared publication: no request declares a boundary",),
        hit=Hits(
            by_token=0.3736,
            by_block=0.3664,
            by_full_block=0.382,
            mean_of_requests=0.409,
            useful_tokens=0.3658,
        ),
        curve=points(),
        sampled=SampledCurve(
            rate=0.01, sampled_blocks=1828, mean_error=0.0031, worst_error=0.0112, points=points(0.985)
        ),
        policies=tuple(
            policy(name, tokens, gain)
            for tokens in (130_000, 1_600_000)
            for name, gain in (("s3fifo", 1.12), ("gdsf", 1.05), ("belady", 1.5))
        ),
        marks=(mark(mark_name, 40 * GIB), mark("ten replicas", 400 * GIB), mark("the pool", 2000 * GIB)),
        capacity=Capacity(
            physical_bytes=80 * GIB,
            active_decode_bytes=30 * GIB,
            reserved_bytes=8 * GIB,
            fragmentation_bytes=2 * GIB,
            effective_bytes=40 * GIB,
        ),
        intervals=tuple(
            IntervalBin(
                from_seconds=0.0 if step == 0 else 2.0 ** (step - 1),
                to_seconds=2.0**step,
                tokens=int(54e6 * math.exp(-((step - 6.2) ** 2) / 7)),
            )
            for step in range(13)
        ),
        misses=misses(0.139, 0.211, 0.02),
        misses_routing="longest_prefix",
        routing={
            "random": routing(0.103, 0.14, 0.125, 0.108),
            "round_robin": routing(0.102, 0.141, 0.126, 0.104),
            "least_loaded": routing(0.104, 0.139, 0.124, 0.101),
            "longest_prefix": routing(0.139, 0.232, 0.001, 0.62),
            "prefix_load": routing(0.322, 0.03, 0.016, 0.113),
        },
        pool_gain=PoolGain(
            best_local="prefix_load",
            best_local_hit_by_token=0.322,
            pool_capacity_bytes=2000 * GIB,
            pool_capacity_tokens=2000 * GIB // BYTES_PER_TOKEN,
            pool_hit_by_token=0.366,
            ratio=1.137,
            against_random=3.55,
        ),
        worst_window=Window(
            seconds=900.0,
            read_start_seconds=2200.0,
            read_bits_per_second=46.0e9,
            write_start_seconds=150.0,
            write_bits_per_second=74.1e9,
        ),
        flows=Flows(
            step_seconds=30.0,
            series=tuple(
                FlowPoint(
                    start_seconds=30.0 * step,
                    read_bits_per_second=1e9 * (24 + 20 * step / 118 + 9 * math.sin(step * 1.7)),
                    write_bits_per_second=1e9 * (72 - 14 * step / 118 + 12 * math.cos(step * 2.3)),
                )
                for step in range(118)
            ),
            storage_nodes=4,
            replicas=10,
            pictures=tuple(
                FlowPicture(
                    name=name,
                    what=what,
                    seconds=900.0,
                    read_bits_per_second=read * 1e9,
                    write_bits_per_second=write * 1e9,
                    replica_bits_per_second=copies * 1e9,
                    per_node_bits_per_second=(read + write + copies) * 1e9 / 4,
                )
                for name, what, read, write, copies in (
                    ("steady", "every replica is warm", 46.0, 74.1, 0.0),
                    (
                        "new-replicas",
                        "as many replicas again start empty and load all that they need",
                        92.0,
                        74.1,
                        0.0,
                    ),
                    ("miss-burst", "every hit of the window misses locally at once", 131.0, 74.1, 0.0),
                    ("node-lost", "a storage node is lost and its blocks are copied again", 46.0, 74.1, 21.3),
                )
            ),
        ),
        class_field="class",
        classes=(
            a_class(class_name, 8200, 0.61, 0.44),
            a_class("agent with a long tool list", 2900, 0.3, 0.31),
            a_class("one-off", 931, 0.09, 0.0),
        ),
        recommendation="Route by prefix and load first: it triples the local hits with no byte on a wire; "
        "a pool adds 4.4 points more.",
    )
