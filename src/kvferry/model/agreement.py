"""Whether what an engine logged fits a model and a setup, and what differs if not.

Owns the comparison, always within the rounding of the log. Where it does not fit, the setups nearest to the
one given are tried (another KV dtype, another number of ranks, prefix caching, an older engine), and those
that would fit are named: a likely cause, not a proof.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..errors import InputError, UsageError
from .layers import Model
from .layouts.choose import layout_of
from .layouts.contract import Layout
from .layouts.flat import FlatLayout
from .layouts.llama_cpp import LlamaCppLayout
from .layouts.setup import Setup
from .layouts.sglang import SglangLayout
from .layouts.vllm import VllmLayout
from .logs import Buffer, Figure, Report
from .nearby import nearby

__all__ = ["Agreement", "Finding", "compare"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One logged figure beside ours."""

    what: str
    logged: str
    computed: str
    fits: bool


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one log."""

    fits: bool
    findings: tuple[Finding, ...]
    meaning: str | None = None
    """Which meaning of vLLM's token line fits, where the two differ."""
    instead: tuple[str, ...] = ()
    """Setups that would fit."""


def compare(model: Model, setup: Setup, report: Report) -> Agreement:
    """Compare a log with a model. Raises `UsageError` where it is another engine's log."""
    if report.engine != setup.engine:
        raise UsageError(f"--log: this is a line of {report.engine}; write --engine {report.engine}")
    findings, meaning = _compare(model, setup, report)
    if not findings:
        raise UsageError(
            "--log: that says too little to compare; give the lines of the memory and of the tokens"
        )
    if all(finding.fits for finding in findings):
        return Agreement(fits=True, findings=tuple(findings), meaning=meaning)
    return Agreement(fits=False, findings=tuple(findings), instead=tuple(_instead(model, setup, report)))


def _compare(model: Model, setup: Setup, report: Report) -> tuple[list[Finding], str | None]:
    context = report.context or setup.context
    layout = layout_of(model, msgspec.structs.replace(setup, context=context) if context else setup)
    if isinstance(layout, VllmLayout):
        return _vllm(layout, setup, report)
    if isinstance(layout, SglangLayout):
        return _sglang(layout, report), None
    if isinstance(layout, LlamaCppLayout):
        return [finding for buffer in report.buffers for finding in _llama(layout, setup, buffer)], None
    return _flat(layout, report), None


# -- vllm --------------------------------------------------------------------------------------------------


def _vllm(layout: VllmLayout, setup: Setup, report: Report) -> tuple[list[Finding], str | None]:
    found = []
    if report.block_tokens is not None:
        found.append(_exact("attention block size", report.block_tokens, layout.block_tokens))
    page = next((group.page for group in layout.groups if group.page.kind == "state"), None)
    if report.state_padding is not None:
        if page is None:
            found.append(_finding("state padding", f"{report.state_padding.text} %", "no states", False))
        else:
            percent = 100 * (page.page_bytes - page.state_bytes) / page.state_bytes
            found.append(_within("state padding in %", report.state_padding, percent, 1, "%"))
    if report.padding_layers is not None:
        padding = sum(group.padding for group in layout.groups)
        found.append(_exact("padding layers", report.padding_layers, padding))
    if report.needed is not None and report.context is not None:
        found.append(_within("needed", report.needed, layout.reserved_bytes(report.context), 2**30, "GiB"))
    if report.longest_context is not None and report.memory is not None:
        low, high = (layout.capacity(int(size), None).longest_context or 0 for size in _ends(report.memory))
        found.append(_range("longest context", report.longest_context, low, high))
    counted, meaning = _blocks(layout, setup, report)
    return [*found, *counted], meaning


