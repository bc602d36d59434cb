"""Engines' log lines about their KV cache, as figures with the rounding that they were printed with.

Owns the patterns. A line says "3.81 GiB" and means something between 3.805 and 3.815; whoever compares it
must know that. SGLang writes GB and means GiB, and so does TensorRT-LLM. What the figures mean for a model
is not known here (`agreement`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

import msgspec

from ..errors import FormatError
from ..units import GIB, MIB

__all__ = ["Buffer", "Figure", "Report", "figure", "read_log"]

LogEngine = Literal["vllm", "sglang", "llama.cpp", "tensorrt-llm"]


class Figure(msgspec.Struct, frozen=True):
    """One printed number: the truth lies in [low, high)."""

    value: float
    low: float
    high: float
    text: str

    def holds(self, value: float) -> bool:
        """Whether printing `value` would have given this number."""
        return self.low <= value < self.high or value == self.value


class Buffer(msgspec.Struct, frozen=True, kw_only=True):
    """One buffer that a line speaks of, in bytes."""

    kind: Literal["cells", "states"]
    total: Figure | None = None
    keys: Figure | None = None
    values: Figure | None = None
    """Of states: the conv part in `keys`, the matrix part in `values`."""
    cells: int | None = None
    layers: int | None = None
    sequences: int | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that some lines say."""

    engine: LogEngine
    memory: Figure | None = None
    tokens: int | None = None
    sliding_tokens: int | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    concurrency: Figure | None = None
    context: int | None = None
    state_padding: Figure | None = None
    """Percent."""
    padding_layers: int | None = None
    needed: Figure | None = None
    longest_context: int | None = None
    slots: int | None = None
    buffers: tuple[Buffer, ...] = ()


_DECIMAL_COMMA = re.compile(r"\d+,\d{1,2}")
_SCALES = {"B": 1, "MiB": MIB, "GiB": GIB, "GB": GIB}
_NUMBER = r"(?P<{0}>\d+(?:,\d+)*(?:\.\d+)?)"


def figure(text: str, scale: int = 1) -> Figure:
    """A printed number with its rounding: "3.81" in GiB is [3.805, 3.815) GiB; a whole number is exact."""
    # Some locales print a decimal comma, which no group of thousands looks like.
    digits = text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text.replace(",", "")
    value = float(digits)
    decimals = len(digits.partition(".")[2])
    if not decimals:
        return Figure(value * scale, value * scale, value * scale, text)
    half = 0.5 * 10.0**-decimals
    return Figure(value * scale, (value - half) * scale, (value + half) * scale, text)


