"""What became of the tokens of a prompt that was to be handed over. Always sums to the prompt.

KV that another replica computed for this very request is a hand-off: never a local hit, never a pool hit.
"""

from __future__ import annotations

from ...outcomes import Outcome

__all__ = ["book"]


def book(
    prompt_tokens: int, handed_tokens: int, *, local_tokens: int = 0, cause: Outcome | None = None
) -> dict[Outcome, int]:
    """The ledger: `handed_tokens` behind `local_tokens` were to come; `cause` says why they did not.

    What is left is the receiver's to compute in any case. Raises ValueError where the parts do not fit.
    """
    rest = prompt_tokens - local_tokens - handed_tokens
    if min(rest, handed_tokens, local_tokens) < 0:
        raise ValueError(f"{local_tokens} + {handed_tokens} tokens of a prompt of {prompt_tokens}")
    parts = {
        Outcome.DEVICE_HIT: local_tokens,
        Outcome.HANDOFF if cause is None else cause: handed_tokens,
        Outcome.NOT_CACHEABLE: rest,
    }
    return {outcome: tokens for outcome, tokens in parts.items() if tokens}