def _blocks(layout: VllmLayout, setup: Setup, report: Report) -> tuple[list[Finding], str | None]:
    """Is there a number of blocks that gives every line?"""
    context = report.context or setup.context
    memory = (
        None if report.memory is None else tuple(layout.blocks(int(size)) for size in _ends(report.memory))
    )
    if memory is None and setup.memory_bytes is not None:
        memory = (layout.blocks(setup.memory_bytes),) * 2
    if report.tokens is None and report.blocks is None:
        return [], None
    if memory is None and report.concurrency is None:
        return [], None
    low, high = memory or _from_tokens(layout, report)
    fits: dict[str, bool] = {}
    tried = {}
    for blocks in range(low, high + 1):
        size = blocks * layout.bytes_per_block
        counts = layout.capacity(size, context)
        for meaning, tokens in (("before 0.21", counts.tokens_before), ("since 0.21", counts.tokens_after)):
            same = report.tokens is None or tokens == report.tokens
            many = report.concurrency is None or (
                counts.max_concurrency is not None and report.concurrency.holds(counts.max_concurrency)
            )
            alike = report.blocks is None or blocks == report.blocks
            if same and many and alike:
                fits[meaning] = True
        tried[blocks] = counts
    ends = [tried[blocks] for blocks in (low, high)] if tried else []
    computed = " to ".join(dict.fromkeys(f"{end.tokens_before:,}" for end in ends))
    after = [f"{end.tokens_after:,}" for end in ends if end.tokens_after is not None]
    if after and after != [f"{end.tokens_before:,}" for end in ends]:
        computed += f" (or {' to '.join(dict.fromkeys(after))} since 0.21)"
    logged = f"{report.tokens:,}" if report.tokens is not None else f"{report.blocks:,} blocks"
    if report.blocks is not None and report.tokens is None:
        computed = " to ".join(dict.fromkeys((f"{low:,}", f"{high:,}"))) + " blocks"
    if report.concurrency is not None:
        logged += f", {report.concurrency.text}x"
        times = dict.fromkeys(
            f"{end.max_concurrency:.2f}x" for end in ends if end.max_concurrency is not None
        )
        computed += f", {' to '.join(times)}"
    differ = any(end.tokens_after not in (None, end.tokens_before) for end in ends)
    said = next(iter(fits)) if len(fits) == 1 and report.tokens is not None and differ else None
    return [_finding("GPU KV cache size", logged, computed, bool(fits))], said


def _from_tokens(layout: VllmLayout, report: Report) -> tuple[int, int]:
    """The numbers of blocks that a logged number of tokens allows in either meaning."""
    tokens = report.tokens or 0
    tables = len(layout.pools) or 1
    before = tokens // layout.block_tokens * tables
    low, high = before, before + tables - 1
    if report.concurrency is not None and report.context is not None:
        needed = layout.blocks_per_request(report.context)
        ends = (int(report.concurrency.low * needed), int(report.concurrency.high * needed) + 1)
        low, high = max(0, min(low, ends[0])), max(high, ends[1])
        if high - low > 100_000:
            low, high = ends
    return low, high


# -- sglang ------------------------------------------------------------------------------------------------


def _sglang(layout: SglangLayout, report: Report) -> list[Finding]:
    found = []
    for buffer in report.buffers:
        cells = buffer.cells or 0
        if buffer.kind == "states":
            conv = sum(one.conv_bytes for one in layout.kept) * cells
            matrix = sum(one.state_bytes for one in layout.kept) * cells - conv
            found += _parts(buffer, conv, matrix, 2**30, "GiB", ("conv states", "ssm states"))
            continue
        slides = any(one.window is not None for one in layout.kept)
        pools = [[one for one in layout.kept if one.window is None]]
        if slides:
            pools.append([one for one in layout.kept if one.window is not None])
        best: list[Finding] = []
        for pool in pools:
            keys, values = (
                sum(getattr(one, f"{part}_bytes") for one in pool) * cells for part in ("key", "value")
            )
            these = _parts(buffer, keys, values, 2**30, "GiB", ("K", "V"))
            if buffer.total is not None:
                these.append(_within("KV", buffer.total, keys + values, 2**30, "GiB"))
            if not best or all(one.fits for one in these):
                best = these
        found += best
    if report.sliding_tokens is not None and report.tokens is not None and report.memory is not None:
        size = layout.pool_bytes(report.tokens, report.sliding_tokens)
        found.append(_within("SWA and full pool", report.memory, size, 2**30, "GiB"))
    return found


