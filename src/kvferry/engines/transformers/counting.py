"""Counts tokens without loading a model: what an experiment needs to cut its prompts to length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from ...errors import ModelError

__all__ = ["token_counter"]


def token_counter(folder: Path) -> Callable[[str], int]:
    """How many tokens a text has for the model in `folder`, special tokens not counted.

    Raises ModelError when the folder has no tokenizer.json.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer.json; save the model's fast tokenizer there")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
