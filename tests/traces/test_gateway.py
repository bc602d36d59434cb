from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from reading import read

from kvferry.traces import open_trace
from kvferry.traces.gateway import GATEWAY_VERSION, GatewayRecord


def line(arrival: float, tokens: int, keys: list[str], version: int = GATEWAY_VERSION) -> str:
    record = GatewayRecord(
        version=version,
        arrival=arrival,
        request_id="r",
        prompt_tokens=tokens,
        completion_tokens=7,
        block_tokens=16,
        keys=keys,
        class_="chat",
        boundary_tokens=16,
    )
    return msgspec.json.encode(record).decode()


def test_what_the_gateway_writes_is_read(lines: Callable[..., Path]) -> None:
    trace = open_trace(lines([line(100.0, 33, ["a", "b"]), line(101.0, 16, ["a"])]))
    first, second = read(trace)
    assert (trace.format, trace.block_tokens, trace.naming) == ("gateway", 16, "keyed")
    assert (first.blocks, second.blocks) == ((0, 1, 2), (0,))
    assert (first.output_tokens, first.boundary, first.fields) == (7, 16, (("class", "chat"),))


def test_another_version_is_a_bad_row(lines: Callable[..., Path]) -> None:
    trace = open_trace(lines([line(100.0, 32, ["a", "b"]), line(101.0, 16, ["a"], version=2)]))
    assert len(read(trace)) == 1
    assert trace.problems.first[0].line == 2
