"""A process that publishes, evicts and drops in a shared directory until it is killed. Run by tests."""

from __future__ import annotations

import hashlib
import random
import sys

from kvferry.store.files import FilesTier
from kvferry.store.framed import FramedTier

__all__ = ["key_of", "payload_of"]

NUMBERS = 60


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"block %d" % number).digest()


def payload_of(number: int) -> memoryview:
    return memoryview(bytearray(hashlib.sha256(b"payload %d" % number).digest() * 1000))


def main(directory: str, capacity: str, seed: str, rounds: str) -> None:
    dice = random.Random(int(seed))
    framed = FramedTier(FilesTier(directory, capacity_bytes=int(capacity), ghost_keys=1000), b"n" * 32)
    print("ready", flush=True)
    for _ in range(int(rounds)):
        numbers = dice.sample(range(NUMBERS), 6)
        keys = [key_of(n) for n in numbers]
        framed.put(keys, [payload_of(n) for n in numbers], 30.0)
        into = [memoryview(bytearray(32_000)) for _ in numbers]
        statuses = framed.get(keys, into, 30.0)
        for number, buffer, status in zip(numbers, into, statuses, strict=True):
            if status not in (0, 1) or (status == 0 and buffer != payload_of(number)):
                print(f"wrong: block {number} status {status}", flush=True)
        if dice.random() < 0.3:
            framed.drop(keys[:2], 30.0)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
