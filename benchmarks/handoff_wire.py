"""A hand-off between two replicas of one model: what a codec costs in quality, and what the wire carries.

Quality: SmolLM2-135M-Instruct in float32 reads the beginnings of modules of Python's standard library; that
KV crosses in chunks of the wire in every codec, and the model goes on from what came: over the next 64
tokens of the text, and 32 tokens of its own choice. `raw` is the control and must show no difference.

Wire: the KV of one prompt of 512 tokens from one process to another over TCP and through shared memory, and
through a tier in a folder; best of a few, as a rate of raw bytes, beside a plain copy in memory. Then the
same hand-off against the prefill that it saves. `raw_vs_prefill` above 1 is the rule of a sunk prefill on
this machine.

    python benchmarks/handoff_wire.py [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
from side_by_side import options, spread

from kvferry.clock import MonotonicClock
from kvferry.config import cache_dir, load
from kvferry.engines.transformers.resolve import DEFAULT_MODEL, resolve_model
from kvferry.engines.transformers.runner import Runner
from kvferry.handoff.transports.address import open_dialer
from kvferry.handoff.wire.codecs import WIRE_CODECS
from kvferry.handoff.wire.manifest import make_manifest
from kvferry.handoff.wire.memory import HostKv
from kvferry.handoff.wire.sender import send
from kvferry.keys.namespace import Namespace
from kvferry.measure.demo.workload import Library
from kvferry.measure.handoff.chunks import prefill_in_chunks
from kvferry.measure.handoff.namespace import handoff_namespace
from kvferry.measure.handoff.quality import WireQuality, measure_wire

PREFIX_TOKENS, SCORED_TOKENS, GREEDY_TOKENS = 512, 64, 32
SECRET = bytes(32)
CLOCK = MonotonicClock()
SHAPE = (30, 2, 3, PREFIX_TOKENS, 64)

RECEIVER = """
import json, sys
import numpy as np
from kvferry.clock import MonotonicClock
from kvferry.cost.prefill import PrefillModel
from kvferry.cost.transfer import LegModel
from kvferry.gate.facts import GateTerms
from kvferry.handoff.transports.address import listen
from kvferry.handoff.wire.memory import HostKv
from kvferry.handoff.wire.pricing import Pricing, decide_handoff
from kvferry.handoff.wire.receiver import receive

address, namespace, count = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
clock = MonotonicClock()
kv = np.ones(json.loads(sys.argv[4]), np.float32)
pricing = Pricing(
    prefill=PrefillModel(), link=LegModel(), chunk_tokens=256, terms=GateTerms(policy="always")
)


class Host:
    def check(self, manifest):
        pass

    def judge(self, manifest, payload_bytes, seconds):
        return decide_handoff(manifest, payload_bytes, pricing)

    def open(self, manifest, layers, deadline):
        return HostKv(kv.view(np.uint8))


listener = None
for number in range(count):
    if listener is None or address.startswith("files"):
        listener, where = listen(
            address, handoff_id=f"b-{number}", namespace=namespace, secret=bytes(32), clock=clock
        )
    if number == 0:
        print(where, flush=True)
    received = receive(listener.accept, Host(), secret=bytes(32), deadline=clock.now() + 120, clock=clock)
    print(json.dumps([received.receiver.ready_seconds, received.receiver.first_layer_seconds]), flush=True)
listener.close()
"""


@dataclass
class Figures:
    """Collects what was measured, and tells it on stderr."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, samples: Sequence[float], unit: str) -> None:
        self.figures[name] = {**spread(samples), "unit": unit}
        print(f"{name:36} {statistics.median(samples):14.6f} {unit}", file=sys.stderr)

    def ratio(self, name: str, samples: Sequence[float]) -> None:
        self.ratios[name] = spread(samples)
        print(f"{name:36} {statistics.median(samples):14.2f}", file=sys.stderr)


def texts(runner: Runner, count: int) -> list[list[int]]:
    """Token ids of the beginnings of different modules."""
    wanted = PREFIX_TOKENS + SCORED_TOKENS + 1

    def encoded(text: str) -> list[int]:
        return [int(token) for token in runner.tokenizer.encode(text, verbose=False)]

    drawn = Library(0, lambda text: len(encoded(text))).draw(count, wanted)
    return [encoded(prefix.document)[:wanted] for prefix in drawn]


