"""Whatever stands in a file, reading it ends in rows, counted problems or one clear error."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read

from kvferry.errors import InputError
from kvferry.traces import open_trace

KEY = "0" * 32
SAMPLES: dict[str, list[Any]] = {
    "mooncake": [
        {"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]},
        {"timestamp": 2, "input_length": 600, "output_length": 2, "hash_ids": [1, 3]},
    ],
    "weka": [
        {"block_size": 64, "hash_id_scope": "local", "requests": [
            {"t": 0.5, "type": "n", "in": 70, "out": 1, "hash_ids": [1]},
            {"t": 1.5, "type": "subagent", "duration_ms": 100, "requests": [
                {"t": 0, "type": "s", "in": 64, "out": 1, "hash_ids": [2]}]},
        ]},
    ],
    "openai": [
        {"prompt": [1, 2, 3] * 6, "created": 5, "usage": {"prompt_tokens": 18, "completion_tokens": 1}},
        {"prompt": [1, 2, 3] * 7, "created": 6, "cache_salt": "x", "model": "m"},
    ],
    "vllm-events": [
        {"kvferry_vllm_events": 1, "block_tokens": 16},
        {"t": 1.0, "stored": [KEY, "1" * 32]},
        {"t": 2.0, "stored": ["2" * 32], "parent": "1" * 32, "session": "x"},
    ],
    "decisions": [
        {"version": 1, "request_id": "r", "arrival": 1.0, "prompt_tokens": 20, "block_tokens": 16,
         "keys": [KEY], "ledger": {}, "tenant_class": "c"},
    ],
    "gateway": [
        {"kvferry_gateway": 1, "arrival": 1.0, "request_id": "r", "prompt_tokens": 20, "block_tokens": 16,
         "keys": [KEY], "class": "c"},
    ],
    "kvferry": [
        {"kvferry_trace": 1, "block_tokens": 16, "names": "keyed"},
        {"t": 0.0, "in": 20, "ids": [0, 2], "keys": [KEY, None], "fields": {"class": "c"}},
        {"t": 1.0, "in": 32, "ids": [0, 1, 2, 1], "keys": ["1" * 32]},
    ],
}  # fmt: skip
WRONG: list[Any] = [None, -1, 0, 3.5, 1 << 70, "x", [], [1], {}, True, [[]], "\ud83d", 1e300]


def read_whole(path: Path) -> None:
    said = ""
    try:
        trace = open_trace(path)
        read(trace)
        list(trace.named_chunks())
    except InputError as error:
        said = str(error)
    assert not said or str(path) in said


def changed(value: Any, chance: random.Random) -> Any:
    """The value with one thing in it replaced, removed or doubled."""
    if isinstance(value, dict) and value:
        key = chance.choice(list(value))
        if chance.random() < 0.2:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        if chance.random() < 0.3:
            return [*value, *value[place:]]
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    return chance.choice(WRONG)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_sound(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f"
    path.write_text("".join(json.dumps(one) + "\n" for one in SAMPLES[name]))
    trace = open_trace(path, strict=True)
    assert trace.format == name
    assert read(trace)


@pytest.mark.parametrize("name", SAMPLES)
def test_one_wrong_value_anywhere(tmp_path: Path, name: str) -> None:
    chance = random.Random(7)
    path = tmp_path / "f"
    for _ in range(250):
        lines = list(SAMPLES[name])
        place = chance.randrange(len(lines))
        lines[place] = changed(lines[place], chance)
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
        read_whole(path)


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_that_were_damaged(tmp_path: Path, name: str) -> None:
    chance = random.Random(11)
    path = tmp_path / "f"
    content = "".join(json.dumps(one) + "\n" for one in SAMPLES[name]).encode()
    for _ in range(150):
        hurt = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            hurt[chance.randrange(len(hurt))] = chance.randrange(256)
        path.write_bytes(hurt[: chance.randint(1, len(hurt))])
        read_whole(path)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "f"
    path.write_bytes(content)
    read_whole(path)
