from __future__ import annotations

import math
from typing import Any

import pytest

from kvferry.config import RequestFields, parse_request_fields
from kvferry.errors import ConfigError


@pytest.mark.parametrize(
    "params", [None, {}, {"kvferry": None}, {"kvferry": {}}, {"do_remote_decode": False}]
)
def test_a_request_may_say_nothing(params: dict[str, Any] | None) -> None:
    assert parse_request_fields(params) == RequestFields()


def test_every_field_is_read() -> None:
    fields = {
        "boundary_tokens": 1536,
        "data_class": "public",
        "decision_id": "d-1",
        "max_load_tokens": 0,
        "deadline_seconds": 2,
        "handoff_tokens": 64,
        "accept_mapped": False,
    }
    assert parse_request_fields({"kvferry": fields}) == RequestFields(
        boundary_tokens=1536,
        data_class="public",
        decision_id="d-1",
        max_load_tokens=0,
        deadline_seconds=2.0,
        handoff_tokens=64,
        accept_mapped=False,
    )


@pytest.mark.parametrize("own", [{}, {"kvferry": {}}])
def test_a_prefill_for_another_replica_is_known_by_the_engines_word(own: dict[str, Any]) -> None:
    assert parse_request_fields({"do_remote_decode": True, **own}).gives


def test_that_word_is_not_ours_to_take() -> None:
    with pytest.raises(ConfigError, match="unknown field 'gives'"):
        parse_request_fields({"kvferry": {"gives": True}})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"boundary_token": 1}, "unknown field 'boundary_token'; did you mean 'boundary_tokens'?"),
        ({"zzz": 1}, "known are boundary_tokens"),
        ({"boundary_tokens": -1}, "kvferry.boundary_tokens"),
        ({"boundary_tokens": 1.0}, "kvferry.boundary_tokens"),
        ({"boundary_tokens": True}, "kvferry.boundary_tokens"),
        ({"max_load_tokens": "0"}, "kvferry.max_load_tokens"),
        ({"deadline_seconds": 0}, "kvferry.deadline_seconds"),
        ({"deadline_seconds": math.inf}, "kvferry.deadline_seconds"),
        ({"deadline_seconds": "5ms"}, "kvferry.deadline_seconds"),
        ({"accept_mapped": "no"}, "kvferry.accept_mapped: 'no' is neither; write true or false"),
        ({"accept_mapped": 1}, "kvferry.accept_mapped"),
        ({"data_class": ""}, "kvferry.data_class"),
        ({"decision_id": "x" * 257}, "kvferry.decision_id"),
        ([], "is not an object"),
    ],
)
def test_a_bad_field_is_named(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_request_fields({"kvferry": given})
    assert message in str(caught.value)
