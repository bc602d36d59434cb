"""Fewer tokens, each where it stood: what follows sees them at the distance that they always had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

from kvferry.engines.transformers.capture import Captured, restore
from kvferry.errors import ModelError
from kvferry.handoff.crossing.align import Alignment
from kvferry.handoff.crossing.compaction import (
    attention_received,
    carried_scores,
    chosen_tokens,
    compact,
)

IDS, REST = [(7 * at) % 97 for at in range(30)], [5, 9, 50, 3]
FULL = "full_attention"
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def captured(config: Any) -> Captured:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.train(False)
    return Captured(model, name="tiny", weights_revision="1", tokenizer_revision="1")


@pytest.fixture(scope="module")
def llama() -> Captured:
    return captured(LlamaConfig(**SIZES))


def behind(model: Captured, cache: Any, position: int, **options: Any) -> torch.Tensor:
    at = torch.arange(position, position + len(REST))
    with torch.no_grad():
        answer = model.model(
            input_ids=torch.tensor([REST]), past_key_values=cache, position_ids=at[None], **options
        )
    logits: torch.Tensor = answer.logits[0]
    return logits


def test_what_follows_sees_the_kept_tokens_where_they_stood(llama: Captured) -> None:
    whole = llama.prefill(IDS)
    chosen = torch.tensor([0, 3, 4, 11, 17, 28])
    found = compact(llama.kv, whole, chosen)
    assert (found.kept, found.next_position) == (6, 30)
    assert found.prefill.positions.tolist() == chosen.tolist()
    ours = behind(llama, restore(llama.model, found.prefill.layers, found.kept), found.next_position)
    # The same by a mask: the whole cache, of which only the chosen may be seen.
    seen = torch.zeros(1, len(IDS) + len(REST), dtype=torch.int64)
    seen[0, chosen] = 1
    seen[0, len(IDS) :] = 1
    theirs = behind(llama, restore(llama.model, whole.layers, len(IDS)), 30, attention_mask=seen)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_positions_that_close_up_would_give_something_else(llama: Captured) -> None:
    found = compact(llama.kv, llama.prefill(IDS), torch.tensor([0, 3, 4, 11, 17, 28]))
    right, wrong = (
        behind(llama, restore(llama.model, found.prefill.layers, found.kept), position)
        for position in (found.next_position, found.kept)
    )
    assert not torch.allclose(right, wrong, atol=1e-2)


def test_all_tokens_kept_is_the_native_cache(llama: Captured) -> None:
    whole = llama.prefill(IDS)
    found = compact(llama.kv, whole, torch.arange(30))
    ours = behind(llama, restore(llama.model, found.prefill.layers, 30), found.next_position)
    with torch.no_grad():
        theirs = llama.model(input_ids=torch.tensor([IDS + REST])).logits[0, 30:]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_scores_are_the_models_own_attention(llama: Captured) -> None:
    found = attention_received(llama.kv, llama.prefill(IDS, queries=True), observers=4)
    llama.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            weights = llama.model(input_ids=torch.tensor([IDS]), output_attentions=True).attentions
    finally:
        llama.model.set_attn_implementation("sdpa")
    wanted = torch.stack([one[0, :, -4:].mean((0, 1)) for one in weights]).mean(0)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-4)


def test_scores_respect_a_window() -> None:
    config = Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=8, layer_types=["sliding_attention"] * 3, query_pre_attn_scalar=8
    )
    model = captured(config)
    found = attention_received(model.kv, model.prefill(IDS, queries=True), observers=2)
    assert found[: 30 - 9].abs().max() == 0
    assert found[-9:].min() > 0


def test_scores_need_queries(llama: Captured) -> None:
    with pytest.raises(ModelError, match="tiny shows no queries"):
        attention_received(llama.kv, llama.prefill(IDS))


def test_the_first_the_last_and_the_best_are_kept() -> None:
    scores = torch.tensor([0.0, 0.5, 0.1, 0.9, 0.2, 0.0])
    assert chosen_tokens(scores, 4, first=1, last=1).tolist() == [0, 1, 3, 5]
    assert chosen_tokens(scores, 2, first=0).tolist() == [1, 3]
    assert chosen_tokens(scores, 9).tolist() == [0, 1, 2, 3, 4, 5]
    assert chosen_tokens(torch.zeros(5), 3).tolist() == [0, 3, 4]
    with pytest.raises(ModelError, match="2 tokens are to be kept, the first 2 and the last 1"):
        chosen_tokens(scores, 2, first=2, last=1)


def test_scores_go_with_what_is_read() -> None:
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4])
    one_for_two = carried_scores(scores, Alignment(torch.tensor([1, 3])))
    torch.testing.assert_close(one_for_two, torch.tensor([0.3, 0.7]))
    two_for_one = carried_scores(scores, Alignment(torch.tensor([-1, 0, 0, 3])))
    torch.testing.assert_close(two_for_one, torch.tensor([0.0, 0.05, 0.05, 0.9]))


def test_a_window_shorter_than_the_text_is_refused() -> None:
    config = Gemma3TextConfig(
        **SIZES,
        head_dim=8,
        sliding_window=16,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    )
    model = captured(config)
    with pytest.raises(ModelError, match="layer 1 sees 16 tokens of 30: its cache may have no gaps"):
        compact(model.kv, model.prefill(IDS), torch.tensor([0, 5]))
    short = model.prefill(IDS[:10])
    with pytest.raises(ModelError, match="sees 16 tokens of 18"):
        compact(model.kv, short, torch.tensor([0, 5]), following=8)
    assert compact(model.kv, short, torch.tensor([0, 5]), following=4).kept == 2
    assert compact(model.kv, model.prefill(IDS), torch.arange(30)).kept == 30


@pytest.mark.parametrize("chosen", [[], [3, 3], [5, 2], [30]])
def test_tokens_that_are_no_choice_are_refused(llama: Captured, chosen: list[int]) -> None:
    with pytest.raises(ModelError, match="once each, in order"):
        compact(llama.kv, llama.prefill(IDS), torch.tensor(chosen, dtype=torch.int64))
