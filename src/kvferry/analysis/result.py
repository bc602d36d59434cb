"""Everything an analysis holds, as data: what `--json` writes, what the terminal and the page show.

Owns the names and units, and nothing of how a figure is found. Shares and hit ratios are between 0 and 1,
tokens and bytes are counts over the whole trace, rates are bits per second. A list that is empty, or a field
that is None, was not asked for or cannot be answered: `cannot` says which and why.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Analysis",
    "Capacity",
    "ClassResult",
    "CurvePoint",
    "FlowPicture",
    "FlowPoint",
    "Flows",
    "Hits",
    "IntervalBin",
    "LengthBin",
    "Mark",
    "Misses",
    "PolicyPoint",
    "PoolGain",
    "ProblemLine",
    "Publication",
    "Routing",
    "SampledCurve",
    "Sharing",
    "TraceProblems",
    "Window",
]


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    """Hit ratios of a cache that forgets nothing. Each has its own denominator; none is `the` hit rate."""

    by_token: float
    """min(matched x block, input) over input tokens."""
    by_block: float
    """Matched blocks over all blocks, the partial last ones included."""
    by_full_block: float
    """Matched full blocks over full blocks."""
    mean_of_requests: float
    """Mean over requests of their matched tokens over their input tokens."""
    useful_tokens: float
    """Tokens of matched full blocks over input tokens: what can be loaded, and what planning counts."""


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Hits of one cache of this capacity."""

    capacity_bytes: int | None
    """None where nobody said what a token weighs."""
    capacity_tokens: int
    hit_by_token: float
    hit_useful_tokens: float


class SampledCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The curve from a sample of the blocks (SHARDS, fixed rate), at the capacities of the exact one."""

    rate: float
    sampled_blocks: int
    mean_error: float
    """Mean over the points of |sampled - exact| of hit_by_token."""
    worst_error: float
    points: tuple[CurvePoint, ...]


class PolicyPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One eviction policy at one capacity, by simulation."""

    policy: str
    """lru, s3fifo, gdsf (cost-aware) or belady (the bound, which knows the future)."""
    capacity_bytes: int | None
    capacity_tokens: int
    hit_by_token: float
    hit_useful_tokens: float


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A capacity worth marking on the curve: one replica's, all replicas', the pool's."""

    name: str
    capacity_bytes: int | None
    capacity_tokens: int
    hit_by_token: float
    """What the curve says there."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """C_effective = C_physical - C_active_decode - C_reserved - C_fragmentation, of one replica, in bytes."""

    physical_bytes: int
    active_decode_bytes: int
    reserved_bytes: int
    fragmentation_bytes: int
    effective_bytes: int


class Misses(msgspec.Struct, frozen=True, kw_only=True):
    """Where every input token came from or why it did not; the parts sum to the input tokens."""

    hit: int
    """In full blocks that the replica held."""
    never_seen: int
    """No earlier request had it."""
    evicted: int
    """An earlier request had it, and no replica holds it any more."""
    placement: int
    """Another replica holds it."""
    partial_block: int
    """Behind the last full block of its prompt: never loaded, whoever holds it."""


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """One way of choosing a replica, in order of arrival and without queues."""

    hit_by_token: float
    hit_useful_tokens: float
    busiest_share: float
    """Share of all tokens to compute that the busiest replica got; 1 / replicas is even."""
    misses: Misses


class PoolGain(msgspec.Struct, frozen=True, kw_only=True):
    """One shared pool against the best local routing, never against random."""

    best_local: str
    best_local_hit_by_token: float
    pool_capacity_bytes: int | None
    pool_capacity_tokens: int | None
    """None: without a limit."""
    pool_hit_by_token: float
    ratio: float | None
    """Pool over best local; None where local hits nothing."""
    against_random: float | None
    """What a comparison with random routing would claim; shown as a warning."""


class LengthBin(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a class that find about as many tokens in the pool beyond their replica's own."""

    requests: int
    remote_tokens: int
    """Sum of useful tokens in the pool behind what the replica holds."""
    pair_tokens: float
    """Sum of n (context + n / 2): what attention over them takes, context being the local hit."""


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool would add to a class beyond the best local routing."""

    local_tokens: int
    """Useful tokens that the replica holds itself."""
    remote_tokens: int
    remote_requests: int
    lengths: tuple[LengthBin, ...]
    computed_tokens: int
    """Input tokens behind the replica's own hits: what it computes where there is no pool."""
    computed_pair_tokens: float
    """Of these, the sum of n (context + n / 2) over the requests."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """What a publication policy would have written and served, in tokens of full blocks within the declared
    boundaries: `all` is all that these permit."""

    policy: str
    """never, declared, second-touch or all."""
    written_tokens: int
    served_tokens: int
    never_read_tokens: int
    """Of those written."""


class IntervalBin(msgspec.Struct, frozen=True, kw_only=True):
    """Reused tokens by the seconds since their last use."""

    from_seconds: float
    to_seconds: float
    tokens: int


class ClassResult(msgspec.Struct, frozen=True, kw_only=True):
    """One class of prefixes."""

    name: str
    requests: int
    input_tokens: int
    token_share: float
    hit_by_token: float
    hit_useful_tokens: float
    unique_tokens: int
    top_tenth_share: float | None
    """Popularity: share of reuses that fall on the most reused tenth of its blocks; None without reuse."""
    interval_p50_seconds: float | None
    interval_p95_seconds: float | None
    ttl_seconds: float | None
    """Keeps 99 % of the reuses that were seen: a longer life holds memory for the rest. None of the three is
    longer than the longest interval of the class."""
    never_read_tokens: int
    """In full blocks that one request asked for and none after it, whether they might be published or not."""
    publication: tuple[Publication, ...]
    sharing: Sharing | None


class FlowPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the series; rates are means over it."""

    start_seconds: float
    read_bits_per_second: float
    write_bits_per_second: float


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The worst of all windows of this length, for reads and writes each."""

    seconds: float
    read_start_seconds: float
    read_bits_per_second: float
    write_start_seconds: float
    write_bits_per_second: float


class FlowPicture(msgspec.Struct, frozen=True, kw_only=True):
    """One of the four situations that a link and a store must stand; each rate in its own worst window."""

    name: str
    """steady, new-replicas, miss-burst or node-lost."""
    what: str
    """The assumption, in a sentence."""
    seconds: float
    read_bits_per_second: float
    write_bits_per_second: float
    replica_bits_per_second: float
    per_node_bits_per_second: float
    """Of one storage node, all three together."""


class Flows(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes to and from a pool that forgets nothing and serves every hit."""

    step_seconds: float
    """Of every point but the last, which reaches to the trace's last request: up to half as long again, or
    down to half as long."""
    series: tuple[FlowPoint, ...]
    storage_nodes: int
    replicas: int
    pictures: tuple[FlowPicture, ...]


class ProblemLine(msgspec.Struct, frozen=True, kw_only=True):
    """One bad row."""

    line: int
    message: str


class TraceProblems(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that were left out."""

    rows: int
    first: tuple[ProblemLine, ...]


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says."""

    path: str
    format: str
    block_tokens: int
    bytes_per_token: float | None
    model: str | None
    replicas: int
    requests: int
    input_tokens: int
    output_tokens: int
    span_seconds: float
    blocks: int
    """References to blocks, the partial last ones included."""
    unique_blocks: int
    unique_tokens: int
    unique_bytes: int | None
    problems: TraceProblems
    cannot: tuple[str, ...]
    """Questions that this trace or these flags cannot answer, each with why."""
    hit: Hits | None
    curve: tuple[CurvePoint, ...]
    sampled: SampledCurve | None
    policies: tuple[PolicyPoint, ...]
    marks: tuple[Mark, ...]
    capacity: Capacity | None
    intervals: tuple[IntervalBin, ...]
    misses: Misses | None
    """Under the best local routing; without replicas, of one cache of the given or no limit."""
    misses_routing: str | None
    routing: dict[str, Routing]
    pool_gain: PoolGain | None
    worst_window: Window | None
    flows: Flows | None
    class_field: str
    """What classes are made of: "root" or a field of the trace."""
    classes: tuple[ClassResult, ...]
    recommendation: str
    """The one thing to do next, in a sentence."""
