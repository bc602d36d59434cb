"""Every target token reads the source token that has seen its characters, whatever cut them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from kvferry.errors import ModelError
from kvferry.handoff.crossing.align import Span, align

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Der schöne Größenwahn fällt über die Brücke.",
    "日本語のテキストは空白を使わない。",
    "Привет, мир! Это проверка выравнивания.",
    "مرحبا بالعالم، هذا اختبار",
    "emoji 👩‍👩‍👧 and 🇫🇷 and é as e\u0301",
    "def f(x):\n\treturn  x ** 2\n",
)


def test_equal_tokens_read_their_own() -> None:
    spans = [(0, 3), (3, 7), (7, 8)]
    assert align(spans, spans).read.tolist() == [0, 1, 2]


def test_a_token_reads_the_first_that_has_seen_its_end() -> None:
    source, target = [(0, 4), (4, 6), (6, 10)], [(0, 2), (2, 5), (5, 6), (6, 10)]
    assert align(source, target).read.tolist() == [0, 1, 1, 2]


def test_bytes_of_one_character_read_bytes_in_order() -> None:
    assert align([(0, 1)] * 4, [(0, 1)] * 2).read.tolist() == [1, 3]
    assert align([(0, 1)] * 2, [(0, 1)] * 4).read.tolist() == [0, 0, 1, 1]
    assert align([(0, 1)] * 3, [(0, 1)]).read.tolist() == [2]


def test_bytes_inside_a_longer_source_token_read_it() -> None:
    assert align([(0, 3)], [(0, 1), (1, 2), (1, 2), (2, 3)]).read.tolist() == [0, 0, 0, 0]


def test_a_mark_before_the_text_reads_a_mark_or_nothing() -> None:
    assert align([(0, 0), (0, 4)], [(0, 0), (0, 4)]).read.tolist() == [0, 1]
    assert align([(0, 4)], [(0, 0), (0, 4)]).read.tolist() == [-1, 0]
    assert align([(0, 0), (0, 4)], [(0, 2), (2, 4)]).read.tolist() == [1, 1]
    assert align([(0, 0), (0, 0), (0, 4)], [(0, 0), (0, 4)]).read.tolist() == [0, 2]


def test_a_mark_behind_the_text_reads_the_last_of_it() -> None:
    assert align([(0, 2), (2, 4)], [(0, 4), (0, 0)]).read.tolist() == [1, 1]


def test_a_trimmed_blank_reads_what_came_before_it() -> None:
    assert align([(0, 3), (3, 8)], [(0, 3), (3, 3), (4, 8)]).read.tolist() == [0, 0, 1]


def test_text_that_the_source_trims_reads_the_last_of_it() -> None:
    assert align([(0, 3)], [(0, 3), (3, 5)]).read.tolist() == [0, 0]


def test_what_is_read_has_a_past_or_is_not_grounded() -> None:
    found = align([(0, 0), (0, 4), (4, 6)], [(0, 0), (0, 4), (4, 6)])
    assert found.grounded.tolist() == [False, True, True]
    assert found.reach.tolist() == [1, 2, 3]


def test_spans_that_run_backwards_are_refused() -> None:
    with pytest.raises(ModelError, match="source's token 1 stands for characters 0 to 2"):
        align([(3, 5), (0, 2)], [(0, 5)])


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[Span], list[Span]]:
    length = draw(st.integers(1, 40))

    def cut() -> list[Span]:
        inner = draw(st.sets(st.integers(1, length - 1))) if length > 1 else set()
        return list(pairwise([0, *sorted(inner), length]))

    return cut(), cut()


@given(cuts())
def test_nothing_earlier_would_do(both: tuple[list[Span], list[Span]]) -> None:
    source, target = both
    for (_, stop), at in zip(target, align(source, target).read.tolist(), strict=True):
        assert source[at][1] >= stop
        assert at == 0 or source[at - 1][1] < stop


def byte_pairs() -> Any:
    """As GPT-2 and Llama 3 cut: bytes, paired."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(TEXTS[:2], trainer)
    return made


def fallen_back() -> Any:
    """As Gemma and Llama 2 cut: pieces with blanks in them, bytes for what is in no piece, a mark before."""
    pieces = [
        "<bos>",
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefghijklmnopqrstuvwxyz",
    ]
    words = {piece: at for at, piece in enumerate([*pieces, "th", "the", "▁the", "qu", "ui"])}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("q", "u"), ("u", "i")]
    made = Tokenizer(
        models.BPE(vocab=words, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Replace(" ", "▁")
    made.add_special_tokens(["<bos>"])
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return made


def whole_words() -> Any:
    """As BERT cuts: words without their blanks, anything strange as one unknown."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ours", [byte_pairs, fallen_back, whole_words])
@pytest.mark.parametrize("theirs", [byte_pairs, fallen_back, whole_words])
def test_real_tokenizers_in_many_scripts(ours: Any, theirs: Any, text: str) -> None:
    source, target = ours().encode(text), theirs().encode(text)
    read = align(source.offsets, target.offsets).read.tolist()
    assert len(read) == len(target.ids)
    assert read == sorted(read), "what is read goes forward with the text"
    end = max(stop for _, stop in source.offsets)
    for at, (start, stop) in zip(read, target.offsets, strict=True):
        if stop > start:
            assert source.offsets[at][1] >= min(stop, end)
            assert source.offsets[at][1] > source.offsets[at][0]
