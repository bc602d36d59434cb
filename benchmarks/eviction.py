"""The eviction policies side by side: the same requests, the same room, under the same rule for chains.

Reuse patterns are made here, from seeds: `chats` (growing histories behind a few system prompts), `scans` (a
hot set, and long documents that are read once), `lengths` (short prompts that come often, long ones that come
seldom and save much) and `loop` (more than fits, in turn). Where public request traces lie in
../shared/data/traces, their conversation trace is replayed as well, in blocks of 512 tokens.

A figure is the share of prompt tokens, or of prefill seconds, that was not computed again. A ratio is a
policy's saved seconds over those of LRU; more than 1 is better. First uses, which no policy can hit, are in
the denominator; `..._infinite_...` is the most that can be hit.

    python benchmarks/eviction.py [--quick] [--json FILE]
"""

from __future__ import annotations

import json
import platform
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from side_by_side import options, spread

from kvferry.store.eviction import POLICIES, EvictionPolicy, Evictor

TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
LINEAR_SECONDS = 2.7e-4
"""Per token: 16 GFLOP of an 8B model at 60 TFLOP/s."""
QUADRATIC_SECONDS = 2.7e-4 * 3.6e-5
"""Per token and token of context: attention adds 45 % at 25,000 tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt as a chain of block ids."""

    tokens: int
    blocks: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Requests in order, and what a block holds."""

    block_tokens: int
    requests: Sequence[Request]

    @property
    def working_set(self) -> int:
        """Different blocks."""
        return len({key for request in self.requests for key in request.blocks})


def prefill_seconds(start: int, stop: int) -> float:
    """Of tokens `[start, stop)` of a prompt whose tokens before `start` are in place."""
    count = stop - start
    return count * LINEAR_SECONDS + QUADRATIC_SECONDS * count * (start + count / 2)


@dataclass(slots=True)
class Score:
    """What a policy saved of all that was asked."""

    tokens: int = 0
    hit_tokens: int = 0
    seconds: float = 0.0
    saved_seconds: float = 0.0


def replay(pattern: Pattern, capacity_blocks: int, make: Callable[[], EvictionPolicy]) -> Score:
    """Every request reads its longest stored prefix and stores the rest of its prompt."""
    evictor, stored, score = Evictor(make()), set[bytes](), Score()
    size = pattern.block_tokens
    for request in pattern.requests:
        keys = request.blocks[:capacity_blocks]
        hit = next((i for i, key in enumerate(keys) if key not in stored), len(keys))
        hit_tokens = min(hit * size, request.tokens)
        score.tokens += request.tokens
        score.hit_tokens += hit_tokens
        score.seconds += prefill_seconds(0, request.tokens)
        score.saved_seconds += prefill_seconds(0, hit_tokens)
        evictor.use(keys[:hit])
        ours = set(keys)
        fresh: list[tuple[bytes, int, float | None]] = []
        for number, key in enumerate(keys):
            if key in stored:
                continue
            if len(stored) + len(fresh) >= capacity_blocks:
                victim = evictor.choose(ours.__contains__)
                if victim is None:
                    break
                evictor.remove(victim)
                stored.remove(victim)
            fresh.append((key, 1, prefill_seconds(number * size, (number + 1) * size)))
        evictor.insert(keys, fresh)
        stored.update(key for key, _, _ in fresh)
    return score


def made(block_tokens: int, prompts: Iterable[Sequence[str]]) -> Pattern:
    """A pattern of prompts given as names of blocks."""
    requests = [Request(len(names) * block_tokens, [name.encode() for name in names]) for names in prompts]
    return Pattern(block_tokens, requests)


def chats(dice: random.Random, requests: int) -> Pattern:
    """Conversations over 4 system prompts; a turn adds 2 to 12 blocks to what was said."""

    def prompts() -> Iterator[list[str]]:
        open_chats: list[list[str]] = []
        started = 0
        for _ in range(requests):
            if len(open_chats) < 5 or dice.random() < 0.2:
                started += 1
                system = min(3, int(dice.expovariate(0.9)))
                open_chats.append([f"system {system}/{n}" for n in range(16)])
            # Who spoke last is likely to speak next; old conversations come back now and then.
            chat = open_chats[-1 - min(len(open_chats) - 1, int(dice.paretovariate(0.7)) - 1)]
            chat += [f"turn {dice.getrandbits(60)}" for _ in range(dice.randint(2, 12))]
            yield list(chat)
            if len(chat) > 250:
                open_chats.remove(chat)

    return made(32, prompts())


def scans(dice: random.Random, requests: int) -> Pattern:
    """200 hot prompts by popularity; every third request is a long document that never comes again."""

    def prompts() -> Iterator[list[str]]:
        for number in range(requests):
            if number % 3 == 2:
                yield [f"document {number}/{n}" for n in range(120)]
            else:
                hot = min(199, int(dice.paretovariate(0.6)) - 1)
                yield [f"hot {hot}/{n}" for n in range(20)]

    return made(32, prompts())


def lengths(dice: random.Random, requests: int) -> Pattern:
    """Many short prompts (8 blocks), and few long ones (600 blocks) whose later blocks save far more each."""

    def prompts() -> Iterator[list[str]]:
        for _ in range(requests):
            if dice.random() < 0.06:
                name, count = f"long {dice.randrange(12)}", 600
            else:
                name, count = f"short {min(2999, int(dice.paretovariate(0.5)) - 1)}", 8
            yield [f"{name}/{n}" for n in range(count)]

    return made(32, prompts())


def loop(dice: random.Random, requests: int) -> Pattern:
    """100 prompts in turn: the pattern that recency is worst at."""
    return made(32, ([f"loop {n % 100}/{b}" for b in range(20)] for n in range(requests)))


def conversation(limit: int | None) -> Pattern | None:
    """The public conversation trace, if it is here."""
    path = TRACES / "conversation_trace.jsonl"
    if not path.exists():
        return None
    requests = []
    with path.open() as lines:
        for number, line in enumerate(lines):
            if number == limit:
                break
            record = json.loads(line)
            requests.append(Request(record["input_length"], [b"%d" % block for block in record["hash_ids"]]))
    return Pattern(512, requests)


class Bench:
    """Collects shares and ratios."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Any]] = {}
        self.ratios: dict[str, dict[str, float]] = {}

    def compare(self, name: str, rooms: Sequence[tuple[Pattern, int]]) -> None:
        """Every policy over every pattern (one a seed), each with its capacity in blocks."""
        saved: dict[str, list[float]] = {}
        for policy, make in POLICIES.items():
            scores = [replay(pattern, capacity, make) for pattern, capacity in rooms]
            self._figure(f"{name}_{policy}_tokens", [100 * s.hit_tokens / s.tokens for s in scores])
            saved[policy] = [s.saved_seconds / s.seconds for s in scores]
            self._figure(f"{name}_{policy}_seconds", [100 * share for share in saved[policy]])
        for policy in list(POLICIES)[1:]:
            pairs = zip(saved[policy], saved["lru"], strict=True)
            # Where LRU saves nothing there is no ratio: the figures tell.
            ratios = [ours / theirs for ours, theirs in pairs if theirs]
            if ratios:
                self.ratios[f"{name}_{policy}_vs_lru"] = spread(ratios)
                print(
                    f"{name}_{policy}_vs_lru".ljust(44), f"{spread(ratios)['median']:8.2f}", file=sys.stderr
                )

    def _figure(self, name: str, samples: Sequence[float]) -> None:
        self.figures[name] = {**spread(samples), "unit": "%"}
        print(f"{name:44} {self.figures[name]['median']:8.1f} %", file=sys.stderr)

    def infinite(self, name: str, patterns: Sequence[Pattern]) -> None:
        """The most that any policy can hit."""
        scores = [replay(pattern, 1 << 60, POLICIES["lru"]) for pattern in patterns]
        self._figure(f"{name}_infinite_tokens", [100 * s.hit_tokens / s.tokens for s in scores])
        self._figure(f"{name}_infinite_seconds", [100 * s.saved_seconds / s.seconds for s in scores])


def main() -> None:
    chosen = options(__doc__)
    runs, requests = (3, 1500) if chosen.quick else (5, 6000)
    bench = Bench()
    for make in (chats, scans, lengths, loop):
        patterns = [make(random.Random(seed), requests) for seed in range(runs)]
        bench.infinite(make.__name__, patterns)
        for percent in (5, 20):
            rooms = [(pattern, pattern.working_set * percent // 100) for pattern in patterns]
            bench.compare(f"{make.__name__}_{percent}_percent", rooms)
    trace = conversation(2000 if chosen.quick else None)
    if trace is None:
        print(f"no traces at {TRACES}: the conversation trace is left out", file=sys.stderr)
    else:
        bench.infinite("conversation", [trace])
        for tokens in (3_000_000,) if chosen.quick else (1_000_000, 3_000_000, 10_000_000, 50_000_000):
            room = (trace, tokens // trace.block_tokens)
            bench.compare(f"conversation_{tokens // 1_000_000}M_tokens", [room])
    document = {
        "name": "eviction",
        "versions": {"python": platform.python_version(), "kvferry": version("kvferry")},
        "runs": runs,
        "figures": bench.figures,
        "ratios": bench.ratios,
    }
    if chosen.json:
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
