"""Promotions: chunks that vLLM made room for, brought from the tiers.

Owns what is under way and when it is reported. A chunk of another KV cache group (a rider) comes along with
the load of the chunks that were decided on. Every job ends by its deadline, whatever a tier does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, get_offload_group_idx
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from ....cache.commands import TIER, Cancel, Load, Probe, Status
from ...ferry import Ferry
from .chunks import Chunks, LoadChunks
from .commands import LoadPlace
from .tracked import GRACE_SECONDS, Common, Tracked

__all__ = ["Loads"]


@dataclass(slots=True, eq=False)
class _Job:
    job: TransferJob
    chunks: Chunks
    began: float
    until: float
    riders: set[int] = field(default_factory=set)
    """Operations for riders that have not ended."""
    led: bool = False
    """The machine's own loads have ended."""


class Loads:
    """The loads of one engine; one a request at most."""

    def __init__(self, common: Common, ferry: Ferry) -> None:
        self._common, self._ferry = common, ferry
        self._jobs: dict[str, _Job] = {}
        self._asked: dict[int, tuple[Tracked, list[bytes], float]] = {}
        """Look-ups of riders, and until when they are waited for."""
        self._fresh: list[tuple[Tracked, bytes]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def loading(self, rid: str) -> bool:
        """Whether a load of this request is under way."""
        return rid in self._jobs

    def submit(self, job: TransferJob) -> None:
        """vLLM has made room for chunks that were hits."""
        common = self._common
        tracked = common.requests.get(job.req_context.req_id)
        now = common.clock.now()
        if tracked is None or not tracked.chosen or tracked.begun or tracked.over:
            common.results.append(JobResult(job.job_id, False, transfer_time=0.0))
            return
        keys = list(job.keys)
        places = {tracked.index[key]: place for place, key in enumerate(keys) if key in tracked.index}
        limit = common.config.timeouts.load
        load = _Job(job, common.memory.lend(job.chunk_ids), now, now + limit + 2 * GRACE_SECONDS)
        self._jobs[tracked.rid] = load
        if not places:
            self._ferry.give_up(tracked.rid)
            self.end(tracked.rid)
            return
        tracked.begun = True
        self._bring_riders(tracked, load, keys, limit)
        self._ferry.begin(tracked.rid, max(places) + 1, LoadPlace(load.chunks, places))

    def led(self, rid: str) -> None:
        """The machine's loads for a request have ended; the job ends with its last rider."""
        job = self._jobs.get(rid)
        if job is not None:
            job.led = True
            if not job.riders:
                self.end(rid)

    def end(self, rid: str) -> None:
        """Take a load's chunks back, and tell vLLM which of them hold what they should."""
        load = self._jobs.pop(rid, None)
        if load is None:
            return
        common = self._common
        common.executor.submit([Cancel(op) for op in load.riders])
        filled = load.chunks.give_back()
        keys = list(load.job.keys)
        good = tuple(key for key, full in zip(keys, filled, strict=True) if full)
        tracked = common.requests.get(rid)
        if tracked is not None:
            tracked.over = True
            tracked.lost.update(key for key, full in zip(keys, filled, strict=True) if not full)
        common.results.append(
            JobResult(
                load.job.job_id,
                len(good) == len(keys),
                good if 0 < len(good) < len(keys) else None,
                common.clock.now() - load.began,
                len(good) * common.memory.row_bytes,
            )
        )

    def tick(self, now: float) -> None:
        """End what is past its deadline."""
        for rid in [rid for rid, job in self._jobs.items() if now >= job.until]:
            self.end(rid)
        for op in [op for op, (_, _, until) in self._asked.items() if now >= until]:
            tracked, keys, _ = self._asked.pop(op)
            tracked.riders.update(dict.fromkeys(keys, int(Status.FAILED)))

    def end_all(self) -> None:
        """Take every chunk back now."""
        for rid in list(self._jobs):
            self.end(rid)

    # -- riders ------------------------------------------------------------------------------------------

    def rider(self, tracked: Tracked, key: OffloadKey, answer: LookupResult | int) -> LookupResult:
        """A look-up of another group's chunk; `answer` is this step's for the blocks."""
        common = self._common
        group = get_offload_group_idx(key)
        if group == tracked.group or group not in common.tokens or key in tracked.lost:
            return LookupResult.MISS
        status = tracked.riders.get(key)
        if status is None:
            tracked.riders[key] = -1
            self._fresh.append((tracked, key))
            return LookupResult.RETRY
        if status < 0 or isinstance(answer, LookupResult):
            return LookupResult.RETRY
        end = tracked.context.get_offload_key_position(key) or 0
        within = answer * common.tokens[tracked.group] >= end > 0
        return LookupResult.HIT if within and status >= TIER else LookupResult.MISS

    def look_up_riders(self) -> None:
        """Ask about the riders that this step's look-ups named."""
        common = self._common
        fresh, self._fresh = self._fresh, []
        runs: dict[tuple[str, int], list[bytes]] = {}
        for tracked, key in fresh:
            if common.requests.get(tracked.rid) is tracked and tracked.keys:
                runs.setdefault((tracked.rid, get_offload_group_idx(OffloadKey(key))), []).append(key)
            else:
                tracked.riders[key] = 0
        for (rid, group), keys in runs.items():
            tracked = common.requests[rid]
            names = common.spaces.keys(tracked.data_class, group, keys)
            digest = common.spaces.digest(tracked.data_class, group)
            op = common.executor.next_op()
            timeout = common.config.timeouts.probe
            self._asked[op] = (tracked, keys, common.clock.now() + timeout + GRACE_SECONDS)
            common.executor.submit([Probe(op, rid, names, None, 0, len(names), timeout, digest)])

    def riders_found(self, op: int, status: bytes) -> None:
        """A look-up of riders has been answered."""
        tracked, keys, _ = self._asked.pop(op, (None, [], 0.0))
        if tracked is not None:
            tracked.riders.update(zip(keys, status, strict=True))

    def rider_done(self, op: int) -> None:
        """Riders have come, or not."""
        for rid, load in list(self._jobs.items()):
            load.riders.discard(op)
            if load.led and not load.riders:
                self.end(rid)

    def _bring_riders(self, tracked: Tracked, load: _Job, keys: Sequence[bytes], limit: float) -> None:
        common = self._common
        runs: dict[tuple[int, int], list[int]] = {}
        for place, key in enumerate(keys):
            status = tracked.riders.get(key, 0)
            if status >= TIER:
                runs.setdefault((status - TIER, get_offload_group_idx(OffloadKey(key))), []).append(place)
        for (tier, group), places in runs.items():
            names = common.spaces.keys(tracked.data_class, group, [keys[p] for p in places])
            digest = common.spaces.digest(tracked.data_class, group)
            op = common.executor.next_op()
            load.riders.add(op)
            into = LoadChunks(load.chunks, places, common.staging)
            common.executor.submit([Load(op, tracked.rid, tier, names, 0, len(names), into, limit, digest)])
