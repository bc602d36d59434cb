"""Requests for the tests: chains of blocks over small trees, and the public traces where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from kvferry.analysis.reuse import Stack
from kvferry.analysis.touched import Touched, touch
from kvferry.traces import Request, Trace, from_requests, open_trace

__all__ = ["BLOCK", "Prompt", "chains", "prompts", "public", "touched", "trace_of"]

BLOCK = 4
PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
Prompt = tuple[str, int]
"""The path through the tree, a letter a full block, and the tokens behind the last full block."""

prompts = st.lists(st.tuples(st.text("ab", min_size=0, max_size=6), st.integers(0, BLOCK - 1)), max_size=40)


def chains(prompt: Prompt) -> list[str]:
    """Names of the blocks: each names the whole prefix; a partial one ends in its length."""
    path, rest = prompt
    names = [path[: n + 1] for n in range(len(path))]
    return [*names, f"{path}+{rest}"] if rest else names


def trace_of(asked: list[Prompt], *, seconds: float = 1.0) -> Trace:
    """A trace of these prompts, `seconds` apart; empty prompts become one token."""
    return from_requests(
        [
            Request(
                arrival_seconds=number * seconds,
                input_tokens=len(path) * BLOCK + rest,
                blocks=chains((path, rest)),
            )
            for number, (path, rest) in enumerate(
                (path, rest) if path or rest else ("", 1) for path, rest in asked
            )
        ],
        BLOCK,
    )


def touched(trace: Trace, *, compiled: bool = False) -> list[Touched]:
    """The trace's chunks, run through a stack."""
    stack, found, first = Stack(compiled=compiled), [], 0
    for chunk in trace.chunks():
        found.append(touch(chunk, stack, trace.block_tokens, first))
        first += len(chunk)
    return found


def public(name: str) -> Trace:
    """A public trace; skips where it is not here."""
    path = PUBLIC / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return open_trace(path)