def quality(figures: Figures, runner: Runner, space: Namespace, prompts: Sequence[Sequence[int]]) -> None:
    found: dict[str, list[WireQuality]] = {name: [] for name in WIRE_CODECS}
    for number, prompt in enumerate(prompts, 1):
        measured = measure_wire(
            runner, space, prompt, WIRE_CODECS, prefix_tokens=PREFIX_TOKENS, greedy_tokens=GREEDY_TOKENS
        )
        for name, one in measured.items():
            found[name].append(one)
        print(f"{number} of {len(prompts)} texts", file=sys.stderr)
    for name, several in found.items():
        for what in WireQuality.__struct_fields__:
            samples = [float(getattr(one, what)) for one in several]
            figures.add(f"{name}_{what}", samples, "bytes" if what == "bytes_per_token" else "1")
            figures.add(f"{name}_mean_{what}", [statistics.fmean(samples)], "1")


def crossing(
    figures: Figures, kv: Any, space: Namespace, ids: Sequence[int], way: str, codec: str, runs: int
) -> list[float]:
    """Seconds from the answer to the last layer, in another process."""
    with tempfile.TemporaryDirectory() as folder:
        address = {"tcp": "tcp://127.0.0.1:0", "shm": "shm://", "files": f"files://{folder}"}[way]
        command = [sys.executable, "-c", RECEIVER, address, space.digest().hex(), str(runs + 1)]
        command.append(json.dumps(SHAPE))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
            if receiver.stdout is None:
                raise RuntimeError("the receiver has no output")
            where = receiver.stdout.readline().strip()
            ready, first = [], []
            for number in range(runs + 1):
                name = f"b-{number}"
                dial = open_dialer(
                    where, handoff_id=name, namespace=space.digest(), secret=SECRET, clock=CLOCK, waits=True
                )
                manifest = make_manifest(
                    space, ids, handoff_id=name, layers=SHAPE[0], kv_heads=SHAPE[2], head_dim=SHAPE[4],
                    dtype="float32", codec=codec,
                )  # fmt: skip
                memory = HostKv(kv.view(np.uint8))
                send(memory, manifest, dial, secret=SECRET, deadline=CLOCK.now() + 120, clock=CLOCK)
                dial.close()
                one = json.loads(receiver.stdout.readline())
                if number:  # the first one warms up
                    ready.append(one[0])
                    first.append(one[1])
    figures.add(f"{way}_{codec}_ready", ready, "s")
    figures.add(f"{way}_{codec}_first_layer", first, "s")
    figures.add(f"{way}_{codec}_rate", [kv.nbytes / seconds / 1e9 for seconds in ready], "GB/s of raw KV")
    return ready


def main() -> None:
    chosen = options(__doc__)
    runs = 3 if chosen.quick else 15
    runner = Runner(resolve_model(DEFAULT_MODEL, cache_dir()), name=DEFAULT_MODEL, threads=1)
    space = handoff_namespace(load().config, runner)
    prompts = texts(runner, 1 if chosen.quick else 20)
    figures = Figures()
    ids = prompts[0][: PREFIX_TOKENS + 1]
    seconds = []
    for _ in range(1 if chosen.quick else 3):
        span = runner.new_span(PREFIX_TOKENS)
        began = time.monotonic()
        prefill_in_chunks(runner, span, ids[:-1], CLOCK)
        seconds.append(time.monotonic() - began)
    figures.add("prefill", seconds, "s")
    prefill = statistics.median(seconds)
    kv = span.kv.numpy()
    target = np.empty_like(kv)
    copies = []
    for _ in range(runs):
        began = time.monotonic()
        np.copyto(target, kv)
        copies.append(kv.nbytes / (time.monotonic() - began) / 1e9)
    figures.add("memcpy_rate", copies, "GB/s")
    for way, codec in (
        ("tcp", "raw"), ("tcp", "bf16"), ("tcp", "int8"), ("tcp", "int4"), ("shm", "raw"), ("files", "raw"),
    ):  # fmt: skip
        ready = crossing(figures, kv, space, ids, way, codec, runs)
        figures.ratio(f"{way}_{codec}_vs_prefill", [prefill / one for one in ready])
    quality(figures, runner, space, prompts)
    if chosen.json is not None:
        document = {
            "name": "handoff_wire",
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "torch", "transformers")},
            },
            "runs": runs,
            "figures": figures.figures,
            "ratios": figures.ratios,
        }
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
