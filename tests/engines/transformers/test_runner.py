from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.cache_utils import DynamicCache

from kvferry.engines.transformers.arena import Arena
from kvferry.engines.transformers.runner import Runner
from kvferry.engines.transformers.span import Span
from kvferry.errors import ModelError

Prompts = Callable[..., list[int]]


def greedy(runner: Runner, span: Span, logits: torch.Tensor, tokens: int = 8) -> list[int]:
    out: list[int] = []
    for _ in range(tokens):
        out.append(int(logits.argmax()))
        logits = runner.decode(span, out[-1])
    return out


def test_the_layout_is_read_off_the_model(runner: Runner) -> None:
    assert (runner.layers, runner.kv_heads, runner.head_dim) == (2, 2, 16)


def test_a_span_holds_what_transformers_own_cache_holds(runner: Runner, prompts: Prompts) -> None:
    ids, cache, span = prompts(20), DynamicCache(), runner.new_span(20)
    with torch.inference_mode():
        runner.model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
    runner.prefill_chunk(span, ids)
    native = torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers])
    assert torch.equal(span.kv, native)


@pytest.mark.parametrize("chunk", [1, 7, 8, 16, 40])
def test_chunks_do_not_change_the_answer(runner: Runner, prompts: Prompts, chunk: int) -> None:
    ids, whole, parts = prompts(40), runner.new_span(64), runner.new_span(64)
    expected = greedy(runner, whole, runner.prefill_chunk(whole, ids))
    for start in range(0, 40, chunk):
        logits = runner.prefill_chunk(parts, ids[start : start + chunk])
    assert greedy(runner, parts, logits) == expected


def test_kv_comes_back_from_the_arena_bit_by_bit(runner: Runner, arena: Arena, prompts: Prompts) -> None:
    span, again = runner.new_span(48), runner.new_span(80)
    runner.prefill_chunk(span, prompts(40))
    rows = arena.reserve(5)
    assert rows is not None
    arena.scatter(span, 0, rows)
    arena.gather(rows, again)
    assert torch.equal(again.kv[:, :, :, :40], span.kv[:, :, :, :40])


def test_answers_behind_gathered_kv_are_the_same(runner: Runner, arena: Arena, prompts: Prompts) -> None:
    ids, span, again = prompts(44), runner.new_span(64), runner.new_span(64)
    expected = greedy(runner, span, runner.prefill_chunk(span, ids))
    rows = arena.reserve(5)
    assert rows is not None
    arena.scatter(span, 0, rows)
    arena.gather(rows, again)
    assert greedy(runner, again, runner.prefill_chunk(again, ids[40:])) == expected


def test_scatter_refuses_blocks_that_are_not_computed(runner: Runner, arena: Arena, prompts: Prompts) -> None:
    span = runner.new_span(48)
    runner.prefill_chunk(span, prompts(15))
    rows = arena.reserve(2)
    assert rows is not None
    with pytest.raises(ValueError, match="has no block 1"):
        arena.scatter(span, 0, rows)


def test_a_span_that_is_full_refuses_more(runner: Runner, prompts: Prompts) -> None:
    span = runner.new_span(8)
    with pytest.raises(ValueError, match="do not fit"):
        runner.prefill_chunk(span, prompts(9))


def test_the_probe_is_the_same_every_time(runner: Runner) -> None:
    assert np.array_equal(runner.probe(), runner.probe())


def test_the_probe_shows_other_weights(runner: Runner, tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(tiny_folder, folder)
    torch.manual_seed(8)
    runner.model.__class__(runner.config).save_pretrained(folder)
    assert not np.allclose(Runner(folder, block_tokens=8).probe(), runner.probe(), atol=1e-3)


def test_the_namespace_has_no_path_of_this_machine(runner: Runner, tiny_folder: Path) -> None:
    assert str(tiny_folder.parent) not in repr(runner.namespace_fields())


def test_a_sliding_window_is_refused_by_name(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, sliding_window=16
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="sliding_attention"):
        Runner(tmp_path)


def test_a_state_space_model_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="linear_attention"):
        Runner(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        shutil.copy(tiny_folder / file, tmp_path)
    with pytest.raises(ModelError):
        Runner(tmp_path)


def test_a_context_beyond_the_models_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match="write 2 to 512"):
        Runner(tiny_folder, max_tokens=513)


def test_an_unknown_dtype_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match="float32"):
        Runner(tiny_folder, dtype="int3")
