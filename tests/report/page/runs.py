"""Run directories made for the pages: a demo that came to its end, and one that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvferry.clock import VirtualClock
from kvferry.config import load
from kvferry.gate.facts import Arm, Decision, Facts, GateTerms, Live, Reason
from kvferry.outcomes import Outcome
from kvferry.runs import RunDirectory
from kvferry.runs.decisions import SCHEMA_VERSION, Actual, DecisionRecord
from kvferry.runs.demo_summary import Arm as Times
from kvferry.runs.demo_summary import DemoSummary, Policy
from kvferry.runs.vllm_demo_summary import VllmDemoSummary

__all__ = ["a_demo", "a_killed_run", "a_record", "a_summary", "a_vllm_demo", "a_vllm_summary"]

LIVE = Live(
    prefill_step_seconds=0.01,
    prefill_token_seconds=0.004,
    prefill_pair_seconds=0.0,
    prefill_median=1.0,
    prefill_observations=9,
    chunk_tokens=256,
)


def a_record(
    request_id: str, path: str, seconds: float, *, arm: str = "pool", lost: float = 0.0
) -> DecisionRecord:
    """96 tokens in full blocks and 4 behind them, which were loaded or computed."""
    loads = path == "pool_hit"
    held = {
        "pool_hit": Outcome.POOL_HIT,
        "local_hit": Outcome.DEVICE_HIT,
        "declined": Outcome.DECLINED,
        "handoff": Outcome.HANDOFF,
    }
    return DecisionRecord(
        version=SCHEMA_VERSION,
        request_id=request_id,
        replica="A",
        arrival=0.0,
        tenant_class="default",
        mode="on",
        path=path,
        prompt_tokens=100,
        block_tokens=32,
        bytes_per_token=1024,
        found_end_block=3,
        facts=Facts(
            prompt_tokens=100,
            local_tokens=0,
            block_tokens=32,
            bytes_per_token=1024,
            segments=(),
            live=LIVE,
            arm=Arm.ON,
            lookup_seconds=0.001,
        ),
        terms=GateTerms(),
        decision=Decision(
            end_block=3 if loads else 0,
            reason=Reason.PAYS if loads else Reason.SLOWER,
            load_median_seconds=0.1,
            load_high_seconds=0.2,
            recompute_seconds=5.0,
            candidate_end_block=3,
            candidate_bytes=98_304,
        )
        if path in ("pool_hit", "declined")
        else None,
        ledger={held.get(path, Outcome.NEVER_PUBLISHED): 96, Outcome.PARTIAL_BLOCK: 4},
        actual=Actual(
            load_seconds=0.11 if loads else None,
            recompute_seconds=None if loads else 5.2,
            ttft_seconds=seconds,
        ),
        lost_seconds=lost,
        arm_label=arm,
    )


def a_summary(**changes: Any) -> DemoSummary:
    whole = DemoSummary(
        model="smollm2",
        plan="full",
        block_tokens=32,
        bytes_per_token=1024,
        arms={
            name: Times(n=n, p50_seconds=p50, p95_seconds=p95, p95_is_max=True)
            for name, n, p50, p95 in (
                ("cold", 3, 6.0, 6.2),
                ("local_hit", 3, 0.3, 0.32),
                ("pool_hit", 3, 0.4, 0.42),
                ("declined", 1, 5.5, 5.5),
                ("fallback", 1, 6.1, 6.1),
            )
        },
        ledger={"prompt_tokens": 1100},
        outputs_identical=True,
        differing=(),
        flip={"predicted_bytes_per_second": 1.1e7, "step": 1.2},
        flips=(
            {
                "replica": "A",
                "predicted_bytes_per_second": 1.2e7,
                "accepted_at": 1.3e7,
                "declined_at": 1.1e7,
                "tried": [
                    {"bytes_per_second": 1.3e7, "loaded": True},
                    {"bytes_per_second": 1.1e7, "loaded": False},
                ],
            },
        ),
        policies={
            "gate": Policy(total_seconds=28.0, lost_seconds=0.0, n=6),
            "always": Policy(total_seconds=41.0, lost_seconds=12.0, n=6),
            "never": Policy(total_seconds=38.0, lost_seconds=11.0, n=6),
        },
        prediction={"decisions": 4},
        pool_killed=None,
        bytes={"published": 2**30, "read": 2**31, "never_read": 0},
        checks={"outputs_identical": True, "ledger_sums_to_prompts": True},
        sentences=("Sharing saved 12 s of prefill.", "It would have cost on a slow link."),
    )
    return msgspec.structs.replace(whole, **changes)


def a_vllm_summary(**changes: Any) -> VllmDemoSummary:
    """Two requests of every arm, and a hundred counters of two servers."""
    arms = {
        "cold": 10.0,
        "local": 0.1,
        "pool": 0.5,
        "handoff": 0.6,
        "told": 9.0,
        "broken": 5.0,
        "killed": 9.5,
    }
    whole = VllmDemoSummary(
        model="smollm2",
        plan="quick",
        vllm="vllm 1",
        prompt_tokens=100,
        block_tokens=32,
        bytes_per_token=1024,
        arms={
            name: Times(n=2, p50_seconds=p50, p95_seconds=p50 + 1, p95_is_max=True)
            for name, p50 in arms.items()
        },
        loaded_tokens=dict.fromkeys(arms, 0),
        ledger={"prompt_tokens": 1600},
        reasons={},
        pool_minus_local_seconds=0.4,
        outputs_identical=True,
        differing=(),
        metrics={server: {f"counter_{n:03}_total": float(n) for n in range(100)} for server in "AB"},
        checks={"everything_published": True, "cold_loads_nothing": True},
    )
    return msgspec.structs.replace(whole, **changes)


def _create(path: Path, **equal: str) -> RunDirectory:
    loaded = load(env={})
    return RunDirectory.create(
        path,
        command=["kvferry", "demo"],
        config=loaded.config,
        origins=loaded.origins,
        seed=7,
        equal=equal,
        clock=VirtualClock(wall=0.0),
    )


def a_demo(path: Path, summary: DemoSummary | None = None, *, first_id: str = "A-0001") -> Path:
    """Eleven requests that the summary counts, and one that measured the link."""
    with _create(path) as run:
        paths = [("cold", 6.0), ("local_hit", 0.3), ("pool_hit", 0.4)] * 3
        paths += [("declined", 5.5), ("fallback", 6.1)]
        records = [a_record(f"A-{n:04}", name, at + 0.01 * n) for n, (name, at) in enumerate(paths)]
        records[2] = a_record(first_id, "pool_hit", 0.42)
        records.append(a_record("A-9999", "pool_hit", 2.0, arm="link"))
        for record in records:
            run.append_decision(record)
            run.append_request(
                {
                    "request_id": record.request_id,
                    "arm": record.arm_label,
                    "path": record.path,
                    "ttft_seconds": record.actual.ttft_seconds,
                }
            )
        run.write_summary(msgspec.to_builtins(summary or a_summary()))
    return path


def a_vllm_demo(path: Path, *, finished: bool = True) -> Path:
    """Two requests of every arm, and two prompts that were only computed for the other server."""
    paths = {
        "cold": "cold",
        "local": "local_hit",
        "pool": "pool_hit",
        "handoff": "handoff",
        "told": "declined",
    }
    with _create(path, engine="vllm", model="smollm2") as run:
        for number, (arm, times) in enumerate(a_vllm_summary().arms.items()):
            for half in range(2):
                kind, seconds = paths.get(arm, "fallback"), (times.p50_seconds or 0.0) + half
                record = a_record(f"A-{number}{half}", kind, seconds, arm=arm)
                run.append_decision(record)
                run.append_request(
                    {"request_id": record.request_id, "arm": arm, "path": kind, "ttft_seconds": seconds}
                )
        for half in range(2):
            run.append_decision(a_record(f"A-9{half}", "cold", 1.0, arm="prefill"))
        if finished:
            run.write_summary(msgspec.to_builtins(a_vllm_summary()))
    return path


def a_killed_run(path: Path) -> Path:
    """Two requests, and then nothing."""
    with _create(path) as run:
        run.append_decision(a_record("A-0001", "cold", 6.0))
        run.append_decision(a_record("A-0002", "pool_hit", 0.4, lost=0.5))
    return path
