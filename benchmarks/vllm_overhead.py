"""What the connector costs where it can do nothing: throughput on prompts of which none was seen before.

Two vLLM servers, one with kvferry over a Valkey that stays empty (publish second-touch, the default) and one
without a connector, take turns: a batch of unique prompts on the one, then on the other, the order changing
in every pair. A pair's difference is (with / without - 1) of tokens per second. Printed are the mean, the
95 % bound on the loss (one-sided, Student's t), and the smallest loss that so many pairs could have shown
with a power of 80 %. The same is done for tokens per CPU second of all the server's processes, which other
work on the machine disturbs far less.

    .venv-vllm/bin/python benchmarks/vllm_overhead.py [--quick | --pairs N] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from side_by_side import spread
from vllm_peers import ONE_PROCESS, OURS, draw_prompt, model_folder, need_vllm

from kvferry.measure.vllm.server import VllmServer, ferry_transfer, server_cores
from kvferry.store.valkey import EmbeddedServer

PROMPT_TOKENS = 256
ANSWER_TOKENS = 16
AT_ONCE = 4
BATCH = 8
# One-sided 95 % and 80 % quantiles of Student's t by degrees of freedom; the next lower one is taken.
_T = {
    3: (2.353, 0.978), 5: (2.015, 0.920), 7: (1.895, 0.896), 9: (1.833, 0.883), 11: (1.796, 0.876),
    14: (1.761, 0.868), 19: (1.729, 0.861), 24: (1.711, 0.857), 29: (1.699, 0.854), 39: (1.685, 0.851),
}  # fmt: skip


def bounds(differences: Sequence[float]) -> dict[str, float]:
    """Mean of the paired differences, the 95 % bound on the loss, and the smallest loss that would show."""
    count = len(differences)
    t95, t80 = _T[max(n for n in _T if n < count)]
    error = statistics.stdev(differences) / math.sqrt(count)
    mean = statistics.fmean(differences)
    return {"mean": mean, "most_lost": t95 * error - mean, "smallest_shown": (t95 + t80) * error}


async def batch(server: VllmServer, prompts: Sequence[list[int]]) -> tuple[float, float]:
    """Tokens per second and per CPU second of a batch, `AT_ONCE` requests at a time."""
    left = list(prompts)

    async def worker() -> None:
        while left:
            await server.client.complete(left.pop(), max_tokens=ANSWER_TOKENS, temperature=0, ignore_eos=True)

    began, spent = time.perf_counter(), server.cpu_seconds()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    tokens = len(prompts) * (PROMPT_TOKENS + ANSWER_TOKENS)
    return tokens / (time.perf_counter() - began), tokens / (server.cpu_seconds() - spent)


async def measure(pairs: int) -> dict[str, list[tuple[float, float]]]:
    """Tokens per second and per CPU second `with` and `without`, pair by pair; one pair warms up."""
    model = model_folder()
    logs = Path(tempfile.mkdtemp(prefix="kvferry-vllm-overhead-"))
    print(f"logs of the servers: {logs}", file=sys.stderr)
    settings = {name: value for name, value in OURS.items() if name != "publish"}
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(EmbeddedServer(max_memory_bytes=1 << 30))
        servers = {
            name: VllmServer(
                name,
                model=model,
                # Both on one core: they take turns, and two cores are seldom equally busy.
                core=server_cores(1)[0],
                log=logs / f"{name}.log",
                kv_cache_bytes=512 << 20,
                transfer=transfer,
                arguments=("--distributed-executor-backend", "uni"),
                environment=ONE_PROCESS,
            )
            for name, transfer in (
                ("with", ferry_transfer({**settings, "pool": pool.url})),
                ("without", None),
            )
        }
        for server in servers.values():
            await server.start()
            stack.push_async_callback(server.stop)
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for number in range(-1, pairs):
            for name in servers if number % 2 else reversed(servers):
                asked = [draw_prompt(f"{name} {number} {i}", PROMPT_TOKENS) for i in range(BATCH)]
                rate = await batch(servers[name], asked)
                if number >= 0:
                    rates[name].append(rate)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="6 pairs instead of 30")
    parser.add_argument("--pairs", type=int, help="how many; 5 to 40")
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    engine = need_vllm()
    pairs = options.pairs or (6 if options.quick else 30)
    if not 5 <= pairs <= 40:
        parser.error(f"--pairs {pairs}: write 5 to 40")
    rates = asyncio.run(measure(pairs))
    figures: dict[str, Any] = {}
    all_ratios: dict[str, Any] = {}
    for at, what, key in ((0, "tokens/s", "throughput"), (1, "tokens/CPU s", "throughput_per_cpu")):
        ours, plain = ([rate[at] for rate in rates[name]] for name in ("with", "without"))
        ratios = [a / b for a, b in zip(ours, plain, strict=True)]
        found = bounds([ratio - 1.0 for ratio in ratios])
        all_ratios[f"{key}_vs_no_connector"] = spread(ratios)
        for name, samples in (("with_connector", ours), ("no_connector", plain)):
            figures[f"{key}_{name}"] = {**spread(samples), "unit": what}
            print(f"{key + '_' + name:34} {statistics.median(samples):9.1f} {what}", file=sys.stderr)
        for name, value in found.items():
            figures[f"{key}_{name}"] = {**spread([value]), "unit": "share"}
        print(
            f"{key}_vs_no_connector {statistics.median(ratios):.3f}; over {pairs} pairs "
            f"{found['mean']:+.2%} in the mean; at most {found['most_lost']:.2%} are lost (95 %); "
            f"a loss of {found['smallest_shown']:.2%} would have shown",
            file=sys.stderr,
        )
    document = {
        "name": "vllm_overhead",
        "versions": {
            "python": platform.python_version(),
            "vllm": engine.rpartition(" ")[2],
            "torch": version("torch"),
        },
        "runs": pairs,
        "figures": figures,
        "ratios": all_ratios,
    }
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