# -- llama.cpp ---------------------------------------------------------------------------------------------


def _llama(layout: LlamaCppLayout, setup: Setup, buffer: Buffer) -> list[Finding]:
    if buffer.kind == "states":
        copies = buffer.cells or 1
        conv = sum(one.conv_bytes for one in layout.kept) * copies
        matrix = sum(one.state_bytes for one in layout.kept) * copies - conv
        found = _parts(buffer, conv, matrix, 2**20, "MiB", ("R", "S"))
        if buffer.total is not None:
            found.append(_within("recurrent states", buffer.total, conv + matrix, 2**20, "MiB"))
        return found
    full, sliding = layout.buffers()
    cells = buffer.cells if buffer.cells is not None else (setup.context or 0)
    if not cells or buffer.total is None:
        return []
    best: list[Finding] = []
    for name, pool in (("KV cache", full), ("SWA KV cache", sliding), ("KV cache", [*full, *sliding])):
        if not pool:
            continue
        keys, values = (
            sum(getattr(one, f"{part}_bytes") for one in pool) * cells for part in ("key", "value")
        )
        these = [_within(name, buffer.total, (keys + values) * setup.streams, 2**20, "MiB")]
        these += _parts(buffer, keys * setup.streams, values * setup.streams, 2**20, "MiB", ("K", "V"))
        if buffer.layers is not None:
            these.append(_exact("layers", buffer.layers, len(pool)))
        if not best or all(one.fits for one in these) > all(one.fits for one in best):
            best = these
    return best


# -- others ------------------------------------------------------------------------------------------------


def _flat(layout: Layout, report: Report) -> list[Finding]:
    if report.memory is None or report.tokens is None or not isinstance(layout, FlatLayout):
        return []
    size = report.tokens * layout.bytes_per_block // layout.block_tokens
    return [_within("paged KV cache", report.memory, size, 2**30, "GiB")]


# -- what would fit ----------------------------------------------------------------------------------------


def _instead(model: Model, setup: Setup, report: Report) -> Iterator[str]:
    for words, changes in nearby(setup):
        changed = msgspec.structs.replace(setup, **changes)
        try:
            findings, _ = _compare(model, changed, report)
        except InputError:
            continue
        if findings and all(finding.fits for finding in findings):
            yield words


# -- findings ----------------------------------------------------------------------------------------------


def _ends(figure: Figure) -> tuple[float, float]:
    """The least and the most that a rounded figure may have been; the upper end itself is out."""
    return figure.low, figure.high - 1 if figure.high > figure.low else figure.high


def _finding(what: str, logged: str, computed: str, fits: bool) -> Finding:
    return Finding(what=what, logged=logged, computed=computed, fits=fits)


def _exact(what: str, logged: int, computed: int) -> Finding:
    return _finding(what, f"{logged:,}", f"{computed:,}", logged == computed)


def _range(what: str, logged: int, low: int, high: int) -> Finding:
    computed = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return _finding(what, f"{logged:,}", computed, low <= logged <= high)


def _within(what: str, logged: Figure, computed: float, scale: int, unit: str) -> Finding:
    # Printed halves round either way; a thousandth of the last digit is not a difference.
    slack = (logged.high - logged.low) * 1e-3
    fits = logged.low - slack <= computed <= logged.high + slack
    decimals = max(2, len(logged.text.partition(".")[2]))
    return _finding(what, f"{logged.text} {unit}", f"{computed / scale:.{decimals}f} {unit}", fits)


def _parts(
    buffer: Buffer, keys: float, values: float, scale: int, unit: str, names: tuple[str, str]
) -> list[Finding]:
    found = []
    if buffer.keys is not None:
        found.append(_within(names[0], buffer.keys, keys, scale, unit))
    if buffer.values is not None:
        found.append(_within(names[1], buffer.values, values, scale, unit))
    return found
