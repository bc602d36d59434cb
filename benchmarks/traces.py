"""How fast a trace becomes a curve: exact reuse distances, beside kvcache-simulator and libcachesim.

Ours gives hits at every capacity in one pass. The others simulate one capacity at a time, so they are timed
over the same sixteen, in turns with ours, from blocks that lie in memory or in their own binary file:
kvcache-simulator's C++ core (the process included, parsing not), and libcachesim's LRU over its own reader,
which has no curve of requests and is compared access by access. Agreement is checked, not only speed. What is
not installed is left out:

    pip install kvcache-simulator libcachesim

The public conversation trace is read from ../shared/data/traces where it lies, else a trace is made up.

    python benchmarks/traces.py [--quick] [--json FILE] [--huge ACCESSES]

--huge makes up that many accesses, streams them through the whole analysis, and prints rate and memory.
"""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from side_by_side import Figures, options, spread

from kvferry.analysis.analyse import Question, analyse
from kvferry.analysis.reuse import Curve, Stack, has_kernels
from kvferry.errors import pip_install
from kvferry.traces import Trace, TraceChunk, open_trace
from kvferry.traces.synthesis import PRESETS, Recipe, synthesize

TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
CAPACITIES = 16


@dataclass(frozen=True, slots=True)
class Columns:
    """A trace in memory."""

    block_tokens: int
    arrival: npt.NDArray[np.float64]
    input_tokens: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]

    @property
    def warmup(self) -> int:
        """Requests before which kvcache-simulator counts nothing: it wants its cache full by then."""
        return (len(self.offsets) - 1) // 2

    @property
    def capacities(self) -> list[int]:
        """In blocks, evenly over the logarithm, each filled by the warm-up."""
        most = 0.9 * float(self.blocks[: self.offsets[self.warmup]].max() + 1)
        return [round(room) for room in np.geomspace(64, most, CAPACITIES).tolist()]


def columns(trace: Trace) -> Columns:
    chunks = list(trace.chunks())
    counts = np.concatenate([np.diff(chunk.offsets) for chunk in chunks])
    return Columns(
        trace.block_tokens,
        np.concatenate([chunk.arrival_seconds for chunk in chunks]),
        np.concatenate([chunk.input_tokens for chunk in chunks]),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([chunk.blocks for chunk in chunks]),
    )


def ours(table: Columns, compiled: bool, since: int = 0) -> Curve:
    """Exact distances of every access, and the whole curve of the requests from `since` on."""
    counts = np.diff(table.offsets)
    number = np.arange(len(table.blocks)) - np.repeat(table.offsets[:-1], counts)
    tokens = np.minimum(
        table.block_tokens, np.repeat(table.input_tokens, counts) - number * table.block_tokens
    )
    depth, _, _, _ = Stack(compiled=compiled).access(table.offsets, table.blocks, table.arrival)
    first = int(table.offsets[since])
    curve = Curve(table.block_tokens)
    curve.add(depth[first:], tokens[first:], tokens[first:] == table.block_tokens)
    curve.cumulated()
    return curve


def by_access(table: Columns, compiled: bool) -> Curve:
    """The same, a block a request: the LRU of tools that know no prompts."""
    count = len(table.blocks)
    depth, _, _, _ = Stack(compiled=compiled).access(
        np.arange(count + 1, dtype=np.int64), table.blocks, np.zeros(count)
    )
    curve = Curve(1)
    curve.add(depth, np.ones(count, dtype=np.int64), np.ones(count, dtype=np.bool_))
    curve.cumulated()
    return curve


def kvcache_simulator(
    table: Columns, folder: Path
) -> tuple[Callable[[], Any], Callable[[Any], float]] | None:
    """(what to time, how far its hit ratios are from ours) or None where it is not installed."""
    try:
        from kvcache_sim import cpp_backend
        from kvcache_sim.trace import TraceData
    except ImportError:
        return None
    counts = np.diff(table.offsets)
    number = np.arange(len(table.blocks)) - np.repeat(table.offsets[:-1], counts)
    tokens = np.minimum(
        table.block_tokens, np.repeat(table.input_tokens, counts) - number * table.block_tokens
    )
    total = int(table.input_tokens.sum())
    data = TraceData(
        ids=table.blocks.tolist(),
        tokens=tokens.tolist(),
        request_starts=table.offsets.tolist(),
        block_size=table.block_tokens,
        request_count=len(counts),
        unique_raw_blocks=int(table.blocks.max()) + 1,
        total_input_tokens=total,
        average_input_tokens=total / len(counts),
        parse_errors=0,
        skipped_records=0,
    )
    binary = cpp_backend.ensure_cpp_simulator()
    files = cpp_backend._write_binary_trace(data, folder)
    command = [
        str(binary), "--policy", "batch", "--ids", str(files.ids), "--tokens", str(files.tokens),
        "--request-ends", str(files.request_ends), "--request-count", str(len(counts)),
        "--total-blocks", str(len(table.blocks)), "--warmup-requests", str(table.warmup),
        "--capacities", ",".join(map(str, table.capacities)), "--policies", "lru",
    ]  # fmt: skip

    def run() -> bytes:
        return subprocess.run(command, check=True, capture_output=True).stdout

    def difference(out: bytes) -> float:
        points = json.loads(out)["points"]
        curve = ours(table, has_kernels(), table.warmup)
        return max(
            abs(point["lru"]["hitTokens"] - curve.hit_tokens(int(point["cacheBlocks"]))) / total
            for point in points
        )

    return run, difference


