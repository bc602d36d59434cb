"""What was published on a server stays recognisable to every process, and strangers seldom pass for it."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from kvferry.store.tier import Found
from kvferry.store.valkey import EmbeddedServer, ValkeyTier

KEYS = [hashlib.sha256(b"%d" % n).digest() for n in range(22_000)]

ANOTHER = """
import hashlib, sys
from kvferry.store.tier import Found
from kvferry.store.valkey import ValkeyTier
tier = ValkeyTier("127.0.0.1", int(sys.argv[1]), ghost_keys=1000)
keys = [hashlib.sha256(b"%d" % n).digest() for n in range(22_000)]
known = tier.find(keys[1000:2000], 30.0).count(Found.GHOST)
strangers = sum(tier.find(keys[n:n + 1000], 30.0).count(Found.GHOST) for n in range(2000, 22_000, 1000))
print(known, strangers)
"""


def test_another_process_knows_what_was_published(server: EmbeddedServer) -> None:
    tier = ValkeyTier(server.host, server.port, ghost_keys=1000)
    part = [memoryview(b"x")]
    for start in range(0, 2000, 100):
        batch = KEYS[start : start + 100]
        tier.put(batch, [part] * 100, 30.0)
        tier.drop(batch, 30.0, ghost=False)
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER, str(server.port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    known, strangers = map(int, done.stdout.split())
    assert known == 1000
    assert strangers / 20_000 < 0.015
    assert tier.find(KEYS[1999:2000], 30.0) == bytes([Found.GHOST])
