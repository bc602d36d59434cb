"""The loops that a billion accesses go through, compiled by numba (extra `fast`).

Owns nothing but these loops: their arrays belong to `reuse` and `replicas`, which grow and compact them
between chunks, and which hold the same work in plain Python, with equal results. Compiled code is kept on
disk beside the source or in the user's cache folder, so that only the first run compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

__all__ = ["route", "stack"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]


def _compiled(function: _Function) -> _Function:
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # No folder to keep compiled code in: compile in every process.
        return cast(_Function, numba.njit(nogil=True)(function))


@_compiled
def _ones(word: np.uint64) -> int:
    """Set bits of a word."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@_compiled
def _add(tree: _Int32, word: int, change: int) -> None:
    """Fenwick tree over words: count `change` more ones in `word`."""
    at = word + 1
    while at < len(tree):
        tree[at] += change
        at += at & -at


@_compiled
def _before(tree: _Int32, bits: _Words, position: int) -> int:
    """Live positions below `position`."""
    word = position >> 6
    below = (np.uint64(1) << np.uint64(position & 63)) - np.uint64(1)
    count = _ones(bits[word] & below)
    while word > 0:
        count += tree[word]
        word -= word & -word
    return count


@_compiled
def stack(
    offsets: _Int64,
    blocks: _Int64,
    arrival: _Floats,
    last: _Int32,
    seen_at: _Floats,
    uses: _Int32,
    bits: _Words,
    tree: _Int32,
    owner: _Int32,
    now: int,
    live: int,
    depth: _Int32,
    age: _Floats,
    before: _Int32,
    matched: _Int64,
) -> tuple[int, int]:
    """Depth in the LRU stack of every access of a chunk; see `reuse.Stack`. Gives `now` and `live` after it.

    Blocks of a chain lie beside each other in the stack, so the depth of the next one is one more, and only
    where a run breaks is it counted: ones of a bitmap behind a position, by a Fenwick tree over its words.
    """
    for request in range(len(offsets) - 1):
        start, stop = offsets[request], offsets[request + 1]
        time = arrival[request]
        deepest = 0
        here = 0
        expected = -1
        found = 0
        for index in range(start, stop):
            position = last[blocks[index]]
            if position < 0:
                break
            here = here + 1 if position == expected else live - _before(tree, bits, position)
            expected = position - 1
            deepest = max(deepest, here)
            depth[index] = deepest
            found += 1
        matched[request] = found
        first = now
        word, mask, count = -1, np.uint64(0), 0
        for index in range(stop - 1, start - 1, -1):
            block = blocks[index]
            position = last[block]
            before[index] = uses[block]
            if position >= first:
                continue
            age[index] = time - seen_at[block]
            seen_at[block] = time
            uses[block] += 1
            if position >= 0:
                if position >> 6 != word:
                    if count:
                        bits[word] &= ~mask
                        _add(tree, word, -count)
                    word, mask, count = position >> 6, np.uint64(0), 0
                mask |= np.uint64(1) << np.uint64(position & 63)
                count += 1
                live -= 1
            last[block] = now
            owner[now] = block
            now += 1
        if count:
            bits[word] &= ~mask
            _add(tree, word, -count)
        live += now - first
        while first < now:
            word = first >> 6
            until = min(now, (word + 1) << 6)
            for position in range(first, until):
                bits[word] |= np.uint64(1) << np.uint64(position & 63)
            _add(tree, word, until - first)
            first = until
    return now, live


@_compiled
def route(
    kind: int,
    picks: _Int64,
    offsets: _Int64,
    blocks: _Int64,
    input_tokens: _Int64,
    block_tokens: int,
    capacity: int,
    masks: _Words,
    place: _Int32,
    owner: _Int32,
    head: _Int64,
    tail: _Int64,
    held: _Int64,
    load: _Floats,
    load_weight: float,
    replica: _Int64,
    matched: _Int64,
    elsewhere: _Int64,
) -> None:
    """Send a chunk's requests to replicas that each hold an LRU cache; see `replicas.Replicas`."""
    replicas = len(head)
    match = np.zeros(replicas, dtype=np.int64)
    one = np.uint64(1)
    for request in range(len(offsets) - 1):
        start, stop = offsets[request], offsets[request + 1]
        length = input_tokens[request]
        for r in range(replicas):
            match[r] = 0
        alive = ~np.uint64(0)
        for index in range(start, stop):
            alive &= masks[blocks[index]]
            if alive == 0:
                break
            for r in range(replicas):
                if alive & (one << np.uint64(r)):
                    match[r] += 1
        chosen = 0
        if kind < 0:
            chosen = picks[request]
        else:
            best = -np.inf
            for r in range(replicas):
                hit = float(min(match[r] * block_tokens, length))
                if kind == 0:
                    score = -load[r]
                elif kind == 1:
                    score = hit
                else:
                    score = hit - load_weight * load[r]
                if score > best or (score == best and load[r] < load[chosen]):
                    best, chosen = score, r
        replica[request] = chosen
        matched[request] = match[chosen]
        elsewhere[request] = match.max()
        load[chosen] += length - min(match[chosen] * block_tokens, length)
        bit = one << np.uint64(chosen)
        for index in range(stop - 1, start - 1, -1):
            block = blocks[index]
            position = place[chosen, block]
            if position >= 0:
                owner[chosen, position] = -1
            else:
                held[chosen] += 1
                masks[block] |= bit
            place[chosen, block] = tail[chosen]
            owner[chosen, tail[chosen]] = block
            tail[chosen] += 1
        while held[chosen] > capacity:
            block = owner[chosen, head[chosen]]
            head[chosen] += 1
            if block >= 0:
                place[chosen, block] = -1
                masks[block] &= ~bit
                held[chosen] -= 1
