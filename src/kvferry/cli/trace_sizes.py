"""Sizes as `kvferry trace analyze` and `kvferry plan` take them: what a token weighs, what a cache holds.

Owns the way from flags to tokens: an analysis counts in tokens, people in GiB.
"""

from __future__ import annotations

from ..errors import UsageError
from ..model.layouts.setup import Setup
from ..model.open import open_model
from ..model.size import size_of
from ..units import parse_bytes, parse_tokens

__all__ = ["bytes_of", "tokens_of", "weight_of"]

_HEAVIEST = 1 << 30


def weight_of(
    model: str | None, kv_dtype: str, bytes_per_token: float | None
) -> tuple[float | None, str | None]:
    """(bytes a token, the model's name) from --model or --bytes-per-token; None where neither is given.

    What grows with every token, over all ranks; states of fixed size do not count. Raises `UsageError`.
    """
    if model is not None and bytes_per_token is not None:
        raise UsageError("--model and --bytes-per-token: give one of them")
    if bytes_per_token is not None:
        if not 0 < bytes_per_token <= _HEAVIEST:
            raise UsageError(
                f"--bytes-per-token: {bytes_per_token} is no token's weight; write a number above 0, at most "
                f"{_HEAVIEST:,}, as kvferry size MODEL prints it"
            )
        return bytes_per_token, None
    if model is None:
        return None, None
    size = size_of(open_model(model), Setup(key_dtype=kv_dtype, value_dtype=kv_dtype), layers=False)
    if not size.growing_bytes_per_token_total:
        raise UsageError(
            f"--model: nothing of {size.source} grows with the prompt, so there is no block to share"
        )
    return size.growing_bytes_per_token_total, size.source


def bytes_of(text: str | None, flag: str) -> int:
    """A size; 0 where it was not given."""
    return 0 if text is None else parse_bytes(text, flag)


def tokens_of(size_bytes: int | None, tokens: str | None, weight: float | None, flag: str) -> int | None:
    """Tokens of a capacity given in bytes or as such.

    Raises `UsageError` for both, and for bytes where a token has no weight.
    """
    if size_bytes is not None and tokens is not None:
        raise UsageError(f"{flag} and {flag}-tokens: give one of them")
    if tokens is not None:
        return parse_tokens(tokens, f"{flag}-tokens")
    if size_bytes is None:
        return None
    if weight is None:
        raise UsageError(
            f"{flag}: bytes say nothing without a token's weight; add --model or --bytes-per-token, or write "
            f"{flag}-tokens"
        )
    return int(size_bytes / weight)
