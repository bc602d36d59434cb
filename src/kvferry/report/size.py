"""The size of a KV cache as a page of text: figures, layers, the transfer matrix.

Owns the words and the order. What is one number for one rank is named so; every figure that is assumed or
claimed says by whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..model.agreement import Agreement
from ..model.size import LayerSize, Size
from ..model.transfer import Crossing, Transfer
from ..units import counted, format_bytes, format_rate, format_seconds

__all__ = [
    "Table",
    "agreement_lines",
    "layer_rows",
    "size_lines",
    "transfer_lines",
    "transfer_rows",
    "transfer_sources",
]

Table = list[tuple[str, ...]]
_MOST_RUNS = 5


def size_lines(size: Size) -> Iterator[str]:
    """The figures, line by line."""
    layout = "".join(f", {name} {n}" for name in ("tp", "pp", "dcp") if (n := getattr(size, name)) > 1)
    dtypes = (
        size.key_dtype if size.key_dtype == size.value_dtype else f"K {size.key_dtype}, V {size.value_dtype}"
    )
    named = f" ({size.architecture})" if size.architecture else ""
    yield f"{size.source}{named} on {size.engine}{layout}, KV in {dtypes}"
    if size.assumed:
        yield "ASSUMED: full attention in every layer, because its architecture is not known"
    several = size.tp * size.pp > 1
    yield _figure(
        "growing, a token", size.growing_bytes_per_token, size.growing_bytes_per_token_total, several
    )
    yield _figure(
        "fixed, a request", size.fixed_bytes_per_request, size.fixed_bytes_per_request_total, several
    )
    yield _figure(
        f"a block of {counted(size.block_tokens, 'token')}",
        size.bytes_per_block,
        size.bytes_per_block_total,
        several,
    )
    if size.context is not None and size.request_bytes is not None and size.request_bytes_total is not None:
        yield _figure(
            f"a request of {counted(size.context, 'token')}",
            size.request_bytes,
            size.request_bytes_total,
            several,
        )
        if size.reserved_bytes is not None:
            yield _figure(f"{size.engine} sets aside for it", size.reserved_bytes, size.reserved_bytes, False)
    yield from _naive(size, several)
    yield from _capacity(size)
    for note in size.notes:
        yield f"note: {note}"


def _figure(what: str, rank: float, total: float, several: bool) -> str:
    amount = f"{rank:,.6g}" if rank != int(rank) else f"{int(rank):,}"
    text = f"  {what:<32}{amount:>16} B  {format_bytes(rank):>10}"
    return f"{text}   a rank; {format_bytes(total)} on all" if several else text


def _naive(size: Size, several: bool) -> Iterator[str]:
    yield _figure(
        "naive 2 L Hkv D q, a token", size.naive_bytes_per_token, size.naive_bytes_per_token_total, several
    )
    if size.naive_factor is None:
        yield "    nothing grows here, so that it is wrong by any factor in a long context:"
    elif abs(size.naive_factor - 1) > 1e-9:
        factor = size.naive_factor
        yield f"    {factor:.3g} times what grows:" if factor > 1 else f"    only {factor:.3g} of what grows:"
    for reason in size.naive_reasons:
        yield f"    - {reason}"


def _capacity(size: Size) -> Iterator[str]:
    if size.memory_bytes is None:
        return
    fits = _fits(size)
    parts = []
    if size.blocks is not None:
        parts.append(counted(size.blocks, "block"))
    if size.tokens_before is not None and size.tokens_after not in (None, size.tokens_before):
        parts.append(
            f"{size.tokens_before:,} tokens as vllm counted up to 0.20, {size.tokens_after:,} since 0.21"
        )
    elif size.tokens is not None:
        parts.append(counted(size.tokens, "token"))
    if size.max_concurrency is not None and fits:
        parts.append(f"{size.max_concurrency:.2f} requests of {counted(size.context or 0, 'token')}")
    if size.longest_context is not None:
        parts.append(f"one of {size.longest_context:,} at the longest")
    if not fits:
        yield (
            f"in {format_bytes(size.memory_bytes)} a rank: does not fit: "
            f"{format_bytes(size.reserved_bytes or 0)} needed for a request of "
            f"{counted(size.context or 0, 'token')}"
        )
        yield f"  there is room for {'; '.join(parts) if size.blocks or size.tokens else 'nothing'}"
        return
    room = "; ".join(parts) or "nothing that is counted in tokens"
    yield f"in {format_bytes(size.memory_bytes)} a rank: {room}"
    if size.log_lines:
        yield f"{size.engine} will log:"
        for line in size.log_lines:
            yield f"  {line}"


def _fits(size: Size) -> bool:
    """Whether one request of the longest context has room: an engine does not start where it has none."""
    if size.max_concurrency is not None:
        return size.max_concurrency >= 1.0
    if size.longest_context is not None and size.context is not None:
        return size.longest_context >= size.context
    return True


def layer_rows(layers: Sequence[LayerSize]) -> Table:
    """Layers that are alike in one row, with how many and which they are."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for one in layers:
        alike.setdefault(_alike(one), []).append(one.index)
    rows: Table = [("layers", "kind", "heads", "width", "window", "growing B", "fixed B", "which")]
    for cells, places in alike.items():
        rows.append((str(len(places)), *cells, _places(places)))
    return rows


