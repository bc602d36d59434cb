"""Real vLLM engines and a pool that fails at random: no wrong answer, no leak, no request that never ends.

Two engines of a tiny random Llama in float32 share a pool through FerryConnector. Requests arrive in bursts,
share beginnings, are aborted, salted and preempted; meanwhile blocks are corrupted, vanish, arrive late or
not at all, the pool is full, deaf or raises. Every answer is compared with what vLLM computes without any
cache. Exit status 1 when an answer was wrong, a request did not end, a connector gave up, books did not
balance, blocks stayed pinned or memory grew.

    python benchmarks/vllm_soak.py [--quick] [--json FILE]

Ten minutes, or one with --quick. A table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", TORCH_COMPILE_DISABLE="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Plain vLLM grows by a third of a gigabyte in such a run: oneDNN keeps code for every shape it has met.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engines" / "vllm"))

import faulty  # vLLM reads the settings above when it is imported
import side_by_side
from replicas import BLOCK, Replica, prompt_of, save_llama

LONG_SECONDS, QUICK_SECONDS = 600.0, 60.0
STUCK_SECONDS = 60.0
ROUND_REQUESTS = 6
HEADS = 6
"""Beginnings that prompts share; each a few blocks long."""
KV_BLOCKS = 32
"""Few enough for requests to be preempted, and for the engine to forget."""
POOL_BLOCKS = 400
RSS_SLACK_BYTES = 64 << 20
RSS_SLACK_SHARE = 0.02


@dataclass
class Tally:
    """What was seen."""

    requests: int = 0
    aborted: int = 0
    preempted: int = 0
    wrong: int = 0
    stuck: int = 0
    unbalanced: int = 0
    pinned: int = 0
    broken: list[str] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rss: list[int] = field(default_factory=list)
    """Bytes after each round."""

    @property
    def grew(self) -> int:
        """Bytes between the medians of the second and the last quarter; caches have filled by then."""
        quarter = len(self.rss) // 4
        if quarter < 4:
            return 0
        early, late = sorted(self.rss[quarter : 2 * quarter]), sorted(self.rss[-quarter:])
        return late[len(late) // 2] - early[len(early) // 2]

    @property
    def leaks(self) -> bool:
        """Whether it grew by more than what an allocator may keep."""
        return self.grew > max(RSS_SLACK_BYTES, RSS_SLACK_SHARE * (self.rss[-1] if self.rss else 0))

    @property
    def bad(self) -> bool:
        return bool(self.wrong or self.stuck or self.unbalanced or self.pinned or self.broken or self.leaks)


class Soak:
    """Two engines, the pool between them, and a third engine that knows what is right."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.tally = Tally()
        model = save_llama(folder / "model", seed=seed)
        self.pool = faulty.make("soak", POOL_BLOCKS * 33000)
        settings = {"pool": "plugin://faulty/opened?name=soak", "host_memory": "4MiB"}
        small = {"kv_cache_memory_bytes": KV_BLOCKS * 32768, "max_model_len": 768, "max_num_seqs": 8}
        self.engines = [Replica(model, folder, settings, **small) for _ in range(2)]
        self.right = Replica(model, None, enable_prefix_caching=False)
        self.read = {engine.name: 0 for engine in self.engines}
        self.heads = [prompt_of((seed, "head", i), 32 * (3 + 2 * i)) for i in range(HEADS)]

    def run(self, seconds: float) -> Tally:
        end = time.monotonic() + seconds
        rounds = 0
        while time.monotonic() < end and not self.tally.stuck:
            self._round(rounds)
            rounds += 1
            if rounds % 20 == 0:
                print(
                    f"{rounds} rounds, {self.tally.requests} requests, rss {_rss() >> 20} MiB",
                    file=sys.stderr,
                )
        return self.tally

    def _round(self, number: int) -> None:
        engine = self.draw.choice(self.engines)
        prompts: dict[str, tuple[list[int], int]] = {}
        self._break()
        for i in range(self.draw.randint(1, ROUND_REQUESTS)):
            head = self.draw.choice(self.heads)
            tail = prompt_of((number, i, self.draw.random()), self.draw.randint(1, 120))
            prompt, answer_tokens = [*head, *tail], self.draw.choice([1, 4, 24])
            fields: dict[str, Any] = {"deadline_seconds": self.draw.choice([0.05, 0.3, 1.0])}
            if self.draw.random() < 0.1:
                fields["max_load_tokens"] = self.draw.choice([0, 64, 100])
            salt = self.draw.choice([None, None, None, "a", "b"])
            rid = engine.send(prompt, answer_tokens=answer_tokens, salt=salt, fields=fields)
            prompts[rid] = (prompt, answer_tokens)
        self.tally.requests += len(prompts)
        doomed = [rid for rid in prompts if self.draw.random() < 0.15]
        self._serve(engine, prompts, doomed)
        self.pool.heal()
        self._settle(engine)
        self._books(engine)
        if self.draw.random() < 0.3 and not engine.llm.reset_prefix_cache():
            self.tally.pinned += 1
        self.tally.rss.append(_rss())

    def _break(self) -> None:
        """Something is wrong with the pool in two rounds of three."""
        self.pool.let_go.clear()
        kind = self.draw.choice(["none", "none", "full", "deaf", "slow", *faulty.Fault])
        self.tally.faults[kind.name.lower() if isinstance(kind, faulty.Fault) else kind] += 1
        if kind == "full":
            self.pool.full = True
        elif kind == "deaf":
            self.pool.deaf = True
        elif kind == "slow":
            self.pool.put_seconds = 0.1
        elif isinstance(kind, faulty.Fault):
            held = self.pool.keys()
            for key in self.draw.sample(held, min(len(held), self.draw.choice([1, 5, 50]))):
                self.pool.faults[key] = kind

    def _serve(self, engine: Replica, prompts: dict[str, tuple[list[int], int]], doomed: list[str]) -> None:
        left = set(prompts)
        end = time.monotonic() + STUCK_SECONDS
        abort_at = time.monotonic() + self.draw.random() * 0.3
        while left:
            if doomed and time.monotonic() > abort_at:
                rid = doomed.pop()
                if rid in left:
                    engine.abort(rid)
                    left.discard(rid)
                    self.tally.aborted += 1
            if time.monotonic() > end:
                self.tally.stuck += len(left)
                return
            for rid, output in engine.step().items():
                left.discard(rid)
                prompt, answer_tokens = prompts[rid]
                if (
                    tuple(output.outputs[0].token_ids)
                    != self.right.ask(prompt, answer_tokens=answer_tokens).tokens
                ):
                    self.tally.wrong += 1
                    print(f"wrong: {rid}, {len(prompt)} tokens", file=sys.stderr)
            self.tally.preempted += sum(
                request.num_preemptions > 0 for request in engine.scheduler.requests.values()
            )

    def _settle(self, engine: Replica) -> None:
        try:
            engine.settle()
        except TimeoutError as error:
            self.tally.pinned += 1
            print(f"pinned: {error}", file=sys.stderr)
        if engine.connector.why_off:
            self.tally.broken.append(engine.connector.why_off)

    def _books(self, engine: Replica) -> None:
        records = engine.records(self.read[engine.name])
        self.read[engine.name] += len(records)
        for record in records:
            if sum(record.ledger.values()) != record.prompt_tokens:
                self.tally.unbalanced += 1
            if record.prompt_tokens > BLOCK:
                self.tally.paths[record.path] += 1
                self.tally.tokens.update({cause.value: tokens for cause, tokens in record.ledger.items()})


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = side_by_side.options(__doc__)
    seconds = QUICK_SECONDS if parser.quick else LONG_SECONDS
    with tempfile.TemporaryDirectory(prefix="kvferry-soak-") as folder:
        soak = Soak(Path(folder), seed=7)
        began = time.monotonic()
        tally = soak.run(seconds)
        took = time.monotonic() - began
    rows = {
        "requests": tally.requests,
        "aborted": tally.aborted,
        "steps with a preempted request": tally.preempted,
        "wrong answers": tally.wrong,
        "stuck requests": tally.stuck,
        "unbalanced records": tally.unbalanced,
        "rounds with pinned blocks": tally.pinned,
        "connectors that gave up": len(tally.broken),
        "RSS after the first round, MiB": tally.rss[0] >> 20,
        "RSS at the end, MiB": tally.rss[-1] >> 20,
        "growth after warming up, MiB": round(tally.grew / (1 << 20), 1),
    }
    for name, value in rows.items():
        print(f"{name:34} {value:>10}")
    for title, counts in (("path", tally.paths), ("prompt tokens", tally.tokens), ("fault", tally.faults)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    for why in tally.broken[:3]:
        print(f"gave up: {why}")
    if parser.json:
        document = {
            "name": "vllm_soak",
            "versions": {"python": platform.python_version(), "torch": version("torch")},
            "runs": 1,
            "figures": {
                key.replace(" ", "_").replace(",", ""): {
                    "median": value,
                    "min": value,
                    "max": value,
                    "unit": "",
                }
                for key, value in {**rows, "seconds": round(took, 1)}.items()
            },
            "ratios": {},
        }
        parser.json.write_text(json.dumps(document, indent=1) + "\n")
    print("bad" if tally.bad else "good")
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
