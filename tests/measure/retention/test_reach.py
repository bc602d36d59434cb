"""How far items reach, and when standing further behind would say anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from kvferry.engines.transformers.capture import Captured
from kvferry.errors import UsageError
from kvferry.handoff.mapping.rope import Rope
from kvferry.measure.retention.gathering import Wanted
from kvferry.measure.retention.items import USER_TASK, Item
from kvferry.measure.retention.reach import far_offset, reach_of, shift_is_seen
from kvferry.measure.retention.reader import Reader
from kvferry.measure.retention.run import measure_retention
from kvferry.runs.retention_summary import Beyond, Interval, Refused

from .texts import Identity, continued

PLAIN: dict[str, Any] = {"width": 16, "rotated": 16}
LONG = Rope(kind="longrope", original_length=100, short_factors=(1.0,) * 8, long_factors=(2.0,) * 8, **PLAIN)


@pytest.fixture(scope="module")
def long(model: Captured) -> Captured:
    """A tiny model whose frequencies are others from the 257th position on."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.3,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "short_factor": [1.0] * 8,
            "long_factor": [1.0 + 0.5 * at for at in range(8)],
        },
    )
    made = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train(False)
    return Captured(
        made,
        name="long",
        weights_revision="1",
        tokenizer_revision=model.kv.tokenizer,
        tokenizer=model.tokenizer,
    )


@pytest.mark.parametrize("kind", ["none", "default"])
def test_fixed_frequencies_do_not_see_a_shift(kind: str) -> None:
    assert not shift_is_seen([Rope(kind=kind, **PLAIN)], 10, 10_000)


@pytest.mark.parametrize(("beyond", "seen"), [(100, False), (101, True)])
def test_other_frequencies_are_seen_where_they_begin(beyond: int, seen: bool) -> None:
    assert shift_is_seen([Rope(kind="default", **PLAIN), LONG], 10, beyond) is seen


def test_a_dynamic_rope_varies_only_behind_what_the_model_knows() -> None:
    rope = Rope(kind="dynamic", max_length=512, factor=2.0, **PLAIN)
    assert not shift_is_seen([rope], 10, 512)


def test_a_model_of_fixed_frequencies_has_no_beyond(model: Captured) -> None:
    found = far_offset(128, (model, model), 74)
    assert isinstance(found, Refused)
    assert "distances alone" in found.reason


def test_no_room_beyond_is_said(long: Captured) -> None:
    found = far_offset(1000, (long, long), 74)
    assert isinstance(found, Refused)
    assert "end at 1,024: no room" in found.reason


def test_frequencies_that_change_are_measured_beyond(long: Captured) -> None:
    items = tuple(continued(8))
    found = measure_retention(long, long, Identity(), Wanted(user_items=items, hold_back=(1,)))
    assert isinstance(found.beyond, Beyond)
    assert found.beyond.offset == 512
    top1 = found.beyond.top1["mapped"]
    assert isinstance(top1, Interval)
    assert top1.value == 1.0


def test_reach_is_the_longest_item_s(model: Captured) -> None:
    items = [
        Item(task=USER_TASK, document="a", context="a" * 10, continuation="b" * 40),
        Item(task=USER_TASK, document="b", context="a" * 30, question=" it", choices=(" a", " bbbb")),
    ]
    assert reach_of(items, [Reader(model)], 8) == 30 + 3 + 5


def test_an_item_behind_the_last_position_is_refused(model: Captured) -> None:
    items = [Item(task=USER_TASK, document="letter 17", context="a" * 510, continuation="bcd")]
    with pytest.raises(UsageError, match=r"'letter 17'.* takes 513 positions, .*ends at 512"):
        reach_of(items, [Reader(model)], 8)
