"""Each cause, planted into one of several services: exactly it is found, and its tokens are counted right."""

from __future__ import annotations

import base64
import json
import random
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planting import Row, clean, prose, result_of

from kvferry.analysis.lint import LintResult

BLOCK = 16
SERVICE = "service-b"
Plant = Callable[[Row, int], None]


def day(number: int) -> str:
    return f"Today is 2026-11-{number % 28 + 1:02d}.\n"


def head(text: Callable[[int], str]) -> Plant:
    """Something before the system message."""

    def plant(row: Row, number: int) -> None:
        row["messages"][0]["content"] = text(number) + row["messages"][0]["content"]

    return plant


def unique(number: int) -> str:
    return str(uuid.UUID(int=random.Random(number).getrandbits(128)))


def turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list) else value


def shuffle_tools(row: Row, number: int) -> None:
    random.Random(number).shuffle(row["tools"])


def turn_tools(row: Row, number: int) -> None:
    if number % 2:
        row["tools"] = [turned(one) for one in row["tools"]]


def date_in_tool(row: Row, number: int) -> None:
    row["tools"][1]["function"]["description"] += f" As of 2026-11-{number % 28 + 1:02d}."


def windows_lines(row: Row, number: int) -> None:
    if number % 2:
        row["messages"][0]["content"] = row["messages"][0]["content"].replace("\n", "\r\n")


def fixed_spaces(row: Row, number: int) -> None:
    if number % 2:
        row["messages"][0]["content"] = row["messages"][0]["content"].replace(" ", "\N{NO-BREAK SPACE}", 2)


def quotes(row: Row, number: int) -> None:
    quoted = "\u2019" if number % 2 else "'"
    row["messages"][0]["content"] = f"Don{quoted}t guess.\n" + row["messages"][0]["content"]


def composed(row: Row, number: int) -> None:
    written = "Cafe\u0301" if number % 2 else "Caf\u00e9"
    row["messages"][0]["content"] = f"{written} desk.\n" + row["messages"][0]["content"]


def tokenizer_field(row: Row, number: int) -> None:
    row["tokenizer"] = f"v{number % 2}"


def picture(row: Row, number: int) -> None:
    kind = "png" if number % 2 else "jpeg"
    data = base64.b64encode(random.Random(number).randbytes(90)).decode()
    row["messages"][1]["content"] = [
        {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}},
        {"type": "text", "text": prose("picture", 200)},
    ]


PROFILE = {"rules": [1, 2, {"a": "b", "c": "d"}], "limits": {"x": 1, "y": 2}, "note": prose("note", 20)}


def tools_in_text(separator: str, brackets: str) -> Plant:
    """The same tools as JSON in the system message, in an order of their own."""

    def plant(row: Row, number: int) -> None:
        tools = [
            json.dumps({"name": name, "about": prose(name, 30)}) for name in ("find", "open", "send", "stop")
        ]
        random.Random(number).shuffle(tools)
        text = brackets[:1] + separator.join(tools) + brackets[1:]
        row["messages"][0]["content"] = f"# Tools\n{text}\n{row['messages'][0]['content']}"

    return plant


def spaced_json(number: int) -> str:
    return json.dumps(PROFILE, indent=2 if number % 2 else None) + "\n"


def ordered_json(number: int) -> str:
    return "Profile: " + json.dumps(turned(PROFILE) if number % 2 else PROFILE) + "\n"


def person(number: int) -> str:
    name = ("Alice Novak", "Bob Ito", "Carol Díaz", "Dan Neil", "Eve Müller", "Finn Berg", "Gus Lee")[
        number % 7
    ]
    return f"The customer is {name}, who likes {prose(name, 6)}\n"


