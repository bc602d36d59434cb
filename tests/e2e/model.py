"""Tiny random Llamas with a byte tokenizer: real models whose prefill takes milliseconds."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BLOCK_BYTES", "BLOCK_TOKENS", "CONTEXT", "VOCABULARY", "save_tiny_llama"]

BLOCK_TOKENS = 8
CONTEXT = 512
VOCABULARY = 260
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 4  # layers, K and V, KV heads, width, float32
BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


def save_tiny_llama(folder: Path, seed: int) -> Path:
    """Two layers of random weights drawn from `seed`; the configuration and tokenizer are always the same."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        eos_token_id=257,
        bos_token_id=256,
        pad_token_id=257,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    specials = ["<s>", "</s>", "<user>", "<bot>"]
    words = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()) + specials)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>")
    wrapped.chat_template = "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}<bot>"
    wrapped.save_pretrained(folder)
    return folder
