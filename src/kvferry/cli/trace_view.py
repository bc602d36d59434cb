"""An analysis as text: what to do first, then hits, curve, misses, routing, flows, classes.

Owns the words and the order. Every ratio stands beside its denominator. Tables keep to a terminal of 100
columns as far as names from the trace do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ..analysis.result import Analysis, ClassResult, CurvePoint, Misses
from ..units import counted, format_bytes, format_seconds
from .output import write_columns
from .trace_folder import FolderAnalysis

__all__ = ["show", "show_folder"]

_BAR = 40
_WIDTH = 100
_CURVE_ROWS = 12
_CLASS_ROWS = 12


def show(result: Analysis) -> None:
    """Print it."""
    for line in _head(result):
        print(line)
    if result.hit is None:
        return
    print("\nHits of a cache that forgets nothing")
    rows = [
        ("by token", result.hit.by_token, "matched tokens over input tokens"),
        ("by block", result.hit.by_block, "matched blocks over blocks, partial ones included"),
        ("by full block", result.hit.by_full_block, "matched full blocks over full blocks"),
        ("mean of requests", result.hit.mean_of_requests, "mean of each request's share"),
        (
            "useful tokens",
            result.hit.useful_tokens,
            "tokens of matched full blocks over input tokens: to plan with",
        ),
    ]
    write_columns([(name, _percent(value), what) for name, value, what in rows], right=(1,), indent="  ")
    _show_curve(result)
    if result.misses is not None:
        how = f" under {result.misses_routing} routing" if result.misses_routing else ""
        print(f"\nWhere input tokens came from, or why not{how} (they sum to {result.input_tokens:,})")
        write_columns(list(_misses(result.misses)), right=(1, 2), indent="  ")
    _show_routing(result)
    _show_flows(result)
    _show_classes(result)


def show_folder(result: FolderAnalysis) -> None:
    """Print it, a row a file."""
    print(
        f"{result.path}: {counted(len(result.files), 'file')}, {counted(result.requests, 'request')}, "
        f"{counted(result.input_tokens, 'token')}"
    )
    print(
        f"hits of caches that forget nothing, one a file: {_percent(result.hit.by_token)} by token, "
        f"{_percent(result.hit.by_block)} by block, {_percent(result.hit.useful_tokens)} useful tokens"
    )
    rows = [("file", "requests", "tokens", "by token", "useful", "unique tokens")]
    rows += [
        (
            one.path,
            f"{one.requests:,}",
            f"{one.input_tokens:,}",
            "-" if one.hit is None else _percent(one.hit.by_token),
            "-" if one.hit is None else _percent(one.hit.useful_tokens),
            f"{one.unique_tokens:,}",
        )
        for one in result.files
    ]
    write_columns(rows, right=(1, 2, 3, 4, 5), indent="  ")


def _head(result: Analysis) -> Iterator[str]:
    yield f"{result.recommendation}\n"
    yield (
        f"{result.path} ({result.format}): {counted(result.requests, 'request')} in "
        f"{format_seconds(result.span_seconds)}, "
        f"{counted(result.input_tokens, 'token')} in, {result.output_tokens:,} out"
    )
    if result.hit is not None:
        weight = "" if result.unique_bytes is None else f", {format_bytes(result.unique_bytes)}"
        yield (
            f"{counted(result.blocks, 'block')} of {counted(result.block_tokens, 'token')}, "
            f"{result.unique_blocks:,} of them different{weight}"
        )
    if result.capacity is not None:
        c = result.capacity
        yield (
            f"{format_bytes(c.effective_bytes)} to cache in a replica: {format_bytes(c.physical_bytes)} less "
            f"{format_bytes(c.active_decode_bytes)} of active decode, {format_bytes(c.reserved_bytes)} "
            f"reserved, {format_bytes(c.fragmentation_bytes)} of fragmentation"
        )
    if result.problems.rows:
        yield f"left out: {counted(result.problems.rows, 'bad row')}"
        for problem in result.problems.first:
            yield f"  line {problem.line}: {problem.message}"
    for question in result.cannot:
        yield f"not answered: {question}"


def _show_curve(result: Analysis) -> None:
    marks = {mark.capacity_tokens: mark.name for mark in result.marks}
    points = _few(result.curve, set(marks))
    most = max((point.hit_by_token for point in points), default=0.0)
    if not most:
        return
    print("\nOne LRU cache, hits by token at each capacity (exact)")
    if result.sampled is not None:
        print(
            f"  a sample of {result.sampled.rate:.0%} of the blocks is off by "
            f"{result.sampled.mean_error:.2%}, at worst {result.sampled.worst_error:.2%}"
        )
    rows = [
        (
            counted(point.capacity_tokens, "token"),
            "" if point.capacity_bytes is None else format_bytes(point.capacity_bytes),
            _percent(point.hit_by_token),
            "█" * round(_BAR * point.hit_by_token / most),
            marks.get(point.capacity_tokens, ""),
        )
        for point in points
    ]
    write_columns(rows, right=(0, 1, 2), indent="  ")
    if result.policies:
        print("\nPolicies by simulation, hits by token")
        write_columns(
            [
                (
                    one.policy,
                    counted(one.capacity_tokens, "token"),
                    _percent(one.hit_by_token),
                    "the bound" if one.policy == "belady" else "",
                )
                for one in result.policies
            ],
            right=(1, 2),
            indent="  ",
        )


def _few(curve: Sequence[CurvePoint], marked: set[int]) -> list[CurvePoint]:
    step = max(1, len(curve) // _CURVE_ROWS)
    return [
        point
        for number, point in enumerate(curve)
        if (len(curve) - 1 - number) % step == 0 or point.capacity_tokens in marked
    ]


def _misses(misses: Misses) -> Iterator[tuple[str, str, str, str]]:
    total = max(1, misses.hit + misses.never_seen + misses.evicted + misses.placement + misses.partial_block)
    for name, tokens, what in (
        ("hit", misses.hit, "in full blocks of the chosen replica"),
        ("never seen", misses.never_seen, "no earlier request had them"),
        ("evicted", misses.evicted, "seen before, on no replica any more"),
        ("placement", misses.placement, "on another replica"),
        ("partial block", misses.partial_block, "behind the last full block"),
    ):
        yield name, f"{tokens:,}", _percent(tokens / total), what


def _show_routing(result: Analysis) -> None:
    gain = result.pool_gain
    if gain is None:
        return
    print(f"\n{result.replicas} replicas, in order of arrival, without queues")
    rows = [("routing", "by token", "useful", "evicted", "elsewhere", "busiest replica")]
    for name, one in result.routing.items():
        total = max(1, result.input_tokens)
        rows.append(
            (
                name,
                _percent(one.hit_by_token),
                _percent(one.hit_useful_tokens),
                _percent(one.misses.evicted / total),
                _percent(one.misses.placement / total),
                f"{one.busiest_share * result.replicas:.2f} x its share",
            )
        )
    write_columns(rows, right=(1, 2, 3, 4, 5), indent="  ")
    size = (
        "without limit"
        if gain.pool_capacity_tokens is None
        else f"of {counted(gain.pool_capacity_tokens, 'token')}"
    )
    ratio = "" if gain.ratio is None else f", {gain.ratio:.2f} x the best local routing ({gain.best_local})"
    print(f"  one pool {size}: {_percent(gain.pool_hit_by_token)}{ratio}")


def _show_flows(result: Analysis) -> None:
    if result.flows is None or result.worst_window is None:
        return
    window = result.worst_window
    where = (
        "the whole trace, which is not longer"
        if window.seconds >= result.span_seconds
        else f"reads from {format_seconds(window.read_start_seconds)}, writes from "
        f"{format_seconds(window.write_start_seconds)}"
    )
    print(f"\nFlows of a pool that serves every hit, worst {format_seconds(window.seconds)} ({where})")
    rows = [("Gbit/s", "read", "write", "copies", "a storage node")]
    rows += [
        (
            one.name,
            _gigabits(one.read_bits_per_second),
            _gigabits(one.write_bits_per_second),
            _gigabits(one.replica_bits_per_second),
            _gigabits(one.per_node_bits_per_second),
        )
        for one in result.flows.pictures
    ]
    write_columns(rows, right=(1, 2, 3, 4), indent="  ")
    for one in result.flows.pictures:
        print(textwrap.fill(f"{one.name}: {one.what}", _WIDTH, initial_indent="  ", subsequent_indent="    "))


def _show_classes(result: Analysis) -> None:
    print(f"\nClasses by {result.class_field}")
    rows = [
        (
            "class",
            "requests",
            "tokens",
            "useful hits",
            "top tenth",
            "reuse p50",
            "p95",
            "TTL",
            "never reused",
        )
    ]
    # Rows of prompts that were asked once say nothing and push the others out; the last row is the rest.
    shown = [one for one in result.classes if one.requests > 1][:_CLASS_ROWS]
    rows += [
        (
            one.name,
            f"{one.requests:,}",
            _percent(one.token_share),
            _percent(one.hit_useful_tokens),
            "-" if one.top_tenth_share is None else _percent(one.top_tenth_share),
            _seconds(one.interval_p50_seconds),
            _seconds(one.interval_p95_seconds),
            _seconds(one.ttl_seconds),
            _percent(one.never_read_tokens / max(1, one.unique_tokens)),
        )
        for one in shown
    ]
    write_columns(rows, right=range(1, 9), indent="  ")
    if len(result.classes) > len(shown):
        left = sum(one.token_share for one in result.classes) - sum(one.token_share for one in shown)
        print(f"  and {len(result.classes) - len(shown)} more, {_percent(left)} of the tokens, with --json")
    print(
        "  top tenth: share of reuses on a tenth of the blocks; TTL keeps 99 % of the reuses; never reused:\n"
        "  of all different tokens, those that one request alone asked for"
    )
    _show_publication(shown)


def _show_publication(shown: Sequence[ClassResult]) -> None:
    rows = [("class", "permitted", "never read", "second touch writes", "and serves")]
    for one in shown:
        by_name = {policy.policy: policy for policy in one.publication}
        all_, second = by_name["all"], by_name["second-touch"]
        if all_.written_tokens:
            rows.append(
                (
                    one.name,
                    _percent(all_.written_tokens / max(1, one.unique_tokens)),
                    _percent(all_.never_read_tokens / all_.written_tokens),
                    _percent(second.written_tokens / all_.written_tokens),
                    "-" if not all_.served_tokens else _percent(second.served_tokens / all_.served_tokens),
                )
            )
    if len(rows) == 1:
        return
    print("\nPublishing on the second touch, against publishing all that boundaries permit")
    write_columns(rows, right=range(1, 5), indent="  ")
    print(
        "  permitted: of all different tokens, those in full blocks within the declared boundaries; the\n"
        "  other three are shares of what publishing these writes and serves"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(float(f"{value:.3g}"))


def _gigabits(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e9:,.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
