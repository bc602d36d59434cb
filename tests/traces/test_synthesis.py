"""Synthetic traces: the same from the same seed, and made as the recipe says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from reading import Seen, read

from kvferry.errors import ConfigError
from kvferry.traces import open_trace
from kvferry.traces.convert import write_own
from kvferry.traces.synthesis import PRESETS, PromptClass, Recipe, read_recipe, synthesize


def recipe(*classes: PromptClass, **more: Any) -> Recipe:
    return Recipe(classes=classes or PRESETS["mixed"], **{"requests": 400, **more})


def seen(*classes: PromptClass, **more: Any) -> list[Seen]:
    return read(synthesize(recipe(*classes, **more)))


def test_one_seed_is_one_trace() -> None:
    assert seen(seed=3) == seen(seed=3)
    assert seen(seed=3) != seen(seed=4)


def test_a_written_trace_is_the_same_and_says_how_it_was_made(tmp_path: Path) -> None:
    made = recipe(seed=5, requests=50)
    write_own(synthesize(made), tmp_path / "s.jsonl", recipe=msgspec.to_builtins(made))
    assert read(open_trace(tmp_path / "s.jsonl", strict=True)) == read(synthesize(made))
    header = msgspec.json.decode((tmp_path / "s.jsonl").read_bytes().splitlines()[0])
    assert msgspec.convert(header["recipe"], Recipe) == made


def test_all_of_a_class_begin_with_its_system_tokens() -> None:
    found = seen(PromptClass(name="a", system_tokens=100, content_tokens=50))
    assert {one.blocks[:6] for one in found} == {tuple(range(6))}
    assert {one.boundary for one in found} == {100}


def test_popular_prefixes_are_asked_for_more() -> None:
    found = seen(PromptClass(name="a", prefixes=50, prefix_tokens=160, spread=0.0, zipf=1.5), requests=2000)
    counts = np.sort(np.unique([one.blocks[0] for one in found], return_counts=True)[1])
    assert counts[-1] > 5 * counts[len(counts) // 2]


def test_a_chat_grows_by_whole_turns() -> None:
    found = seen(PromptClass(name="a", kind="chat", turns=20, content_tokens=40), requests=100)
    sessions: dict[str, list[Seen]] = {}
    for one in found:
        sessions.setdefault(dict(one.fields)["session"], []).append(one)
    long = max(sessions.values(), key=len)
    assert len(long) > 3
    for before, after in pairwise(long):
        full = before.input_tokens // 16
        assert after.blocks[:full] == before.blocks[:full]
        assert after.input_tokens > before.input_tokens + before.output_tokens
        assert after.arrival > before.arrival


def test_an_agent_waits_for_its_subagent() -> None:
    agent = PromptClass(name="a", kind="agent", system_tokens=500, turns=10, subagents=0.5, content_tokens=30)
    found = seen(agent, requests=600, sessions_per_second=0.1)
    names = [dict(one.fields)["session"] for one in found]
    assert {dict(one.fields)["class"] for one in found} == {"a", "a/subagent"}
    for number, name in enumerate(names):
        if "/" in name:
            parent = name.split("/")[0]
            later = names[number:]
            assert parent not in later[: len(later) - later[::-1].index(name) - 1]


@pytest.mark.parametrize("burstiness", [1.0, 3.0])
def test_sessions_come_as_often_and_as_bursty_as_asked(burstiness: float) -> None:
    found = seen(PromptClass(name="a"), requests=8000, sessions_per_second=4.0, burstiness=burstiness)
    gaps = np.diff([one.arrival for one in found])
    assert gaps.mean() == pytest.approx(0.25, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.15)


def test_no_prompt_outgrows_the_context() -> None:
    chat = PromptClass(name="a", kind="chat", turns=50, content_tokens=300)
    found = seen(chat, context_tokens=2_000)
    assert max(one.input_tokens for one in found) <= 2_000 + 300 * 10  # a first prompt is as long as it is


@pytest.mark.parametrize(
    ("ends", "count"), [({"requests": 7}, 7), ({"requests": None, "seconds": 10.0}, None)]
)
def test_where_it_ends(ends: dict[str, Any], count: int | None) -> None:
    found = seen(**ends)
    assert count is None or len(found) == count
    assert count is not None or found[-1].arrival <= 10.0


def test_it_ends_after_so_many_accesses() -> None:
    found = seen(requests=None, accesses=5_000)
    assert sum(len(one.blocks) for one in found[:-1]) < 5_000 <= sum(len(one.blocks) for one in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": ()}, "classes is empty"),
        ({"requests": None}, "nothing ends this trace"),
        ({"requests": 0}, "requests is 0"),
        ({"burstiness": 0.0}, "burstiness is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"classes": (PromptClass(name="a", turns=0.5),)}, "class 'a': turns is 0.5"),
        ({"classes": (PromptClass(name="a"), PromptClass(name="a"))}, "two classes are called 'a'"),
    ],
)
def test_a_wrong_recipe_names_the_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recipe(**{"classes": PRESETS["chat"], "requests": 10, **change})


def test_an_unknown_field_in_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"classes": [{"name": "a", "turnz": 3}], "requests": 5}')
    with pytest.raises(ConfigError, match="turnz"):
        read_recipe(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"burstiness": 1e9}, "burstiness"),
        ({"classes": (PromptClass(name="a", share=0.0),)}, "share 0"),
        ({"classes": (PromptClass(name="a", content_tokens=10**12),)}, "content_tokens"),
        ({"classes": (PromptClass(name="a", spread=50.0),)}, "spread"),
    ],
)
def test_what_would_never_end_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recipe(**{"classes": PRESETS["chat"], "requests": 10, **change})
