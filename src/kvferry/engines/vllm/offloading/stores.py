"""Publications: of the chunks that vLLM hands down, those that are worth it go to the tiers.

Owns what is under way and when vLLM gets its chunks back. What is worth publishing was said by the policy
when the request became known; here it is compared with what is held already. Never more than a share of
host memory is kept pinned for it: what comes beyond is not published.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import OffloadKey, get_offload_group_idx
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from ....cache.commands import TIER, BlockMemory, Cancel, Command, Status, Store, StoreDone
from ....gate.facts import Arm
from ....outcomes import Outcome
from .chunks import Chunks, StoreChunks
from .tracked import GRACE_SECONDS, Common, Tracked

__all__ = ["Stores"]

log = logging.getLogger("vllm.kvferry")

_MISSING = (Status.ABSENT, Status.GHOST, Status.ALIEN)


@dataclass(slots=True, eq=False)
class _Job:
    job: TransferJob
    tracked: Tracked
    submitted: float
    until: float
    chunks: Chunks | None = None
    """None while what is held already is not known."""
    operations: set[int] = field(default_factory=set)
    keys: list[bytes] = field(default_factory=list)
    bytes: int = 0
    stored_bytes: int = 0
    failed: bool = False


class Stores:
    """The publications of one engine."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._jobs: list[_Job] = []
        self._keys: set[bytes] = set()
        """Pool keys that are being published."""
        self._bytes = 0
        most = max(1, common.memory.chunks // 4) * common.memory.row_bytes
        self._most_bytes = min(common.config.limits.publish_bytes, most)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def operations(self) -> int:
        """Publications at work now."""
        return sum(len(store.operations) for store in self._jobs)

    def submit(self, job: TransferJob, tracked: Tracked, now: float) -> None:
        """Chunks lie in host memory, pinned until the job ends."""
        until = now + self._common.config.timeouts.store + 2 * GRACE_SECONDS
        store = _Job(job, tracked, now, until)
        self._jobs.append(store)
        self._try(store, now)

    def done(self, done: StoreDone) -> None:
        """One operation of a job has ended."""
        for store in list(self._jobs):
            if done.op in store.operations:
                store.operations.discard(done.op)
                store.stored_bytes += done.stored_bytes
                store.failed |= done.cause is Outcome.FAILED
                if not store.operations:
                    self._end(store)

    def tick(self, now: float) -> None:
        """Begin what is known to be worth it by now, and end what is past its deadline."""
        for store in list(self._jobs):
            if store.chunks is None:
                self._try(store, now)
            elif now >= store.until:
                log.warning("a store ran past its deadline: its chunks are taken back")
                store.failed = True
                self._end(store)

    def end_all(self) -> None:
        """Take every chunk back now."""
        for store in list(self._jobs):
            store.failed = True
            self._end(store)

    def _try(self, store: _Job, now: float) -> None:
        tracked = store.tracked
        barred = not tracked.keys or tracked.publish_end == 0 or self._common.cache.mode == "off"
        if not barred:
            if tracked.status is not None:
                self._publish(store, tracked.status)
            elif now < tracked.status_by:
                return
        if not store.operations:
            self._end(store)

    def _publish(self, store: _Job, status: bytes) -> None:
        common, tracked = self._common, store.tracked
        keys = list(store.job.keys)
        places, riders = self._wanted(tracked, keys, status)
        wanted = (len(places) + sum(map(len, riders.values()))) * common.memory.row_bytes
        if not wanted:
            return
        if self._bytes and self._bytes + wanted > self._most_bytes:
            log.debug("%s: not published, the bytes under way are at their limit", tracked.rid)
            return
        store.bytes = wanted
        self._bytes += wanted
        store.chunks = common.memory.lend(store.job.chunk_ids)
        commands: list[Command] = []
        for start, stop in _runs(sorted(places)):
            source = StoreChunks(store.chunks, start, [places[b] for b in range(start, stop)], common.staging)
            worth = common.cache.estimates.worth(start, stop, common.tokens[tracked.group])
            commands.append(self._command(store, tracked.keys, start, stop, source, tracked.namespace, worth))
        for group, at in riders.items():
            names = common.spaces.keys(tracked.data_class, group, [keys[p] for p in at])
            digest = common.spaces.digest(tracked.data_class, group)
            source = StoreChunks(store.chunks, 0, at, common.staging)
            commands.append(self._command(store, names, 0, len(names), source, digest, ()))
        common.executor.submit(commands)

    def _wanted(
        self, tracked: Tracked, keys: Sequence[bytes], status: bytes
    ) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Of a job's chunks those to publish: block to place, and by group the places of riders."""
        common = self._common
        places: dict[int, int] = {}
        riders: dict[int, list[int]] = {}
        end_tokens = tracked.publish_end * common.tokens[tracked.group]
        for place, key in enumerate(keys):
            block = tracked.index.get(key)
            if block is not None:
                missing = key in tracked.lost or (block < len(status) and status[block] in _MISSING)
                if block < tracked.publish_end and missing and tracked.keys[block] not in self._keys:
                    places[block] = place
                continue
            group = get_offload_group_idx(OffloadKey(key))
            end = tracked.context.get_offload_key_position(OffloadKey(key)) or 0
            held = tracked.riders.get(key, 0) >= TIER and key not in tracked.lost
            if group != tracked.group and group in common.tokens and 0 < end <= end_tokens and not held:
                riders.setdefault(group, []).append(place)
        return places, riders

    def _command(
        self,
        store: _Job,
        keys: Sequence[bytes],
        start: int,
        stop: int,
        source: BlockMemory,
        namespace: bytes,
        worth: Sequence[float],
    ) -> Store:
        cache, tracked = self._common.cache, store.tracked
        settings = cache.settings
        op = self._common.executor.next_op()
        store.operations.add(op)
        store.keys.extend(keys[start:stop])
        self._keys.update(keys[start:stop])
        return Store(
            op,
            tracked.rid,
            keys,
            start,
            stop,
            source,
            settings.store_seconds,
            settings.lease_seconds,
            namespace,
            settings.ttl_seconds,
            keys_only=tracked.arm is Arm.SHADOW,
            worth_seconds=worth,
            idle_seconds=cache.lifetimes.life_seconds(tracked.data_class, settings.ttl_seconds),
            touched_only=settings.touches_in_pool,
        )

    def _end(self, store: _Job) -> None:
        """Take a store's chunks back. What was not worth publishing is no failure."""
        common = self._common
        self._jobs.remove(store)
        if store.chunks is not None:
            store.chunks.give_back()
        common.executor.submit([Cancel(op) for op in store.operations])
        self._keys.difference_update(store.keys)
        self._bytes -= store.bytes
        common.results.append(
            JobResult(
                store.job.job_id,
                not store.failed,
                transfer_time=common.clock.now() - store.submitted,
                transfer_bytes=store.stored_bytes,
            )
        )


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return runs
