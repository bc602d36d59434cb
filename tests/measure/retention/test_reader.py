"""Reading on from given KV says what reading everything says."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from kvferry.engines.transformers.capture import Captured
from kvferry.errors import ModelError
from kvferry.measure.retention.reader import Reader, read_context

TEXT = "abcd dcba acbd bcda aabb ccdd"


def whole(reader: Reader, ids: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities at each token but the first."""
    return reader.behind(None, 0, ids[:1], [ids[1:]])[0]


def test_behind_kv_is_as_behind_text(reader: Reader) -> None:
    ids, _ = reader.tokens(TEXT)
    (found,) = reader.behind(reader.prefill(ids[:10]).layers, 10, ids[10:11], [ids[11:]])
    torch.testing.assert_close(found, whole(reader, ids)[10:], atol=1e-4, rtol=1e-4)


def test_rows_do_not_see_each_other(reader: Reader) -> None:
    ids, _ = reader.tokens(TEXT)
    layers, rows = reader.prefill(ids[:10]).layers, [ids[11:13], ids[12:20], ids[15:16]]
    together = reader.behind(layers, 10, ids[10:11], rows)
    for row, found in zip(rows, together, strict=True):
        (alone,) = reader.behind(layers, 10, ids[10:11], [row])
        assert found.shape == alone.shape
        torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)


def test_a_context_further_behind_says_the_same(reader: Reader) -> None:
    ids, _ = reader.tokens(TEXT)
    (near,) = reader.behind(reader.prefill(ids[:10]).layers, 10, ids[10:11], [ids[11:]])
    (far,) = reader.behind(reader.prefill(ids[:10], offset=300).layers, 310, ids[10:11], [ids[11:]])
    torch.testing.assert_close(far, near, atol=1e-3, rtol=1e-3)


def test_reading_on_gives_the_tokens_own_kv(reader: Reader) -> None:
    ids, _ = reader.tokens(TEXT)
    all_of_it = reader.prefill(ids).layers
    said, own = reader.read_on(reader.prefill(ids[:10]).layers, ids[10:])
    torch.testing.assert_close(own[1].keys, all_of_it[1].keys[:, 10:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(said[:-1], whole(reader, ids)[10:], atol=1e-4, rtol=1e-4)


def test_spans_are_the_characters_of_each_token(reader: Reader) -> None:
    context = read_context(TEXT, reader, reader)
    assert "".join(TEXT[start:stop] for start, stop in context.target_spans) == TEXT


@pytest.mark.parametrize(
    ("text", "tokens", "left"),
    [
        ("aa bb cc", 6, "aa bb"),
        ("aa bb", 99, "aa bb"),
        ("aaaa", 2, "aa"),
        ("a " + "b" * 90, 60, "a " + "b" * 58),
    ],
)
def test_a_cut_falls_between_words(reader: Reader, text: str, tokens: int, left: str) -> None:
    assert text[: reader.cut(text, tokens)] == left


def test_a_continuation_is_cut_as_behind_its_context(reader: Reader) -> None:
    whole_ids = reader.tokens("abcd efgh")[0]
    assert reader.continued("abcd", " efgh") == whole_ids[4:]


@pytest.mark.parametrize(("tokens", "characters"), [(0, 0), (3, 3), (4, 3), (5, 3), (6, 4), (7, 5), (99, 7)])
def test_characters_of_the_first_tokens(reader: Reader, tokens: int, characters: int) -> None:
    """Each token is a byte; the third character has three."""
    found = reader.characters("abcd", " e\u2028fgh ", tokens)
    assert found == characters


def test_a_tokenizer_without_characters_is_refused(model: Captured) -> None:
    bare = Captured(model.model, name="bare", weights_revision="1", tokenizer_revision="t")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Reader(bare)


def test_more_tokens_than_a_window_keeps_are_refused(model: Captured) -> None:
    config = Gemma3TextConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )
    sliding = Captured(
        AutoModelForCausalLM.from_config(config).train(False),
        name="sliding",
        weights_revision="1",
        tokenizer_revision="t",
        tokenizer=model.tokenizer,
    )
    reader = Reader(sliding)
    layers = reader.prefill(range(20)).layers
    reader.read_on(layers, range(7))
    with pytest.raises(ModelError, match="keeps 7 positions"):
        reader.read_on(layers, range(8))
