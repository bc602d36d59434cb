"""Logs in which nothing is wrong: nothing is reported."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from planting import Row, clean, prose, result_of


@settings(max_examples=15, deadline=None)
@given(
    services=st.integers(1, 5),
    requests=st.integers(1, 10),
    tools=st.integers(0, 5),
    system_words=st.integers(0, 300),
)
def test_nothing_is_reported(services: int, requests: int, tools: int, system_words: int) -> None:
    rows = clean(services, requests, tools=tools, system_words=system_words)
    result = result_of(rows)
    assert result.findings == []
    assert result.lost_tokens == 0


def test_dates_and_numbers_in_questions_are_no_cause() -> None:
    rows = clean()
    for number, row in enumerate(rows):
        row["messages"][-1]["content"] = (
            f"On 2026-11-{number % 28 + 1:02d}, order {number}: {prose(number, 20)}"
        )
    assert result_of(rows).findings == []


def test_documents_of_their_own_in_every_request_are_no_cause() -> None:
    rows = clean()
    for number, row in enumerate(rows):
        row["messages"][1]["content"] = f"{prose(('document', number), 300)}\n\nQuestion: {prose(number, 10)}"
    assert result_of(rows).findings == []


def test_long_conversations_that_grow_are_no_cause() -> None:
    rows: list[Row] = []
    for user in range(4):
        messages = clean(1, 1)[0]["messages"][:1]
        for turn in range(5):
            messages = [*messages, {"role": "user", "content": prose(("ask", user, turn), 30)}]
            rows.append({"messages": messages})
            messages = [*messages, {"role": "assistant", "content": prose(("tell", user, turn), 80)}]
    assert result_of(rows).findings == []


def test_two_models_are_two_services_and_no_cause() -> None:
    rows = clean(1)
    for number, row in enumerate(rows):
        row["model"] = f"m{number % 2}"
    assert result_of(rows).findings == []


def test_prompts_of_nothing_in_common_are_no_cause() -> None:
    rows: list[Row] = [{"prompt": prose(("alone", number), 60)} for number in range(40)]
    assert result_of(rows).findings == []