def _places(places: Sequence[int]) -> str:
    """ "0-2, 4-6, 8-10 ..." """
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1][1:] = [place]
        else:
            runs.append([place])
    words = ["-".join(str(end) for end in run) for run in runs]
    return ", ".join(words[:_MOST_RUNS]) + (" ..." if len(words) > _MOST_RUNS else "")


def _alike(one: LayerSize) -> tuple[str, ...]:
    width = "-"
    if one.key_width is not None:
        other = one.value_width
        width = f"{one.key_width}/{other}" if other not in (None, one.key_width) else str(one.key_width)
    kind = one.kind if one.shares is None else f"shared with {one.shares}"
    return (
        kind,
        "-" if one.kv_heads is None else str(one.kv_heads),
        width,
        "-" if one.window is None else f"{one.window:,}",
        f"{one.growing_bytes_per_token:,}",
        f"{one.fixed_bytes_per_request:,}",
    )


def transfer_lines(transfer: Transfer) -> Iterator[str]:
    """What computing the context takes."""
    prefill = transfer.prefill
    yield f"carrying {counted(transfer.context, 'token')}, against computing them:"
    if prefill is None:
        yield "  say --params (weights that compute a token, such as 8.2e9) to compare with the prefill"
        return
    linear = f"{_flop(prefill.linear_flop)} by the linear rule 2 N n (N {prefill.parameters:.3g})"
    if prefill.attention_share is None:
        yield f"  prefill: {linear}; attention cannot be counted: num_attention_heads is missing"
    else:
        yield f"  prefill: {linear}; attention adds {100 * prefill.attention_share:,.0f} %"
    if prefill.linear_seconds is None or prefill.flop_per_second is None:
        yield "  beside each time: carrying wins where the receiver computes less than this"
        yield "  say --tflops (what the receiver really computes) for seconds and gains"
        return
    attended = "" if prefill.seconds is None else f"; {prefill.seconds:.3f} s with attention counted"
    rate = f"{prefill.flop_per_second / 1e12:g} TFLOP/s"
    yield f"  at {rate}: {prefill.linear_seconds:.3f} s by the linear rule{attended}"
    rule = "; in brackets by the linear rule" if prefill.seconds is not None else ", by the linear rule"
    yield f"  beside each time: how many times faster than computing{rule}"


def transfer_rows(transfer: Transfer) -> Table:
    """Channels down, codecs across: seconds until there, and how many times earlier (by the linear rule)."""
    codecs = list(dict.fromkeys(one.codec for one in transfer.crossings))
    by_channel: dict[str, list[Crossing]] = {}
    for one in transfer.crossings:
        by_channel.setdefault(one.channel, []).append(one)
    sizes = {one.codec: format_bytes(one.bytes) for one in transfer.crossings}
    rows: Table = [("channel", "rate", *(f"{codec}, {sizes[codec]}" for codec in codecs))]
    for channel, crossings in by_channel.items():
        cells = tuple(_cell(one) for one in crossings)
        rows.append((channel, _decimal_rate(crossings[0].bytes_per_second), *cells))
    return rows


def transfer_sources(transfer: Transfer) -> Iterator[str]:
    """Where the rates come from, one line a source; what most channels have is said last and once."""
    by_source: dict[str, list[str]] = {}
    for one in transfer.crossings:
        named = by_source.setdefault(one.source, [])
        if one.channel not in named:
            named.append(one.channel)
    most = max(by_source, key=lambda source: len(by_source[source]), default="")
    for source, channels in by_source.items():
        if source != most:
            yield f"rate of {', '.join(channels)}: {source}"
    if most:
        yield f"{'the other rates' if len(by_source) > 1 else 'the rates'}: {most}"


def _cell(one: Crossing) -> str:
    ready = format_seconds(one.ready_seconds)
    if one.linear_speedup is not None:
        if one.speedup is None:
            return f"{ready}  {_times(one.linear_speedup)}"
        return f"{ready}  {_times(one.speedup)} ({_times(one.linear_speedup)})"
    if one.linear_break_even_flop_per_second is not None:
        below = one.break_even_flop_per_second or one.linear_break_even_flop_per_second
        return f"{ready}  {_flop(below)}/s"
    return ready


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x"


def _flop(amount: float) -> str:
    """Operations in three digits: "65.4 PFLOP"."""
    for scale, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T")):
        if amount >= scale * 0.9995:
            return f"{_three_digits(amount / scale)} {prefix}FLOP"
    return f"{_three_digits(amount / 1e9)} GFLOP"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def _decimal_rate(rate: float) -> str:
    return f"{rate / 1e9:.4g} GB/s" if rate >= 1e8 else format_rate(rate)


def agreement_lines(agreement: Agreement) -> Iterator[str]:
    """The verdict on a log."""
    yield "the log fits" if agreement.fits else "the log does NOT fit"
    for one in agreement.findings:
        yield f"  {'=' if one.fits else 'x'} {one.what}: logged {one.logged}, computed {one.computed}"
    if agreement.meaning is not None:
        yield f"  its token line has the meaning of vllm {agreement.meaning}"
    for setup in agreement.instead:
        yield f"  it would fit with {setup}"
    if not agreement.fits and not agreement.instead:
        yield "  no setup near this one fits: is it this model's config?"
