"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

Owns three kinds: SmolLM's and Qwen2's byte-level BPE, and Gemma's SentencePiece BPE, whose merges a GGUF file
leaves out: every way of cutting a token in two tokens is one, and they rank as the tokens do that they make.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ModelError
from .gguf_fields import Fields

__all__ = ["write_tokenizer"]

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
"""GGUF token types. Control tokens and user-defined ones are matched as a whole; only the latter are text."""

_SPACE = "\u2581"
"""What SentencePiece writes for a space."""

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(fields: Fields, folder: Path, kinds: Sequence[tuple[str, str]]) -> None:
    """Write both files. `kinds` are those that the model's architecture comes with. Raises ModelError."""
    from tokenizers import AddedToken, processors

    found = fields.text("tokenizer.ggml.model"), fields.text("tokenizer.ggml.pre")
    if found not in kinds:
        known = " or ".join("/".join(kind) for kind in kinds)
        raise ModelError(f"{fields.source}: tokenizer {'/'.join(found)} is not converted; only {known} is")
    tokens: list[str] = fields.need("tokenizer.ggml.tokens")
    types: list[int] = fields.need("tokenizer.ggml.token_type")
    at = fields.get("tokenizer.ggml.unknown_token_id")
    unknown = None if at is None else tokens[int(at)]
    if found[0] == "llama":
        tokens = [_spelled(token, kind) for token, kind in zip(tokens, types, strict=True)]
        tokenizer = _sentencepiece(tokens, types, unknown)
    else:
        merges = [tuple(merge.split(" ", 1)) for merge in fields.need("tokenizer.ggml.merges")]
        tokenizer = _byte_level(tokens, merges, unknown, found[1])
    typed = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token, kind in typed if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, kind in typed if kind == _USER_DEFINED]
    )
    begins = bool(fields.get("tokenizer.ggml.add_bos_token"))
    begin = tokens[fields.number("tokenizer.ggml.bos_token_id")]
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A",
            pair=f"{begin} $A {begin} $B",
            special_tokens=[(begin, fields.number("tokenizer.ggml.bos_token_id"))],
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": tokens[fields.number("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[fields.number("tokenizer.ggml.padding_token_id")],
        "model_max_length": fields.number(fields.of("context_length")),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": begins,
    }
    if unknown is not None:
        settings["unk_token"] = unknown
    if (template := fields.get("tokenizer.chat_template")) is not None:
        settings["chat_template"] = template
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _byte_level(tokens: Sequence[str], merges: Sequence[Any], unknown: str | None, words: str) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(tokens), merges=merges, unk_token=unknown))
    if words == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        parts = [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    else:
        # A digit is a word of its own; the rest is split by the GPT-2 pattern of ByteLevel.
        parts = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens: Sequence[str], types: Sequence[int], unknown: str | None) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    model = models.BPE(
        vocab=_vocabulary(tokens),
        merges=_merges(tokens, types),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _merges(tokens: Sequence[str], types: Sequence[int]) -> list[tuple[str, str]]:
    """Cuts of every token into two, in the order of tokens, then of the two parts."""
    text = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_NORMAL, _USER_DEFINED)
    }
    found = []
    for token in text:
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [(left, right) for left, right in cuts if left in text and right in text]
        found += sorted(known, key=lambda cut: (text[cut[0]], text[cut[1]]))
    return found


def _spelled(token: str, kind: int) -> str:
    """GGUF writes runs of spaces, which are user-defined, as spaces."""
    return token.replace(" ", _SPACE) if kind == _USER_DEFINED else token


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}
