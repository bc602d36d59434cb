"""Whatever becomes of a hand-off, the answer is that of local prefill, and the ledger sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvferry.engines.transformers.runner import Runner
from kvferry.handoff.wire.failed import Cut, HandoffFailed
from kvferry.handoff.wire.layers import Layers
from kvferry.measure.handoff.spans import TellingSpan, WaitingSpan
from kvferry.outcomes import Outcome

Prompts = Callable[..., list[int]]


class CutAt:
    """A connection that breaks before one chunk."""

    wants_digest = True

    def __init__(self, real: Any, at: int) -> None:
        self._real, self._at = real, at

    def chunk(self, index: int, *rest: Any) -> None:
        if index == self._at:
            self._real.close()
            raise Cut("cut by the test")
        self._real.chunk(index, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("sunk", [True, False])
def test_the_answer_is_that_of_local_prefill(roles: Any, prompts: Prompts, sunk: bool) -> None:
    ids = prompts()
    answer = roles.serving(roles.decode())
    handed = roles.prefill().hand_over(ids, roles.dial, handoff_id="a", sunk=sunk)
    answered = answer()
    assert answered.token_ids == roles.local(ids)
    assert answered.ledger == {Outcome.HANDOFF: len(ids) - 1, Outcome.NOT_CACHEABLE: 1}
    assert answered.local_prefill_seconds == 0.0
    assert handed.prefill_seconds > 0.0
    assert (handed.sent.legs.prefill_seconds > 0.0) is (not sunk)


def test_logits_are_those_of_local_prefill_bit_by_bit(runner: Runner, roles: Any, prompts: Prompts) -> None:
    ids = prompts(90)
    layers = Layers(runner.layers, roles.clock)
    sender = TellingSpan(runner.layout, 89, 89, layers)
    runner.prefill_chunk(sender, ids[:-1])
    assert layers.ready == runner.layers
    receiver = WaitingSpan(runner.layout, 100, 89, layers, roles.clock.now() + 5)
    receiver.kv[:, :, :, :89] = sender.kv
    own = runner.new_span(100)
    runner.prefill_chunk(own, ids[:-1])
    assert bool((runner.decode(receiver, ids[-1]) == runner.decode(own, ids[-1])).all())


def test_a_forward_pass_meets_no_layer_that_is_not_there(runner: Runner, roles: Any) -> None:
    layers = Layers(runner.layers, roles.clock)
    layers.advance(1)
    span = WaitingSpan(runner.layout, 20, 10, layers, roles.clock.now() + 0.1)
    with pytest.raises(HandoffFailed) as caught:
        runner.decode(span, 1)
    assert caught.value.cause is Outcome.LATE


def test_a_lossy_codec_is_used_where_it_is_agreed_to(roles: Any, prompts: Prompts) -> None:
    answer = roles.serving(roles.decode(codecs=("raw", "int8")))
    handed = roles.prefill().hand_over(prompts(), roles.dial, handoff_id="a", codec="int8")
    answered = answer()
    assert answered.received.cause is None
    assert handed.payload_bytes < 149 * roles.runner.bytes_per_token / 3
    assert answered.legs["encode"] > 0.0
    assert answered.legs["decode"] > 0.0


def test_a_lossy_codec_is_refused_where_it_is_not(roles: Any, prompts: Prompts) -> None:
    ids = prompts()
    answer = roles.serving(roles.decode())
    roles.prefill().hand_over(ids, roles.dial, handoff_id="a", codec="int4")
    answered = answer()
    assert answered.ledger == {Outcome.INCOMPATIBLE: 149, Outcome.NOT_CACHEABLE: 1}
    assert "kv_dtype is float32+int4 there, float32 here" in answered.received.detail


def test_a_declined_prefill_is_never_done_by_the_sender(roles: Any, prompts: Prompts) -> None:
    ids = prompts()
    answer = roles.serving(roles.decode("never"))
    handed = roles.prefill().hand_over(ids, roles.dial, handoff_id="a", sunk=False)
    answered = answer()
    assert answered.ledger == {Outcome.DECLINED: 149, Outcome.NOT_CACHEABLE: 1}
    assert answered.token_ids == roles.local(ids)
    assert handed.prefill_seconds == 0.0


def test_a_sender_that_is_cut_off_costs_no_answer(roles: Any, prompts: Prompts) -> None:
    ids = prompts()
    answer = roles.serving(roles.decode(), grace_seconds=0.2)
    with pytest.raises(HandoffFailed):
        # One attempt: the second finds its listener busy computing, and is out of time.
        roles.prefill().hand_over(
            ids, lambda until: CutAt(roles.dial(until), 7), handoff_id="a", seconds=0.5, chunk_tokens=32
        )
    answered = answer()
    assert answered.token_ids == roles.local(ids)
    assert set(answered.ledger) <= {Outcome.FAILED, Outcome.LATE, Outcome.NOT_CACHEABLE}
    assert sum(answered.ledger.values()) == 150


def test_kv_of_another_model_is_never_attended_to(roles: Any, prompts: Prompts, stranger: Runner) -> None:
    ids = prompts()
    answer = roles.serving(roles.decode())
    roles.prefill(stranger).hand_over(ids, roles.dial, handoff_id="a")
    answered = answer()
    assert "weights_revision" in answered.received.detail
    assert answered.ledger[Outcome.INCOMPATIBLE] == 149
    # Nothing of the offer is used but what it asks.
    assert answered.token_ids == roles.local(ids)


def test_a_prefill_that_breaks_costs_no_answer(
    roles: Any, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompts()
    node = roles.prefill()

    def breaks(*_: Any) -> None:
        raise RuntimeError("out of memory")

    answer = roles.serving(roles.decode(), grace_seconds=0.2)
    monkeypatch.setattr("kvferry.measure.handoff.prefilling.prefill_in_chunks", breaks)
    with pytest.raises(RuntimeError, match="out of memory"):
        node.hand_over(ids, roles.dial, handoff_id="a", sunk=True)
    monkeypatch.undo()
    # No offer came: the request's own prompt is what there is.
    roles.prefill().hand_over(ids, roles.dial, handoff_id="b")
    assert answer().token_ids == roles.local(ids)


def test_without_an_offer_and_a_prompt_there_is_no_answer(roles: Any) -> None:
    answer = roles.serving(roles.decode(), wait_seconds=0.2)
    with pytest.raises(HandoffFailed) as caught:
        answer()
    assert caught.value.cause is Outcome.LATE


def test_a_request_that_knows_its_prompt_needs_no_offer(roles: Any, prompts: Prompts) -> None:
    ids = prompts()
    answered = roles.serving(roles.decode(), wait_seconds=0.2, token_ids=ids)()
    assert answered.token_ids == roles.local(ids)
    assert answered.ledger == {Outcome.LATE: 149, Outcome.NOT_CACHEABLE: 1}


def test_kv_of_another_prompt_than_the_requests_is_refused(roles: Any, prompts: Prompts) -> None:
    ours = prompts(seed=1)
    answer = roles.serving(roles.decode(), token_ids=ours)
    roles.prefill().hand_over(prompts(seed=2), roles.dial, handoff_id="a")
    answered = answer()
    assert "another prompt" in answered.received.detail
    assert answered.token_ids == roles.local(ours)


def test_a_link_is_learned_from_hand_offs(roles: Any, prompts: Prompts) -> None:
    node = roles.decode("rule")
    reasons = []
    for number in range(2):
        answer = roles.serving(node)
        roles.prefill().hand_over(prompts(seed=number), roles.dial, handoff_id=f"a{number}")
        decision = answer().received.decision
        assert decision is not None
        reasons.append(decision.reason.value)
    assert reasons[0] == "unmeasured"
    assert reasons[1] in ("pays", "slower")
    assert node.pricing.link.n >= 1


def test_a_prompt_needs_two_tokens(roles: Any) -> None:
    with pytest.raises(ValueError, match="one token"):
        roles.prefill().hand_over([1], roles.dial, handoff_id="a")
