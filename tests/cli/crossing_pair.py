"""Two tiny models of two families with two tokenizers, texts, and the words that train a map between them."""

from __future__ import annotations

from pathlib import Path


def save_words_llama(folder: Path) -> None:
    """A tiny Llama that reads whole words of the agents' documents."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from kvferry.measure.crossing.facts import fact_documents

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    sample = [one.text + one.restated for one in fact_documents(60, seed=1, side="test")]
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(sample, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def save_pair(folder: Path) -> Path:
    """Folders bytes and words, the models; text and other, 60 documents each, some of the same."""
    from ..e2e.model import save_tiny_llama

    save_tiny_llama(folder / "bytes", seed=1)
    save_words_llama(folder / "words")
    for name, first in (("text", 0), ("other", 30)):
        (folder / name).mkdir()
        for at in range(first, first + 60):
            words = [f"{(at * 7919 + word * word) % 9973}" for word in range(200)]
            (folder / name / f"{at}.txt").write_text(" ".join(words))
    return folder


def train_words(place: Path, out: Path, *more: str) -> list[str]:
    return [
        *("train", str(place / "bytes"), str(place / "words"), "--out", str(out)),
        *("--text", str(place / "text"), "--tokens", "300", "--calibration-tokens", "600"),
        *("--context-tokens", "32", "--suffix-tokens", "6", "--hold-back", "1", "--hold-back", "3"),
        *("--source-layers", "2", "--width", "16", "--blocks", "1", "--code-width", "4"),
        *("--held-out", "6", "--threads", "1", *more),
    ]
