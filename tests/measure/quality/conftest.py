"""A tiny random Llama with grouped heads, and codecs for its blocks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HAVE_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None
collect_ignore_glob = [] if HAVE_TORCH else ["test_*.py"]

if HAVE_TORCH:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from kvferry.engines.transformers.build import block_layout
    from kvferry.engines.transformers.runner import Runner
    from kvferry.store.codec import CODECS, Codec, open_codec

BLOCK = 8
PROMPT = [(7 * i * i + 3 * i + 1) % 250 for i in range(45)]


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    folder: Path = tmp_path_factory.mktemp("model") / "tiny-llama"
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=257,
        bos_token_id=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {
        token: at for at, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"])
    }
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    return Runner(folder, block_tokens=BLOCK, threads=1)


@pytest.fixture
def prompt() -> list[int]:
    return list(PROMPT)


@pytest.fixture
def codecs(runner: Runner) -> dict[str, Codec]:
    return {name: open_codec(name, block_layout(runner)) for name in CODECS}
