"""Every setting on one page: name, type, bounds, default, and one line on what it does.

Owns what settings exist and which values they take. Refuses to know where values come from (`load.py`) and
how text becomes a value (`fields.py`). All structs are frozen, and each checks itself when it is made, so
that a value built in code meets the same bounds as one read from a file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from ..errors import ConfigError
from ..units import GIB, Bytes, Seconds
from .fields import check_struct
from .urls import check_address, check_disk, check_pool, hide_password

__all__ = [
    "CodecName",
    "Config",
    "Eviction",
    "GateSettings",
    "LimitSettings",
    "Mode",
    "Objective",
    "Policy",
    "Publish",
    "TimeoutSettings",
    "Touches",
]

Publish: TypeAlias = Literal["never", "declared", "second-touch", "all"]
Eviction: TypeAlias = Literal["lru", "s3fifo", "gdsf"]
Touches: TypeAlias = Literal["replica", "pool"]
Mode: TypeAlias = Literal["off", "shadow", "canary", "on"]
Policy: TypeAlias = Literal["rule", "always", "never"]
Objective: TypeAlias = Literal["latency", "throughput"]
CodecName: TypeAlias = Literal["raw", "fp8", "int8", "int4"]

_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Quantile: TypeAlias = Annotated[float, msgspec.Meta(gt=0, lt=1)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_Span: TypeAlias = Annotated[Seconds, msgspec.Meta(gt=0)]

_POOL = {"check": check_pool}
_FOLDER = {"check": check_disk}
_ADDRESS = {"check": check_address}


def _doc(text: str, **constraints: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **constraints)


class GateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to carry. May be switched at run time, by replacing the whole struct."""

    mode: Annotated[Mode, _doc("off; shadow decides and moves nothing; canary serves a share; on")] = "on"
    policy: Annotated[
        Policy, _doc("rule compares predictions; always and never are the arms to compare it with")
    ] = "rule"
    objective: Annotated[
        Objective, _doc("latency charges interference to loads; throughput charges recompute too")
    ] = "latency"
    canary_share: Annotated[_Share, _doc("share of requests that may load in mode canary")] = 0.05
    holdout_share: Annotated[_Share, _doc("share that never loads, which gives the causal saving")] = 0.02
    explore_share: Annotated[_Share, _doc("most of the requests that try the side predicted slower")] = 0.02
    margin: Annotated[_Span, _doc("a load has to win by this much; never zero")] = 0.002
    margin_share: Annotated[float, _doc("and by this share of the predicted recompute", ge=0, le=1)] = 0.05
    load_quantile: Annotated[_Quantile, _doc("quantile of the load that has to win")] = 0.95
    recompute_quantile: Annotated[_Quantile, _doc("quantile of the recompute that it has to beat")] = 0.5
    auto_off: Annotated[bool, _doc("turn loading off when the holdout shows that it costs time")] = True

    def __post_init__(self) -> None:
        check_struct(self, "gate")


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be in flight at once."""

    replica_loads: Annotated[_Count, _doc("parallel loads of one replica")] = 4
    pool_loads: Annotated[_Count, _doc("parallel loads from the pool, all replicas together")] = 64
    new_replica_loads: Annotated[_Count, _doc("parallel loads a new replica begins with")] = 1
    growth_per_load: Annotated[float, _doc("how far each load in time raises a new replica's cap", gt=0)] = (
        0.5
    )
    replica_stores: Annotated[_Count, _doc("parallel publications of one replica")] = 2
    threads: Annotated[_Count, _doc("threads that carry out loads and stores")] = 4
    publish_bytes: Annotated[Bytes, _doc("most bytes waiting to be published; beyond, none are", ge=1)] = GIB

    def __post_init__(self) -> None:
        check_struct(self, "limits")


class TimeoutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait before going on without the cache."""

    connect: Annotated[_Span, _doc("to reach a tier")] = 1.0
    probe: Annotated[_Span, _doc("to learn which blocks a tier holds")] = 0.25
    load: Annotated[_Span, _doc("to load; then the request is recomputed")] = 30.0
    store: Annotated[_Span, _doc("to publish; then the blocks stay unpublished")] = 60.0
    handoff: Annotated[
        _Span, _doc("to wait for blocks that the replica which did the prefill is publishing")
    ] = 5.0
    lease: Annotated[_Span, _doc("how long one publisher keeps the others from publishing the same")] = 60.0
    backoff_first: Annotated[_Span, _doc("how long a failing tier is left alone at first")] = 0.5
    backoff_most: Annotated[_Span, _doc("and at most, after doubling")] = 30.0

    def __post_init__(self) -> None:
        check_struct(self, "timeouts")
        if self.backoff_first > self.backoff_most:
            raise ConfigError(
                f"timeouts.backoff_first is {self.backoff_first} s, more than timeouts.backoff_most "
                f"({self.backoff_most} s); write a backoff_most that is not shorter"
            )


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one replica."""

    pool: Annotated[str | None, _doc("URL of the pool that replicas share", extra=_POOL)] = None
    host_memory: Annotated[Bytes, _doc("host memory for a tier before the pool; 0 for none", ge=0)] = 0
    disk: Annotated[str | None, _doc("files: URL of a tier on a local disk", extra=_FOLDER)] = None
    publish: Annotated[
        Publish, _doc("what enters the pool: nothing, declared prefixes, what was asked twice, all")
    ] = "second-touch"
    touches: Annotated[Touches, _doc("who counts touches: each replica, or the pool")] = "replica"
    ttl: Annotated[_Span, _doc("upper bound of a block's life in the pool")] = 86400.0
    eviction: Annotated[
        Eviction, _doc("what host memory evicts first; docs/eviction.md compares the policies")
    ] = "lru"
    unread: Annotated[
        _Span, _doc("how long a block that nobody has read may stay in host memory or a directory")
    ] = 21600.0
    tenant: Annotated[str, _doc("whose blocks these are; tenants share nothing", min_length=1)] = "default"
    tenant_secret: Annotated[
        Annotated[str, msgspec.Meta(min_length=1)] | None,
        _doc("key of the block names: file:PATH, env:NAME or the text itself", extra={"secret": True}),
    ] = None
    data_class: Annotated[str, _doc("class of data, where a request names none", min_length=1)] = "default"
    shareable_data_classes: Annotated[tuple[str, ...], _doc("classes that may be published at all")] = (
        "default",
        "public",
    )
    revision: Annotated[str | None, _doc("revision of the weights; else their digest is used")] = None
    block_tokens: Annotated[int, _doc("tokens in a block", ge=1)] = 32
    codec: Annotated[
        CodecName,
        _doc("how blocks are stored and sent: raw is exact, the others are smaller and lossy"),
    ] = "raw"
    replica: Annotated[str | None, _doc("name of this replica; else host and process")] = None
    strict: Annotated[bool, _doc("do not start when the pool cannot be used; else serve without it")] = False
    record: Annotated[str | None, _doc("folder that gets decisions.jsonl")] = None
    spans: Annotated[
        bool, _doc("hand every request to OpenTelemetry as a trace; OTEL_ variables say where")
    ] = False
    control: Annotated[
        str | None,
        _doc("HOST:PORT where an engine with a server of its own is switched and asked", extra=_ADDRESS),
    ] = None
    profile: Annotated[str | None, _doc("profile.json to start from and to save to")] = None
    gate: Annotated[GateSettings, _doc("whether to carry")] = msgspec.field(default_factory=GateSettings)
    limits: Annotated[LimitSettings, _doc("how much at once")] = msgspec.field(default_factory=LimitSettings)
    timeouts: Annotated[TimeoutSettings, _doc("how long to wait")] = msgspec.field(
        default_factory=TimeoutSettings
    )

    def __post_init__(self) -> None:
        check_struct(self, "")

    def __repr__(self) -> str:
        """Never shows a secret: settings end up in logs and tracebacks."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.tenant_secret is not None:
            shown["tenant_secret"] = "***"
        if self.pool is not None:
            shown["pool"] = hide_password(self.pool)
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
