"""How long a prefill takes: a + b n + c n (context + n / 2), learned from the engine's own steps.

n is the number of new tokens of a step, context the tokens before them; the last term is attention, summed
over the step. The engine computes a long prompt in chunks, so a prompt of n tokens pays `a` once a chunk,
while the other two terms add up to the same whatever the chunks are.
"""

from __future__ import annotations

from math import ceil

from .least_squares import Sums
from .spread import Spread

__all__ = ["PrefillModel"]

_FADE = 0.98
_SPREAD_FADE = 0.95
# Where steps of one size only have been seen, the constant and the linear term cannot be told apart: the
# prior lets the linear one carry the time.
_PRIOR = ((1e-4, 0.0), (0.0, 0.0), (1e-6, 0.0))


class PrefillModel:
    """Seconds of prefill on this replica, with the spread of what was predicted."""

    __slots__ = ("_coefficients", "n", "spread", "sums", "tokens_seen")

    def __init__(self) -> None:
        self.sums = Sums(3)
        self.spread = Spread(assumed=1.3, fade=_SPREAD_FADE)
        self.n = 0
        self.tokens_seen = 0
        self._coefficients: tuple[float, float, float] | None = None

    @property
    def known(self) -> bool:
        """Whether any step has been observed."""
        return self.n > 0

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """(a, b, c) in seconds, seconds per token, seconds per token pair."""
        if self._coefficients is None:
            a, b, c = self.sums.solve(_PRIOR)
            self._coefficients = (a, b, c)
        return self._coefficients

    def observe(self, tokens: int, context: int, seconds: float) -> None:
        """Fold one step that computed `tokens` tokens after `context` others in `seconds`."""
        if tokens <= 0 or seconds <= 0.0:
            return
        if self.n >= 3:
            predicted = self.seconds(tokens, context, chunk=tokens)
            if predicted > 0.0:
                self.spread.observe(seconds / predicted)
        self.sums.fade(_FADE)
        # Relative errors count: a step that stalled must not outweigh the many that did not.
        self.sums.add((1.0, tokens, tokens * (context + tokens / 2)), seconds, 1.0 / (seconds * seconds))
        self.n += 1
        self.tokens_seen += tokens
        self._coefficients = None

    def seconds(self, tokens: int, context: int, chunk: int) -> float:
        """Predicted seconds for `tokens` new tokens after `context`, in chunks of `chunk`."""
        if tokens <= 0:
            return 0.0
        a, b, c = self.coefficients
        return a * ceil(tokens / chunk) + b * tokens + c * tokens * (context + tokens / 2)

    def merged(self, other: PrefillModel) -> PrefillModel:
        """What both have seen."""
        both = PrefillModel()
        both.sums = self.sums.merged(other.sums)
        both.spread = self.spread.merged(other.spread)
        both.n = self.n + other.n
        both.tokens_seen = self.tokens_seen + other.tokens_seen
        return both
