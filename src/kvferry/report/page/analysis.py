"""The page of a trace: what it could save, where, and what that asks of links and stores.

Owns the order of a reader's questions: the recommendation, how much comes back, how large a cache has to be,
why the rest misses, what routing gives before a pool does, how long blocks have to live, what the network
carries, and which prefixes it is all about. Everything comes from `analysis.result`; nothing is computed.
"""

from __future__ import annotations

from pathlib import Path

from ...analysis.result import Analysis
from ...units import counted
from .classes import classes_section, publication_section
from .content import Page, Section, Table, Tile, in_rows
from .curve import curve_section
from .document import write_page
from .flows import flows_section
from .numbers import compact, count, gigabits, percent, points, size, span
from .reuse import intervals_section
from .routes import label_of, misses_section, routing_section

__all__ = ["analysis_page", "write_analysis_page"]


def write_analysis_page(result: Analysis, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page of an analysis. Raises `MissingExtra` without the extra `report`, `UsageError` where the
    file cannot be written, or exists and may not be overwritten."""
    return write_page(analysis_page(result), path, overwrite=overwrite)


def analysis_page(result: Analysis) -> Page:
    """What is on the page."""
    found = (
        curve_section(result),
        misses_section(result),
        routing_section(result),
        flows_section(result),
        intervals_section(result),
        publication_section(result),
        classes_section(result),
        _denominators(result),
        _left_out(result),
    )
    return Page(
        kind="Trace analysis",
        title=Path(result.path).name or result.path,
        subtitle=_subtitle(result),
        verdict=(result.recommendation, *_verdict(result)),
        tiles=tuple(_tiles(result)),
        sections=in_rows(found),
        facts=tuple(_facts(result)),
    )


def _subtitle(result: Analysis) -> str:
    return (
        f"{counted(result.requests, 'request')} over {span(result.span_seconds)}, "
        f"{compact(result.input_tokens)} tokens in, {compact(result.output_tokens)} out"
    )


def _verdict(result: Analysis) -> list[str]:
    sentences = []
    if result.hit is not None:
        sentences.append(
            f"Of every 100 prompt tokens, {100 * result.hit.useful_tokens:.1f} stand in full blocks that an "
            "earlier request had: more than that no prefix cache can save."
        )
    gain = result.pool_gain
    if gain is not None:
        sentences.append(
            f"With {result.replicas} replicas, {label_of(gain.best_local)} alone "
            f"finds {percent(gain.best_local_hit_by_token)} of tokens locally; one shared pool finds "
            f"{percent(gain.pool_hit_by_token)} "
            f"({points(gain.pool_hit_by_token - gain.best_local_hit_by_token)})."
        )
    return sentences


def _tiles(result: Analysis) -> list[Tile]:
    tiles = []
    if result.hit is None and result.requests:
        tiles.append(Tile("Mean prompt", count(result.input_tokens / result.requests), "tokens"))
        tiles.append(Tile("Mean answer", count(result.output_tokens / result.requests), "tokens"))
        if result.span_seconds:
            tiles.append(
                Tile("Arrivals", f"{result.requests / result.span_seconds:.3g}", "requests a second")
            )
    if result.hit is not None:
        tiles.append(
            Tile("Can be reused", percent(result.hit.useful_tokens), "of prompt tokens, full blocks")
        )
    for mark in result.marks[:2]:
        held = size(mark.capacity_bytes) if mark.capacity_bytes else f"{compact(mark.capacity_tokens)} tokens"
        tiles.append(Tile(f"Hit with {mark.name}", percent(mark.hit_by_token), f"of tokens, in {held}"))
    if result.pool_gain is not None:
        gain = result.pool_gain
        tiles.append(
            Tile(
                "Pool over best routing",
                points(gain.pool_hit_by_token - gain.best_local_hit_by_token),
                "" if gain.ratio is None else f"{gain.ratio:.2f} times the local hits",
            )
        )
    if result.worst_window is not None:
        window = result.worst_window
        tiles.append(
            Tile(
                f"Worst {span(window.seconds)}",
                gigabits(window.read_bits_per_second),
                f"read, and {gigabits(window.write_bits_per_second)} written",
            )
        )
    if len(tiles) < 5 and result.unique_blocks:
        held = (
            size(result.unique_bytes)
            if result.unique_bytes is not None
            else f"{compact(result.unique_tokens)} tokens"
        )
        tiles.append(Tile("Everything seen", held, f"{compact(result.unique_blocks)} blocks"))
    return tiles


def _denominators(result: Analysis) -> Section | None:
    if result.hit is None:
        return None
    hit = result.hit
    rows = (
        ("by token", percent(hit.by_token), "matched tokens over prompt tokens"),
        ("by block", percent(hit.by_block), "matched blocks over all blocks, partial last ones included"),
        ("by full block", percent(hit.by_full_block), "matched full blocks over full blocks"),
        ("mean of requests", percent(hit.mean_of_requests), "mean of each request's own share"),
        ("useful tokens", percent(hit.useful_tokens), "tokens of matched full blocks over prompt tokens"),
    )
    return Section(
        name="denominators",
        title="One trace, five hit ratios",
        lead="A ratio means nothing without its denominator. All five are of a cache that forgets nothing; "
        "planning counts useful tokens.",
        table=Table(("denominator", "hit", "what is divided by what"), rows, frozenset({1})),
    )


def _left_out(result: Analysis) -> Section | None:
    rows = [("not answered", text) for text in result.cannot]
    rows += [(f"line {count(problem.line)}", problem.message) for problem in result.problems.first]
    if not rows:
        return None
    lead = ""
    if result.problems.rows:
        verb = "is" if result.problems.rows == 1 else "are"
        lead = f"{counted(result.problems.rows, 'row')} could not be read and {verb} not in the figures."
    return Section(
        name="left-out",
        title="What is not on this page",
        lead=lead,
        table=Table(("what", "why"), tuple(rows)),
    )


def _facts(result: Analysis) -> list[tuple[str, str]]:
    facts = [
        ("file", result.path),
        ("format", result.format),
        ("block", f"{result.block_tokens} tokens"),
        ("replicas", str(result.replicas)),
    ]
    if result.bytes_per_token is not None:
        facts.append(("KV per token", size(result.bytes_per_token)))
    if result.model is not None:
        facts.append(("model", result.model))
    if result.capacity is not None:
        held = result.capacity
        facts.append(
            (
                "capacity of a replica",
                f"{size(held.effective_bytes)} of {size(held.physical_bytes)}: "
                f"{size(held.active_decode_bytes)} active decode, {size(held.reserved_bytes)} reserved, "
                f"{size(held.fragmentation_bytes)} fragmentation",
            )
        )
    return facts
