"""One request as the tier follows it, and what all parts of the tier work with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, ReqContext, get_offload_group_idx
from vllm.v1.kv_offload.tiering.base import JobResult

from ....cache.machine import Cache
from ....clock import Clock
from ....config import Config, RequestFields
from ....errors import EngineError
from ....gate.facts import Arm
from ...cacheside import Adapter
from .chunks import ChunkStaging, HostMemory
from .commands import ChunkExecutor
from .names import ChunkSpaces

__all__ = ["GRACE_SECONDS", "Common", "Tracked", "chain_of"]

GRACE_SECONDS = 0.5
"""How long after its own deadline an operation is still waited for."""


@dataclass(slots=True, eq=False)
class Tracked:
    """One request: a `CacheRequest`. Blocks are chunks of the group that vLLM asks about first."""

    rid: str
    context: ReqContext
    fields: RequestFields
    arrived_at: float
    arm: Arm = Arm.OFF
    """As the cache has it; set when that is told of the request."""
    group: int = -1
    hashes: Sequence[bytes] = ()
    """Offload keys of the blocks."""
    prompt_tokens: int = 0
    adapter: Adapter | None = None
    index: dict[bytes, int] = field(default_factory=dict)
    """Offload key to number of its block."""
    keys: Sequence[bytes] = ()
    """Pool keys of the blocks; empty where nothing is shared."""
    namespace: bytes = b""
    data_class: str = ""
    known: bool = False
    """The cache has been told of it."""
    status: bytes | None = None
    """What the look-up said of each block; None until it has been answered."""
    status_by: float = 0.0
    """When the look-up is not waited for any more."""
    publish_end: int = 0
    asked_at: int = -1
    """Step of the answer."""
    answer: LookupResult | int = LookupResult.RETRY
    """RETRY, or the block up to which this step's look-ups are hits."""
    chosen: bool = False
    begun: bool = False
    over: bool = False
    """Nothing will be loaded for it any more."""
    lost: set[bytes] = field(default_factory=set)
    """Offload keys that a load did not bring, though they were said to be held."""
    riders: dict[bytes, int] = field(default_factory=dict)
    """Status of offload keys of other groups; -1 while they are looked up."""
    covered: int = 0
    """Blocks from the front whose KV is in the engine's reach: held, loaded or computed."""
    scheduled_at: int = -1
    ready: bool = False
    preempted: bool = False

    @property
    def whole(self) -> bool:
        """Whether every block is in the engine's reach."""
        return self.known and self.covered >= len(self.hashes)


@dataclass(slots=True)
class Common:
    """What the parts of one engine's tier share."""

    config: Config
    cache: Cache
    executor: ChunkExecutor
    spaces: ChunkSpaces
    clock: Clock
    memory: HostMemory
    staging: ChunkStaging
    requests: dict[str, Tracked]
    tokens: Mapping[int, int]
    """Tokens of a chunk for each KV cache group."""
    medium: Medium
    locality: Locality | None
    results: list[JobResult] = field(default_factory=list)
    """Jobs that have ended and were not fetched yet."""


def chain_of(context: ReqContext, group: int, size: int) -> list[bytes]:
    """A request's keys of one group from its first chunk on, of `size` tokens each.

    Raises EngineError where vLLM hides them.
    """
    positions: Any = getattr(context, "_offload_key_positions", None)
    if positions is None:
        raise EngineError("this release of vLLM does not tell a tier which chunks a request has")
    at = {
        end: key for key, end in positions.items() if get_offload_group_idx(key) == group and end % size == 0
    }
    chain: list[bytes] = []
    while (end := (len(chain) + 1) * size) in at:
        chain.append(bytes(at[end]))
    return chain