def libcachesim(table: Columns, folder: Path) -> tuple[Callable[[], Any], Callable[[Any], float]] | None:
    """The same for libcachesim, access by access."""
    try:
        import libcachesim as simulators
    except ImportError:
        return None
    path = folder / "trace.oracleGeneral"
    record = struct.Struct("<IQIq")
    path.write_bytes(
        b"".join(record.pack(n, block, 1, -1) for n, block in enumerate(table.blocks.tolist(), start=1))
    )

    def run() -> list[float]:
        missed = []
        for room in table.capacities:
            reader = simulators.TraceReader(str(path), simulators.TraceType.ORACLE_GENERAL_TRACE)
            ratio, _ = simulators.LRU(cache_size=room).process_trace(reader)
            missed.append(ratio)
        return missed

    def difference(missed: list[float]) -> float:
        curve = by_access(table, has_kernels())
        count = len(table.blocks)
        return max(
            abs(1.0 - ratio - curve.hit_tokens(room) / count)
            for room, ratio in zip(table.capacities, missed, strict=True)
        )

    return run, difference


def wall(side: Callable[[], Any]) -> float:
    start = time.perf_counter()
    side()
    return time.perf_counter() - start


def figure(figures: Figures, name: str, samples: list[float], unit: str) -> None:
    figures._document["figures"][name] = {**spread(samples), "unit": unit}
    print(f"{name:44} {figures._document['figures'][name]['median']:14,.2f} {unit}", file=sys.stderr)


def huge(accesses: int) -> None:
    """A made-up trace of so many accesses through the whole analysis."""
    made = synthesize(Recipe(classes=PRESETS["mixed"], accesses=accesses, sessions_per_second=20.0))
    spent = 0.0

    def timed(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Any]]]:
        nonlocal spent
        chunks = made.chunks()
        while True:
            start = time.perf_counter()
            chunk = next(chunks, None)
            spent += time.perf_counter() - start
            if chunk is None:
                return
            yield chunk, []

    trace = Trace(
        path="made up", format="kvferry", block_tokens=made.block_tokens, has_blocks=True, read=timed,
        labels=made.labels, problems=made.problems,
    )  # fmt: skip
    question = Question(
        bytes_per_token=131_072.0, replicas=4, capacity_tokens=4_000_000, pool_tokens=40_000_000
    )
    start = time.perf_counter()
    found = analyse(trace, question)
    seconds = time.perf_counter() - start - spent
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{found.blocks:,} accesses, {found.unique_blocks:,} different blocks, {found.requests:,} "
        "requests: made in "
        f"{spent:.1f} s, analysed in {seconds:.1f} s ({found.blocks / seconds / 1e6:.1f} M accesses/s with "
        "five "
        f"routings), {memory:,.0f} MiB at most"
    )


def main() -> None:
    words = sys.argv[1:]
    if "--huge" in words:
        at = words.index("--huge")
        huge(int(words[at + 1]) if at + 1 < len(words) else 100_000_000)
        return
    chosen = options(__doc__, words)
    figures = Figures("traces", 3 if chosen.quick else 7, ["kvferry", "numpy"])
    path = TRACES / "conversation_trace.jsonl"
    if path.exists():
        trace = open_trace(path)
    else:
        print(f"no traces at {TRACES}: one is made up", file=sys.stderr)
        trace = synthesize(Recipe(classes=PRESETS["mixed"], accesses=300_000))
    table = columns(trace)
    count = len(table.blocks)
    compiled = has_kernels()
    if not compiled:
        print(f"numba is not installed: the pure path is timed ({pip_install('fast')})", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], Any]] = {
            "ours": lambda: ours(table, compiled),
            "by_access": lambda: by_access(table, compiled),
        }
        for name, make in (("kvcache_simulator", kvcache_simulator), ("libcachesim", libcachesim)):
            side = make(table, Path(folder))
            if side is None:
                print(f"{name}: not installed", file=sys.stderr)
                continue
            run, difference = side
            print(f"{name}: hit ratios within {difference(run()):.2%} of ours", file=sys.stderr)
            sides[name] = run
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(-1, figures.runs):
            for name in sides if number % 2 else reversed(sides):
                seconds = wall(sides[name])
                if number >= 0:
                    samples[name].append(seconds)
        figure(figures, "accesses_per_second", [count / s for s in samples["ours"]], "accesses/s")
        figure(
            figures, "accesses_per_second_by_access", [count / s for s in samples["by_access"]], "accesses/s"
        )
        for name, against in (("kvcache_simulator", "ours"), ("libcachesim", "by_access")):
            if name in samples:
                events = CAPACITIES * count
                figure(
                    figures, f"{name}_accesses_per_second", [events / s for s in samples[name]], "accesses/s"
                )
                figures.ratio(f"curve_vs_{name}", samples[against], samples[name])
    figure(figures, "pure_accesses_per_second", [count / wall(lambda: ours(table, False))], "accesses/s")
    if path.exists():
        question = Question(bytes_per_token=327_680.0, replicas=10, capacity_tokens=3_000_000)
        reports = [wall(lambda: analyse(open_trace(path), question)) for _ in range(figures.runs)]
        figure(figures, "file_to_full_report_seconds", reports, "s")
    figures.write(chosen.json)


if __name__ == "__main__":
    main()