def read_log(text: str) -> Report:
    """What one or several lines say. Raises `FormatError` where none of them is about a KV cache."""
    for read in (_vllm, _sglang, _tensorrt, _llama_cpp):
        report = read(text)
        if report is not None:
            return report
    raise FormatError(
        f"--log: no line about a KV cache in {text[:60]!r}; give one such as "
        "'GPU KV cache size: 307,184 tokens' (vllm), 'KV Cache is allocated. #tokens: ...' (sglang) or "
        "'llama_kv_cache: size = ...' (llama.cpp)"
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern in which @name@ stands for a printed number."""
    return re.compile(re.sub(r"@(\w+)@", lambda found: _NUMBER.format(found[1]), pattern), re.IGNORECASE)


def _find(pattern: str, text: str) -> re.Match[str] | None:
    return _compiled(pattern).search(text)


def _int(match: re.Match[str] | None, name: str = "n") -> int | None:
    return None if match is None else int(float(match[name].replace(",", "")))


def _size(match: re.Match[str] | None, unit: str = "GiB", name: str = "n") -> Figure | None:
    return None if match is None else figure(match[name], _SCALES[unit])


def _vllm(text: str) -> Report | None:
    memory = _find(
        r"(?:Available(?: KV cache memory)?:?|reserved for KV Cache is|kv_cache_size=)\s*@n@\s*GiB", text
    )
    exact = _find(r"Available memory.*?:\s*(?P<n>\d{7,})", text)
    tokens = _find(r"(?:GPU KV cache size:\s*|(?<!to )(?<!for )\b)@n@ tokens\b(?! per)", text)
    blocks = _find(r"#? ?GPU blocks:\s*@n@", text)
    concurrency = _find(r"Maximum concurrency for @n@ tokens per request:\s*@x@\s*x", text)
    short = None if concurrency else _find(r"@x@x \u0040\s?@n@", text)
    block = _find(r"Setting attention block size to @n@", text)
    padding = _find(r"Padding mamba page size by @n@\s*%", text)
    layers = _find(r"Add @n@ padding layers", text)
    needed = _find(r"@n@ GiB KV cache is needed", text)
    available = _find(r"available(?: KV cache memory)? \(@n@ GiB\)", text)
    longest = _find(r"estimated maximum model length is @n@", text)
    limit = _find(r"max seq len \(@n@\)", text)
    if not any((memory, exact, blocks, concurrency, short, block, padding, layers, needed)) and (
        tokens is None or "KV cache size" not in text
    ):
        return None
    many = concurrency or short
    return Report(
        engine="vllm",
        memory=_size(memory or available) if exact is None else _size(exact, "B"),
        tokens=_int(tokens),
        blocks=_int(blocks),
        block_tokens=_int(block),
        concurrency=None if many is None else figure(many["x"]),
        context=_int(many) if many else _int(limit),
        state_padding=None if padding is None else figure(padding["n"]),
        padding_layers=_int(layers),
        needed=_size(needed),
        longest_context=_int(longest),
    )


def _sglang(text: str) -> Report | None:
    plain = _find(r"KV ?Cache.*?#tokens:\s*@n@", text)
    two = _find(r"SWAKVPool mem usage:\s*@n@\s*GB", text)
    states = _find(
        r"max_mamba_cache_size:\s*@n@.*?conv_state size:\s*@c@\s*GB.*?ssm_state size:\s*@s@\s*GB", text
    )
    if not any((plain, two, states)):
        return None
    keys, values = _find(r"\bK(?: size:?)?\s+@n@\s*GB", text), _find(r"\bV(?: size:?)?\s+@n@\s*GB", text)
    latent = _find(r"\bKV size:\s*@n@\s*GB", text)
    buffers = []
    if states is not None:
        buffers.append(
            Buffer(
                kind="states",
                keys=figure(states["c"], GIB),
                values=figure(states["s"], GIB),
                cells=(_int(states) or 0) + 1,
            )
        )
    sliding = _find(r"swa size:\s*@n@", text)
    full = _find(r"full size:\s*@n@", text)
    if plain is not None:
        buffers.append(
            Buffer(
                kind="cells", total=_size(latent), keys=_size(keys), values=_size(values), cells=_int(plain)
            )
        )
    return Report(
        engine="sglang",
        memory=_size(two),
        tokens=_int(plain) if plain else _int(full),
        sliding_tokens=_int(sliding),
        slots=_int(states),
        buffers=tuple(buffers),
    )


def _tensorrt(text: str) -> Report | None:
    found = _find(r"Allocated @n@ GiB for max tokens in paged KV cache \(@t@\)", text)
    if found is None:
        return None
    return Report(engine="tensorrt-llm", memory=_size(found), tokens=_int(found, "t"))


def _llama_cpp(text: str) -> Report | None:
    found = _compiled(
        r"(?P<what>llama_\w+)?[^\d]{0,40}?@n@ MiB *"
        r"\( *@cells@ cells, *@layers@ layers(?:, *@seqs@(?:/\d+)? seqs)?\)"
        r"(?:, *[KR] \(\w+\): *@k@ MiB)?(?:, *[VS] \(\w+\): *@v@ MiB)?"
    ).finditer(text)
    buffers = [_buffer(match, "states" if _is_recurrent(match) else "cells") for match in found]
    if not buffers and (old := _find(r"KV self size *= *@n@ MiB", text)) is not None:
        keys = _find(r"(?:\bK|c\^KV) \(\w+\): *@n@ MiB", text)
        values = _find(r"(?:\bV|kv\^T) \(\w+\): *@n@ MiB", text)
        buffers.append(
            Buffer(
                kind="cells",
                total=_size(old, "MiB"),
                keys=_size(keys, "MiB"),
                values=_size(values, "MiB"),
                cells=_int(_find(r"n_ctx *=? *@n@", text)),
            )
        )
    if not buffers:
        return None
    return Report(engine="llama.cpp", buffers=tuple(buffers))


def _is_recurrent(match: re.Match[str]) -> bool:
    return "recurrent" in (match["what"] or "") or re.search(r"\bR \(f32\)", match[0]) is not None


def _buffer(match: re.Match[str], kind: Literal["cells", "states"]) -> Buffer:
    def whole(name: str) -> int | None:
        return None if match[name] is None else int(match[name].replace(",", ""))

    def size(name: str) -> Figure | None:
        return None if match[name] is None else figure(match[name], MIB)

    return Buffer(
        kind=kind,
        total=size("n"),
        keys=size("k"),
        values=size("v"),
        cells=whole("cells"),
        layers=whole("layers"),
        sequences=whole("seqs"),
    )
