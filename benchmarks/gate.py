"""What one request costs in the cache and the gate, in CPU time: 64 blocks, pool keys known.

The goal is 60 us for a whole life: arrive, lookup answered, asked, load begun and answered, prompt computed,
settled. Making the pool keys and hashing the prompt are measured apart.

    python benchmarks/gate.py [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence

import cbor2
from side_by_side import Figures, options

from kvferry.cache.commands import Legs, Load, LoadDone, Probe, ProbeDone, Store, StoreDone
from kvferry.cache.machine import Cache
from kvferry.cache.requests import LoadTo
from kvferry.cache.settings import CacheSettings
from kvferry.cache.settle import Ending
from kvferry.gate.decide import decide
from kvferry.gate.publication import Publication
from kvferry.keys.blocks import block_hashes
from kvferry.keys.pool import PoolKeys
from kvferry.outcomes import Outcome

BLOCKS, BLOCK_TOKENS, BYTES_PER_TOKEN = 64, 16, 147_456
PROMPT_TOKENS = BLOCKS * BLOCK_TOKENS + 5
LONG_PROMPT_TOKENS = 100_000
GOAL_MICROSECONDS = 60.0
HOST, POOL = b"\x10", b"\x11"


class Memory:
    """Block memory that nobody looks into."""

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        return ()


MEMORY = Memory()


def fresh() -> Cache:
    """A machine that has seen some traffic: loading pays from both tiers, less from the pool."""
    settings = CacheSettings(
        BLOCK_TOKENS,
        BYTES_PER_TOKEN,
        (Outcome.HOST_HIT, Outcome.POOL_HIT),
        holdout_share=0.0,
        explore_share=0.0,
        new_replica_loads=4,
    )
    cache = Cache(settings, Publication("second-touch", ["default"]))
    for i in range(60):
        tokens, context = 128 << (i % 5), 1024 * (i % 7)
        cache.estimates.prefill_step(tokens, context, 0.004 + 3e-4 * tokens + 1e-8 * tokens * context)
        for leg, rate in zip(cache.estimates.legs, (1e10, 2e9), strict=True):
            leg.observe(10_000_000 * (1 + i % 9), 0.001 + 10_000_000 * (1 + i % 9) / rate)
    return cache


def life(found: bytes, polls: int = 1) -> Callable[[], None]:
    """One request whose lookup finds `found`, from arrival to its account."""
    cache = fresh()
    keys = [hashlib.sha256(b"%d" % i).digest() for i in range(BLOCKS)]
    ending = Ending(False, 100, 0.05, 0.001)
    count = 0

    def run() -> None:
        nonlocal count
        count += 1
        now, rid = count * 1.0, f"request-{count}"
        cache.arrive(now, rid, keys, PROMPT_TOKENS)
        for command in cache.take():
            if isinstance(command, Probe):
                cache.receive(now, ProbeDone(command.op, found, 0.001))
        cache.take_news()
        for _ in range(polls):
            answer = cache.ask(now, rid, 0, chunk_tokens=2048, running_requests=3)
        if isinstance(answer, LoadTo):
            cache.begin(now, rid, answer.end_block, MEMORY)
            for command in cache.take():
                if isinstance(command, Load):
                    size = (command.stop - command.start) * BLOCK_TOKENS * BYTES_PER_TOKEN
                    # No two transfers take quite the same.
                    took = 0.001 + size / 2e9 * (1.0 + 0.01 * (count % 5))
                    cache.receive(
                        now + took,
                        LoadDone(command.op, command.stop - command.start, None, Legs(0.0, took, 0.0, size)),
                    )
            cache.take_news()
        cache.computed(now + 0.1, rid, PROMPT_TOKENS, clean=True, source=MEMORY)
        for command in cache.take():
            if isinstance(command, Store):
                cache.receive(now + 0.2, StoreDone(command.op, command.stop - command.start))
        cache.tick(now + 0.2)
        cache.take_news()
        cache.finish(now + 0.3, rid, ending)

    return run


def polled() -> Callable[[], object]:
    """`ask` while there is nothing to say."""
    cache = fresh()
    cache.arrive(0.0, "a", [bytes(32)] * BLOCKS, PROMPT_TOKENS)
    return lambda: cache.ask(0.0, "a", 0, chunk_tokens=2048)


def decided() -> Callable[[], object]:
    """The rule alone, on the facts of a hit in two tiers."""
    cache = fresh()
    cache.arrive(0.0, "a", [bytes([i]) * 32 for i in range(BLOCKS)], PROMPT_TOKENS)
    (probe,) = cache.take()
    assert isinstance(probe, Probe)
    cache.receive(0.0, ProbeDone(probe.op, HOST * 20 + POOL * 44, 0.001))
    cache.ask(0.0, "a", 0, chunk_tokens=2048)
    facts = cache.finish(0.0, "a", Ending(aborted=True)).facts
    assert facts is not None
    return lambda: decide(facts, cache.terms)


def new_keys() -> Callable[[], object]:
    """The pool keys of 64 blocks that were never seen."""
    keys = PoolKeys(bytes(32), remember=BLOCKS)
    count = 0

    def run() -> object:
        nonlocal count
        count += BLOCKS
        return keys.keys([i.to_bytes(32, "big") for i in range(count, count + BLOCKS)])

    return run


def known_keys() -> Callable[[], object]:
    """The pool keys of 64 blocks that were seen before."""
    keys = PoolKeys(bytes(32))
    hashes = [i.to_bytes(32, "big") for i in range(BLOCKS)]
    return lambda: keys.keys(hashes)


def plain_chain(tokens: Sequence[int]) -> list[bytes]:
    """The same chain, written as its definition reads."""
    parent = hashlib.sha256(cbor2.dumps("vllm-none-hash", canonical=True)).digest()
    hashes = []
    for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = [parent, list(tokens[at : at + BLOCK_TOKENS]), None]
        parent = hashlib.sha256(cbor2.dumps(block, canonical=True)).digest()
        hashes.append(parent)
    return hashes


def main() -> None:
    chosen = options(__doc__)
    figures = Figures("gate", 5 if chosen.quick else 31, ("msgspec", "cbor2", "numpy"))
    times = 200 if chosen.quick else 1000
    gc.freeze()
    lives = figures.measure(
        {
            "hit": life(POOL * BLOCKS),
            "hit_in_two_tiers": life(HOST * 20 + POOL * 44),
            "miss": life(bytes(BLOCKS)),
            "partial": life(POOL * 40 + bytes(24)),
            "hit_polled_100_times": life(POOL * BLOCKS, polls=100),
        },
        times=times,
        unit="us",
        scale=1e6,
    )
    for name in ("hit", "miss", "partial"):
        figures.ratio(f"{name}_vs_goal", lives[name], [GOAL_MICROSECONDS] * figures.runs)
    figures.measure({"ask_polled": polled(), "decide": decided()}, times=10 * times, unit="us", scale=1e6)
    keys = figures.measure(
        {"keys_known": known_keys(), "keys_new": new_keys()}, times=times, unit="us", scale=1e6
    )
    figures.ratio("known_vs_new_keys", keys["keys_known"], keys["keys_new"])
    tokens = [(i * 7919) % 150_000 for i in range(LONG_PROMPT_TOKENS)]
    assert block_hashes(tokens, BLOCK_TOKENS) == plain_chain(tokens)
    hashing = figures.measure(
        {
            "hash_100k_tokens": lambda: block_hashes(tokens, BLOCK_TOKENS),
            "hash_100k_tokens_plain": lambda: plain_chain(tokens),
        },
        times=1,
        unit="ms",
        scale=1e3,
    )
    figures.ratio("ours_vs_plain_chain", hashing["hash_100k_tokens"], hashing["hash_100k_tokens_plain"])
    figures.write(chosen.json)


if __name__ == "__main__":
    main()
