"""Two tiny models of different families, each trained for a few seconds on texts of few words.

A text repeats five words of forty-eight. A reader that has seen what came before is sure of five words, one
that has not must learn them: so a context is worth something, and a map that carries it can be told from one
that does not. The two cut text differently: one into words, one into pieces of them.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HAVE_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None
collect_ignore_glob = [] if HAVE_TORCH else ["test_*.py"]

if HAVE_TORCH:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

    from kvferry.engines.transformers.capture import Captured
    from kvferry.handoff.mapping.texts import Document
    from kvferry.measure.crossing.facts import fact_documents

WORDS, USED = 48, 5
SYLLABLES = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "du", "pe", "ga"]


def lexicon() -> list[str]:
    every = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES[:4]]
    return random.Random(5).sample(every, WORDS)


def text_of(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(draw.sample(lexicon(), USED), k=words))


def texts(seed: int, count: int, words: int = 60) -> list[str]:
    draw = random.Random(seed)
    return [text_of(draw, words) for _ in range(count)]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    if HAVE_TORCH:
        torch.set_num_threads(1)


def tokenizer_of(pieces: bool) -> Any:
    """Word by word; or in pieces of words, with a mark before the text."""
    # Words of the agents' documents are one token each for the one, several for the other.
    sample = texts(1, 200) + [one.text + one.restated for one in fact_documents(60, seed=1, side="test")]
    trainer = trainers.BpeTrainer(
        vocab_size=290 if pieces else 700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(sample, trainer)
    if pieces:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def grown(config: Any, tokenizer: Any, name: str, steps: int) -> Captured:
    """A model trained for a moment on windows of such texts."""
    torch.manual_seed(11)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sample = [tokenizer(text)["input_ids"][:48] for text in texts(2, 1500)]
    draw = random.Random(3)
    for _ in range(steps):
        batch = torch.tensor(list(draw.sample(sample, 32)))
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.zero_grad()
    model.train(False)
    return Captured(
        model, name=name, weights_revision=f"{name}-1", tokenizer_revision=name, tokenizer=tokenizer
    )


@pytest.fixture(scope="session")
def target() -> Captured:
    tokenizer = tokenizer_of(pieces=False)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return grown(config, tokenizer, "words", 120)


@pytest.fixture(scope="session")
def source() -> Captured:
    tokenizer = tokenizer_of(pieces=True)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
    )
    return grown(config, tokenizer, "pieces", 120)


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return [Document(f"train-{at}", text) for at, text in enumerate(texts(21, 300, 80))]


@pytest.fixture(scope="session")
def validation() -> list[Document]:
    return [Document(f"validation-{at}", text) for at, text in enumerate(texts(23, 60, 80))]


@pytest.fixture(scope="session")
def held_out() -> list[Document]:
    return [Document(f"test-{at}", text) for at, text in enumerate(texts(22, 80, 80))]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "training.checkpoint"