PLANTS: list[tuple[str, Plant, str, str]] = [
    ("date", head(day), "messages[0] (system)", "a day"),
    (
        "date",
        head(lambda at: f"It is Sunday, November {at % 20 + 10}, 2026 at {at % 9 + 1}:05 PM UTC.\n"),
        "messages[0] (system)",
        "a day in words and a time",
    ),
    (
        "date",
        head(lambda at: f"Now: {1764400000 + 61 * at}\n"),
        "messages[0] (system)",
        "seconds of the epoch",
    ),
    ("date", date_in_tool, 'tools[1] "b_1"', "a day inside a tool"),
    ("id", head(lambda at: f"Session {unique(at)}.\n"), "messages[0] (system)", "a uuid"),
    ("id", head(lambda at: f"Trace req_{unique(at)[:8]}x9.\n"), "messages[0] (system)", "a request id"),
    ("counter", head(lambda at: f"Request number {at + 100}.\n"), "messages[0] (system)", "a counter"),
    ("tool-order", shuffle_tools, "tools", "shuffled tools"),
    ("tool-order", tools_in_text(", ", "[]"), "tools", "an array of tools in a text"),
    ("tool-order", tools_in_text("\n", ""), "tools", "lines of tools in a text"),
    ("json-key-order", turn_tools, 'tools[0] "b_0"', "keys of tools"),
    ("json-key-order", head(ordered_json), "messages[0] (system)", "keys of JSON in a text"),
    ("json-spacing", head(spaced_json), "messages[0] (system)", "indented JSON in a text"),
    ("whitespace", windows_lines, "messages[0] (system)", "line ends"),
    ("whitespace", fixed_spaces, "messages[0] (system)", "no-break spaces"),
    ("whitespace", quotes, "messages[0] (system)", "quotes"),
    ("whitespace", composed, "messages[0] (system)", "composed letters"),
    ("tokenizer", tokenizer_field, "field 'tokenizer'", "a tokenizer field"),
    ("image", picture, "messages[1] (user), image", "an image before shared text"),
    ("early-text", head(person), "messages[0] (system)", "a person's name and taste"),
]

each_plant = pytest.mark.parametrize(
    ("cause", "plant", "place"),
    [pytest.param(*plant[:3], id=f"{plant[0]}: {plant[3]}") for plant in PLANTS],
)


def planted(plant: Plant, *, always: int | None = None) -> list[Row]:
    """Into one of three services; with `always` every row gets what that row number would get."""
    rows = clean()
    for number, row in enumerate(one for one in rows if one["service"] == SERVICE):
        plant(row, number if always is None else always)
    return rows


@cache
def linted(plant: Plant, *, always: int | None = None) -> LintResult:
    return result_of(planted(plant, always=always))


@each_plant
def test_exactly_the_planted_cause_is_found(cause: str, plant: Plant, place: str) -> None:
    found = linted(plant).findings
    assert [(one.cause, one.place, one.family) for one in found] == [(cause, place, SERVICE)]


@each_plant
def test_only_the_service_that_has_it_is_named(cause: str, plant: Plant, place: str) -> None:
    (found,) = linted(plant).findings
    assert set(found.services) == {SERVICE}


@each_plant
def test_its_tokens_are_those_that_come_back_without_it(cause: str, plant: Plant, place: str) -> None:
    result, mended = linted(plant), linted(plant, always=0)
    assert mended.findings == []
    back = mended.cached_tokens - result.cached_tokens
    # Whole blocks: a question may happen to begin alike, and a piece of another length counts itself.
    (found,) = result.findings
    assert abs(found.lost_tokens - back) <= 2 * BLOCK * found.requests


@each_plant
def test_the_advice_names_the_place(cause: str, plant: Plant, place: str) -> None:
    result = linted(plant)
    assert place in result.findings[0].mend
    assert result.recommendation.startswith(result.findings[0].mend)


@settings(max_examples=12, deadline=None)
@given(
    plan=st.sampled_from(PLANTS),
    services=st.integers(2, 5),
    requests=st.integers(7, 12),
    words=st.integers(120, 400),
    start=st.integers(0, 30),
)
def test_a_cause_is_found_in_logs_of_every_size(
    plan: tuple[str, Plant, str, str], services: int, requests: int, words: int, start: int
) -> None:
    rows = clean(services, requests, system_words=words)
    for number, row in enumerate((one for one in rows if one["service"] == SERVICE), start):
        plan[1](row, number)
    assert {(one.cause, one.family) for one in result_of(rows).findings} == {(plan[0], SERVICE)}


