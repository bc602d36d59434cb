"""Which arms a pair has, and what each holds."""

from __future__ import annotations

import msgspec
import pytest
import torch

from kvferry.engines.transformers.capture import Captured
from kvferry.measure.retention.arms import Held, hand_over, name_arms, raw_refusal
from kvferry.measure.retention.reader import Reader, read_context
from kvferry.measure.retention.scoring import reread_of

from .texts import Identity

ARMS = ("target", "source", "mapped", "raw", "random", "wrong", "none")
TEXT = "abcd dcba acbd bcda"


def test_raw_is_refused_where_tokens_differ(model: Captured) -> None:
    other = msgspec.structs.replace(model.kv, tokenizer="another")
    assert "tokenizers differ" in raw_refusal(model.kv, other)


def test_raw_is_refused_where_shapes_differ(model: Captured) -> None:
    layers = tuple(msgspec.structs.replace(one, kv_heads=4) for one in model.kv.layers)
    assert "shapes differ" in raw_refusal(model.kv, msgspec.structs.replace(model.kv, layers=layers))


def test_raw_of_another_number_of_layers_is_taken_by_depth(model: Captured) -> None:
    deeper = msgspec.structs.replace(model.kv, layers=model.kv.layers * 2)
    assert raw_refusal(model.kv, deeper) == ""
    assert "2 layers for 4 by their depth" in name_arms(model.kv, deeper, 3)["raw"].note


def test_one_document_has_no_wrong_one(model: Captured) -> None:
    assert name_arms(model.kv, model.kv, 1)["wrong"].absent
    assert not name_arms(model.kv, model.kv, 2)["wrong"].absent


def test_a_source_of_other_tokens_says_how_it_compares(model: Captured) -> None:
    other = msgspec.structs.replace(model.kv, tokenizer="another")
    assert "NLL a character" in name_arms(model.kv, other, 2)["source"].note


@pytest.mark.parametrize("offset", [0, 64])
def test_every_arm_stands_where_it_should(reader: Reader, offset: int) -> None:
    context = read_context(TEXT, reader, reader)
    wrong = Held(reader.prefill(context.target_ids[:5]).layers, 5, offset)
    handed = hand_over(context, reader, reader, Identity(), arms=ARMS, offset=offset, wrong=wrong)
    assert set(handed.arms) == set(ARMS) - {"source"}
    native = reader.prefill(context.target_ids, offset=offset).layers[1].keys
    for name in ("target", "mapped", "raw"):
        layers = handed.arms[name].layers
        assert layers is not None
        torch.testing.assert_close(layers[1].keys, native)
    assert {held.offset for held in handed.arms.values()} == {offset}


def test_what_is_held_back_is_read_by_the_receiver(reader: Reader) -> None:
    context = read_context(TEXT, reader, reader)
    handed = hand_over(context, reader, reader, Identity(), arms=ARMS)
    held, reread = reread_of(handed, "mapped", 6)
    assert reread == context.target_ids[-6:]
    assert held.tokens == len(context.target_ids) - 6
    assert held.layers is not None
    assert held.layers[0].keys.shape[1] == held.tokens
    assert reread_of(handed, "none", 6) == (handed.arms["none"], context.target_ids[-6:])


def test_more_held_back_than_there_is_is_all_of_it(reader: Reader) -> None:
    context = read_context(TEXT, reader, reader)
    handed = hand_over(context, reader, reader, Identity(), arms=ARMS)
    held, reread = reread_of(handed, "mapped", 999)
    assert (held.tokens, reread) == (0, context.target_ids)
