"""Rows of a log as prompts, good and bad."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planting import Row, clean, lines_of, result_of

from kvferry.analysis.lint import Prompt, prompts_of
from kvferry.analysis.lint.rows import Render
from kvferry.errors import FormatError
from kvferry.traces.chunk import Problems


def read(*rows: Row | str, render: Render | None = None, by: str | None = None) -> list[Prompt]:
    return list(prompts_of(lines_of(rows), Problems(strict=True), path="log", render=render, by=by))


BAD = [
    ('{"messages": [', "not JSON"),
    ("[1]", "a row is an object, not a list"),
    ('{"hash_ids": [1]}', "neither messages nor prompt"),
    ('{"messages": []}', "messages is empty"),
    ('{"messages": [{"content": "x"}]}', "messages[0] has no role"),
    ('{"messages": [{"role": "user", "content": 3}]}', "messages[0].content is a number"),
    ('{"prompt": [1, 2]}', "prompt is a list"),
    ('{"prompt": ""}', "the prompt is empty"),
    ('{"messages": [{"role": "user", "content": "x"}], "tools": {}, "functions": 3}', "tools is a number"),
]


@pytest.mark.parametrize(("row", "message"), BAD)
def test_a_bad_row_is_booked_with_its_line(row: str, message: str) -> None:
    result = result_of(['{"prompt": "x"}', row])
    (problem,) = result.problems
    assert problem.startswith("log.jsonl:2: ")
    assert message in problem


def test_strict_stops_at_the_first_bad_row() -> None:
    with pytest.raises(FormatError, match=r"log\.jsonl:1: not JSON"):
        result_of(["{", '{"prompt": "x"}'], strict=True)


def test_bad_rows_and_unknown_fields_leave_the_figures_alone() -> None:
    rows = clean()
    noisy: list[Row | str] = [{**row, "trace": {"x": [1]}, "temperature": 0.1} for row in rows]
    for at in (0, 7, 20):
        noisy.insert(at, "not a row")
    good, bad = result_of(rows), result_of(noisy)
    assert (bad.bad_rows, bad.requests, bad.cached_tokens) == (3, good.requests, good.cached_tokens)


@pytest.mark.parametrize("wrapping", ["body", "request"])
def test_a_wrapped_request_is_found(wrapping: str) -> None:
    (prompt,) = read({"custom_id": "1", wrapping: {"messages": [{"role": "user", "content": "hello"}]}})
    assert "hello" in prompt.text


def test_responses_api_input_is_read() -> None:
    (prompt,) = read({"instructions": "be kind", "input": [{"role": "user", "content": "hello"}]})
    assert [one.role for one in prompt.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("by", "name"), [(None, "claims"), ("team.name", "blue"), ("tier", "gold"), ("nothing", None)]
)
def test_the_service_is_a_field(by: str | None, name: str | None) -> None:
    row = {"service": "claims", "team": {"name": "blue"}, "metadata": {"tier": "gold"}, "prompt": "x"}
    assert read(row, by=by)[0].service == name


def test_pieces_hold_what_their_place_says() -> None:
    (prompt,) = read(clean(1, 1)[0])
    system = prompt.messages[0]
    assert prompt.text[system.start : system.end].startswith("You are the service-a.")
    assert [json.loads(prompt.text[one.start : one.end])["function"]["name"] for one in prompt.tools] == [
        "a_0",
        "a_1",
        "a_2",
        "a_3",
    ]


def test_calls_and_images_are_pieces() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    (prompt,) = read(
        {
            "messages": [
                {"role": "user", "content": [image, {"type": "text", "text": "what is it?"}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ]
        }
    )
    assert [one.kind for one in prompt.pieces] == ["image", "message", "call"]


def test_a_rendered_prompt_knows_its_pieces() -> None:
    def render(messages: list[Row], tools: list[Any] | None, row: Any) -> str:
        return "".join(f"<{one['role']}>{one['content'].strip()}" for one in messages) + json.dumps(tools)

    row = {**clean(1, 1)[0], "tools": [{"type": "function", "function": {"name": "f"}}]}
    row["messages"].append({"role": "assistant", "content": "  spaced  "})
    (prompt,) = read(row, render=render)
    assert [one.place for one in prompt.pieces] == [
        "messages[0] (system)",
        "messages[1] (user)",
        "messages[2] (assistant)",
        'tools[0] "f"',
    ]
    assert prompt.text[prompt.messages[2].start : prompt.messages[2].end] == "spaced"


def test_a_template_that_refuses_a_row_makes_it_a_bad_row() -> None:
    def render(messages: list[Row], tools: list[Any] | None, row: Any) -> str:
        raise ValueError("the chat template refuses these messages: roles must alternate")

    with pytest.raises(FormatError, match="roles must alternate"):
        read(clean(1, 1)[0], render=render)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "role", "content", "tools", "prompt", "text", "type", "image_url", "body"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(JSON | st.text(max_size=10), min_size=1, max_size=8))
def test_no_row_breaks_it(rows: list[Any]) -> None:
    written = [row if isinstance(row, str) and "\n" not in row else json.dumps(row) for row in rows]
    result = result_of(written)
    blank = sum(not row.encode("utf-8", "surrogatepass").strip() for row in written)
    assert result.requests + result.bad_rows == len(written) - blank
