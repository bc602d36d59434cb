"""From vLLM's offloading configuration and the tier's settings to its parts.

Owns what has to be known before anything may be shared: that the settings are safe, that host memory can be
read, that the weights can be told apart. Raises EngineError or ConfigError where not.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import vllm
from vllm.v1.kv_offload.base import Locality, Medium

from .... import __version__
from ....cache.commands import Evicted
from ....cache.machine import Cache
from ....clock import Clock, MonotonicClock
from ....config import Config, load, resolve_secret
from ....errors import EngineError
from ....executors.aliens import Aliens
from ....executors.membership import Membership
from ....executors.shelf import Shelf, open_shelf
from ....keys.namespace import Manifest, Namespace
from ....keys.pool import secret_of
from ....store.backoff import State
from ....telemetry.accounts import mourner, observer
from ....telemetry.metrics import Metrics
from ....telemetry.spans import open_spans
from ....telemetry.traces import RecordedTraces
from ...assembly import (
    cache_settings,
    publication_of,
    save_profile,
    sink_of,
    start_from_profile,
    thread_executor,
)
from ...ferry import Ferry
from ..runfolder import begin_run
from .chunks import ChunkStaging, HostMemory
from .commands import ChunkExecutor
from .names import ChunkSpaces, member_name, namespaces
from .side import CHUNK_TOKENS, TierSide
from .tracked import Common, Tracked

__all__ = ["MEDIUM", "Parts", "build", "read_settings"]

log = logging.getLogger("vllm.kvferry")

MEDIUM = Medium.STORAGE
"""What requests that name the tiers to load from call this one."""


@dataclass(slots=True)
class Parts:
    """A tier that is ready to use."""

    side: TierSide
    shelf: Shelf
    cache: Cache
    ferry: Ferry


def read_settings(settings: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Config:
    """The tier's settings, in the schema of all engines. Raises ConfigError."""
    config = load(json=dict(settings), env=env).config
    if config.host_memory:
        log.warning(
            "kvferry: host_memory is left out: vLLM's own host memory lies before this tier; "
            "write cpu_bytes_to_use in kv_connector_extra_config"
        )
        config = msgspec.structs.replace(config, host_memory=0)
    if not config.pool and not config.disk:
        log.warning('kvferry: there is nothing to share with; write "pool": "valkey://HOST:6379"')
    return config


def build(
    spec: Any,
    view: memoryview,
    config: Config,
    given: Mapping[str, Any],
    metrics: Metrics,
    locality: Locality | None,
) -> Parts:
    """The parts of one engine's tier. Raises EngineError where its chunks cannot be named."""
    clock: Clock = MonotonicClock()
    memory = HostMemory(view)
    engine = spec.config
    tokens = {
        int(group.group_id): int(group.tokens_per_block) * int(engine.cache.blocks_per_chunk)
        for group in engine.groups
    }
    size = next(iter(tokens.values()))
    _check(config, given, size)
    classes = dict.fromkeys((config.data_class, *config.shareable_data_classes))
    spaces_of = {name: namespaces(spec, config, name, memory.row_bytes) for name in classes}
    secret = secret_of(config.tenant, resolve_secret(config))
    replica = config.replica or f"{socket.gethostname()}-{os.getpid()}"
    joints = _Joints()
    shelf = open_shelf(
        config,
        clock,
        partial(observer, metrics),
        joints.pool_state,
        partial(mourner, metrics, joints.evicted),
    )
    settings = cache_settings(
        config, shelf.outcomes, block_tokens=size, bytes_per_token=max(1, memory.row_bytes // size)
    )
    cache = Cache(settings, publication_of(config))
    start_from_profile(config, cache, shelf)
    membership, aliens = _membership(config, shelf, spaces_of, secret, clock)
    joints.membership = membership
    spaces = ChunkSpaces(spaces_of, config.data_class, secret, membership)
    requests: dict[str, Tracked] = {}
    staging = ChunkStaging()
    executors: list[ChunkExecutor] = []

    def executor(deliver: Any) -> ChunkExecutor:
        executors.append(
            ChunkExecutor(
                lambda heard: thread_executor(
                    config, shelf, heard, clock=clock, replica=replica, aliens=aliens, codec=None
                ),
                deliver,
                requests,
                staging,
            )
        )
        return executors[0]

    begin_run(config, given)
    base = next(iter(spaces_of[config.data_class].values())).digest().hex()
    ferry = Ferry(
        config=config,
        cache=cache,
        shelf=shelf,
        spaces=spaces,
        executor=executor,
        clock=clock,
        metrics=metrics,
        replica=replica,
        chunk_tokens=CHUNK_TOKENS,
        sink=sink_of(config),
        traces=RecordedTraces(open_spans(required=True), shelf.kinds) if config.spans else None,
        on_close=lambda cache: save_profile(config, cache, shelf, replica=replica, namespace=base),
    )
    joints.ferry = ferry
    if membership is not None:
        membership.start()
        membership.wait(config.timeouts.connect * 2)
    common = Common(
        config=config,
        cache=cache,
        executor=executors[0],
        spaces=spaces,
        clock=clock,
        memory=memory,
        staging=staging,
        requests=requests,
        tokens=tokens,
        medium=MEDIUM,
        locality=locality,
    )
    return Parts(TierSide(common, ferry), shelf, cache, ferry)


def _check(config: Config, given: Mapping[str, Any], size: int) -> None:
    if config.codec != "raw":
        raise EngineError(
            f'codec is {config.codec}, and the tier moves chunks as they are; write "codec": "raw"'
        )
    if "block_tokens" in given and config.block_tokens != size:
        raise EngineError(
            f"block_tokens is {config.block_tokens}, and vLLM's chunks have {size} tokens; leave it out"
        )


def _membership(
    config: Config,
    shelf: Shelf,
    spaces_of: Mapping[str, Mapping[int, Namespace]],
    secret: bytes,
    clock: Clock,
) -> tuple[Membership | None, Aliens | None]:
    if shelf.pool is None:
        return None, None
    members = {
        member_name(data_class, group): namespace
        for data_class, groups in spaces_of.items()
        for group, namespace in groups.items()
    }
    membership = Membership(
        shelf.pool,
        members,
        Manifest(
            engine=f"vllm {vllm.__version__}",
            connector=f"kvferry {__version__} FerryTier",
            kvferry=__version__,
            chat_template="",
        ),
        # A tier computes nothing: names and layouts are compared.
        np.zeros((1, 1), dtype=np.float32),
        tolerance=0.0,
        timeout_seconds=max(1.0, config.timeouts.connect),
    )
    own = {namespace.digest() for namespace in members.values()}

    def others(ours: bytes) -> dict[bytes, str]:
        return {digest: names for digest, names in membership.others(ours).items() if digest not in own}

    return membership, Aliens(secret, others, clock.now)


class _Joints:
    """What a tier tells to parts that are made after it."""

    def __init__(self) -> None:
        self.membership: Membership | None = None
        self.ferry: Ferry | None = None

    def pool_state(self, state: State) -> None:
        if state is State.UP and self.membership is not None:
            self.membership.rejoin()

    def evicted(self, evicted: Evicted) -> None:
        if self.ferry is not None:
            self.ferry.evicted(evicted)
