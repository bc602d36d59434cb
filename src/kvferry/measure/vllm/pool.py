"""The pool as the demo damages it: waits for what was published, and overwrites a block with garbage.

Speaks the contract of a tier without the frame above it, as a broken disk would write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...errors import EngineError
from ...keys.pool import record_key
from ...store.tier import Put, Tier

__all__ = ["break_block", "until_published"]

_SECONDS = 10.0
_POLL_SECONDS = 0.1
_MOST_POLLS = 600


async def until_published(tier: Tier, blocks: Sequence[str]) -> int:
    """Wait until the pool holds all these blocks (as records name them), for a minute at most.

    How many it does not hold then.
    """
    wanted = set(blocks)
    missing = wanted
    for _ in range(_MOST_POLLS):
        held = await asyncio.to_thread(lambda: {record_key(entry.key) for entry in tier.scan(_SECONDS)})
        missing = wanted - held
        if not missing:
            return 0
        await asyncio.sleep(_POLL_SECONDS)
    return len(missing)


def break_block(tier: Tier, block: str) -> None:
    """Put garbage of the same length where this block (as records name it) lies.

    Raises EngineError when the pool does not hold it.
    """
    entry = next((entry for entry in tier.scan(_SECONDS) if record_key(entry.key) == block), None)
    if entry is None:
        raise EngineError(f"the pool does not hold block {block}, so that it cannot be broken")
    tier.drop([entry.key], _SECONDS, ghost=False)
    garbage = memoryview(b"\xa5" * entry.value_bytes)
    if tier.put([entry.key], [[garbage]], _SECONDS) != bytes([Put.STORED]):
        raise EngineError(f"the pool did not take the garbage for block {block}")
