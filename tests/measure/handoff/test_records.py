from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvferry.gate.facts import GateTerms
from kvferry.measure.handoff.lines import receive_line, send_line
from kvferry.measure.handoff.records import handoff_record
from kvferry.outcomes import HITS, Outcome
from kvferry.runs.decisions import decode_record, encode_record


@pytest.mark.parametrize(("policy", "path"), [("always", "handoff"), ("never", "declined")])
def test_a_hand_off_is_a_decision_like_any_other(
    roles: Any, prompts: Callable[..., list[int]], policy: str, path: str
) -> None:
    answer = roles.serving(roles.decode(policy))
    handed = roles.prefill().hand_over(prompts(), roles.dial, handoff_id="a")
    answered = answer()
    record = handoff_record(
        answered,
        request_id="a",
        replica="decode",
        arrival_wall_seconds=0.0,
        data_class="default",
        terms=GateTerms(policy=policy),
        transport="tcp",
    )
    again = decode_record(encode_record(record))
    assert again == record
    assert (record.path, sum(record.ledger.values())) == (path, record.prompt_tokens)
    # Three kinds of reuse stay apart: no tier's hit is in it.
    assert set(record.ledger) & (HITS - {Outcome.HANDOFF}) == set()
    line = receive_line(answered, "text")
    assert sum(line["ledger"].values()) == line["prompt_tokens"] == 150
    assert send_line(handed, "a", "raw", None)["taken"] is (policy == "always")
