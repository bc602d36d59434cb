"""Parts of the tier under vLLM's own offloading, by themselves."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

import numpy as np

from kvferry.engines.cacheside import Pass
from kvferry.engines.vllm.offloading.chunks import ChunkStaging, HostMemory, LoadChunks, StoreChunks
from kvferry.engines.vllm.offloading.pace import Pace
from kvferry.engines.vllm.offloading.recorder import StatsMetrics, definitions
from kvferry.errors import StoreError
from kvferry.outcomes import Outcome
from kvferry.telemetry import names


def host() -> tuple[np.ndarray, HostMemory]:
    rows = np.zeros((6, 64), dtype=np.int8)
    return rows, HostMemory(memoryview(rows))


def test_host_memory_is_rows_of_chunks() -> None:
    _, memory = host()
    assert (memory.chunks, memory.row_bytes) == (6, 64)
    with pytest.raises(StoreError, match="rows of one chunk"):
        HostMemory(memoryview(bytearray(64)))


def test_a_block_that_arrives_fills_its_chunk() -> None:
    rows, memory = host()
    chunks = memory.lend([4, 1])
    into = LoadChunks(chunks, [1, 0], ChunkStaging())
    for view, value in zip(into.views(0, 2), (7, 9), strict=True):
        view[:] = bytes([value]) * 64
    into.arrived(0)
    assert chunks.give_back() == b"\x00\x01"
    assert (rows[1] == 7).all()
    assert not rows[4].any()


def test_what_arrives_after_the_chunks_were_given_back_is_dropped() -> None:
    rows, memory = host()
    chunks = memory.lend([0])
    into = LoadChunks(chunks, [0], ChunkStaging())
    into.views(0, 1)[0][:] = b"\x05" * 64
    assert chunks.give_back() == b"\x00"
    into.arrived(0)
    assert not rows.any()


def test_a_store_reads_copies_until_its_chunks_are_given_back() -> None:
    rows, memory = host()
    rows[3] = 8
    chunks = memory.lend([3])
    source = StoreChunks(chunks, 10, [0], ChunkStaging())
    (copy,) = source.views(10, 11)
    rows[3] = 1
    assert bytes(copy) == b"\x08" * 64
    chunks.give_back()
    with pytest.raises(StoreError, match="given up"):
        source.views(10, 11)


def test_host_memory_that_was_taken_back_is_not_lent() -> None:
    _, memory = host()
    memory.release()
    with pytest.raises(StoreError, match="taken its host memory back"):
        memory.lend([0])


def drive(durations: list[float], prompts: dict[int, tuple[str, list[int]]], ahead: int) -> list[Pass]:
    """Steps of these lengths. `prompts` maps a step to a request and the ends of its chunks, one a step;
    with `ahead` a step is scheduled that many steps before the one before it has ended.
    """
    passes: list[Pass] = []
    pace = Pace(passes.append)
    ends = np.cumsum([0.0, *durations])
    handed: dict[int, list[tuple[str, int]]] = {}
    for step in range(len(durations)):
        for rid, end in handed.pop(step, []):
            pace.computed(rid, end)
        rid, chunks = prompts.get(step, ("", []))
        for i, end in enumerate(chunks):
            handed.setdefault(step + i + 2 + ahead, []).append((rid, end))
        pace.scheduled(float(ends[max(0, step - ahead)]), {rid: 0} if rid else {}, 1)
        if not handed:
            for known in {rid for rid, _ in prompts.values()}:
                pace.ready(known)
    return passes


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_prefill_is_timed_whether_or_not_steps_are_scheduled_ahead(ahead: int) -> None:
    durations = [0.01] * 40
    for step in (3, 15, 27):
        durations[step] = 0.5
    prompts = {3: ("a", [512]), 15: ("b", [512]), 27: ("c", [512])}
    passes = [p for p in drive(durations, prompts, ahead) if p.prefills]
    assert [p.prefills[0][1] for p in passes] == [512] * 3
    assert [round(p.seconds, 3) for p in passes[1:]] == [0.5, 0.5]


def test_a_prompt_in_chunks_is_a_pass_for_each() -> None:
    durations = [0.01, 0.2, 0.3, 0.4, *[0.01] * 20]
    passes = [p for p in drive(durations, {1: ("a", [100, 200, 300])}, 0) if p.prefills]
    assert [(list(p.prefills), round(p.seconds, 3)) for p in passes] == [
        ([("a", 100, 0)], 0.2),
        ([("a", 100, 100)], 0.3),
        ([("a", 100, 200)], 0.4),
    ]


def test_time_that_the_engine_waits_for_work_is_no_step() -> None:
    passes: list[Pass] = []
    pace = Pace(passes.append)
    pace.scheduled(0.0, {"a": 0}, 0)
    pace.scheduled(0.1, {}, 0)
    pace.computed("a", 64)
    pace.finished("a", idle=True)
    for step in range(12):
        pace.scheduled(100.0 + step / 100, {}, 1)
    assert all(p.seconds < 1.0 for p in passes)


def test_every_family_is_told_to_vllm() -> None:
    assert list(definitions()) == [metric.name for metric in names.METRICS]


def test_samples_between_two_fetches_are_bounded() -> None:
    metrics = StatsMetrics()
    for _ in range(10_050):
        metrics.ready(names.Path.COLD, 0.1)
    stats = metrics.take()
    assert stats is not None
    assert stats.reduce()["kvferry_ready_seconds:('cold',)_count"] == 10_000
    assert metrics.take() is None


def test_label_values_are_plain_text() -> None:
    metrics = StatsMetrics()
    metrics.booked({Outcome.POOL_HIT: 3})
    stats = metrics.take()
    assert stats is not None
    (labels,) = stats.data["data"]["kvferry_ledger_tokens_total"]
    assert type(labels[0]) is str