def test_every_service_with_the_cause_is_found() -> None:
    rows = clean()
    for number, row in enumerate(rows):
        head(day)(row, number)
    found = result_of(rows).findings
    assert {(one.cause, one.family) for one in found} == {("date", f"service-{one}") for one in "abc"}


def test_two_causes_in_one_prompt_are_both_found_in_their_order() -> None:
    def both(row: Row, number: int) -> None:
        text = row["messages"][0]["content"]
        row["messages"][0]["content"] = day(number) + f"{text}\nTicket {unique(number)}."

    found = {one.cause: one for one in result_of(planted(both)).findings}
    assert set(found) == {"date", "id"}
    assert found["date"].blocked_tokens == found["date"].lost_tokens + found["id"].lost_tokens


def test_two_causes_at_one_place_are_both_found() -> None:
    def both(row: Row, number: int) -> None:
        turn_tools(row, number)
        shuffle_tools(row, number)

    found = result_of(planted(both)).findings
    assert {one.cause for one in found} == {"json-key-order", "tool-order"}


def test_a_date_inside_turned_json_is_a_cause_of_its_own() -> None:
    def both(row: Row, number: int) -> None:
        value = {**PROFILE, "at": f"2026-11-{number % 28 + 1:02d}"}
        written = json.dumps(turned(value) if number % 2 else value)
        row["messages"][0]["content"] = f"{written}\n{row['messages'][0]['content']}"

    found = result_of(planted(both)).findings
    assert {one.cause for one in found} == {"date", "json-key-order"}


@pytest.mark.parametrize("order", ["abc", "cab"])
def test_one_service_that_always_writes_keys_in_its_own_order(order: str) -> None:
    rows: list[Row] = []
    for number in range(30):
        row = clean(1, 1)[0]
        row["service"] = order[number % 3]
        row["messages"][1]["content"] = prose(("question", number), 40)
        if row["service"] == "c":
            row["tools"] = [turned(one) for one in row["tools"]]
        rows.append(row)
    (found,) = result_of(rows).findings
    assert (found.cause, found.services) == ("json-key-order", {"c": 10})


def test_personal_text_in_one_of_many_services_that_are_alike() -> None:
    rows: list[Row] = []
    for number in range(120):
        row = clean(1, 1)[0]
        row["service"] = f"service-{number % 12}"
        row["messages"][1]["content"] = prose(("question", number), 40)
        if number % 12 == 7:
            head(person)(row, number)
        rows.append(row)
    (found,) = result_of(rows).findings
    assert (found.cause, set(found.services)) == ("early-text", {"service-7"})


def test_a_trimmed_conversation() -> None:
    rows = clean(1)
    turns: list[Row] = []
    for number in range(14):
        turns.append({"role": "user", "content": prose(("turn", number), 60)})
        rows.append({**clean(1, 1)[0], "messages": [rows[0]["messages"][0], *turns[-7:]]})
        turns.append({"role": "assistant", "content": prose(("reply", number), 80)})
    (found,) = result_of(rows).findings
    assert (found.cause, found.requests) == ("trimmed-history", 10)


def test_a_changed_template_in_rendered_prompts() -> None:
    def render(row: Row, opening: str, closing: str) -> Row:
        text = "".join(opening.format(one["role"]) + one["content"] + closing for one in row["messages"])
        return {"service": row["service"], "prompt": text + opening.format("assistant")}

    marks = (
        ("<|im_start|>{}\n", "<|im_end|>\n"),
        ("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
    )
    rows = [
        render(row, *marks[number % 4 == 1 and row["service"] == SERVICE])
        for number, row in enumerate(clean())
    ]
    assert [(one.cause, one.family) for one in result_of(rows).findings] == [("template", SERVICE)]
