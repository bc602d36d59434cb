"""Non-negative least squares over a few features, from sums that can be merged.

The sums (Gram matrix, right-hand side) are all that is kept of the observations, so memory is constant,
merging is addition, and a saved model goes on learning where it stopped. Coefficients of time models are
never negative: a negative one would price some transfer below nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

__all__ = ["Sums"]


class Sums:
    """Weighted sums over observations of `width` features."""

    __slots__ = ("gram", "n", "right", "square", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.gram = [[0.0] * width for _ in range(width)]
        self.right = [0.0] * width
        self.square = 0.0
        self.n = 0.0

    def add(self, features: Sequence[float], value: float, weight: float) -> None:
        """Fold one observation: `value` was seen for `features`."""
        gram, right = self.gram, self.right
        for i, x in enumerate(features):
            wx = weight * x
            row = gram[i]
            for j, y in enumerate(features):
                row[j] += wx * y
            right[i] += wx * value
        self.square += weight * value * value
        self.n += 1.0

    def fade(self, factor: float) -> None:
        """Let the past count `factor` of what it did."""
        self.gram = [[x * factor for x in row] for row in self.gram]
        self.right = [x * factor for x in self.right]
        self.square *= factor
        self.n *= factor

    def merged(self, other: Sums) -> Sums:
        """The sums of both sets of observations."""
        both = Sums(self.width)
        both.gram = [
            [x + y for x, y in zip(a, b, strict=True)] for a, b in zip(self.gram, other.gram, strict=True)
        ]
        both.right = [x + y for x, y in zip(self.right, other.right, strict=True)]
        both.square = self.square + other.square
        both.n = self.n + other.n
        return both

    def solve(self, prior: Sequence[tuple[float, float]] | None = None) -> list[float]:
        """Coefficients, none negative, that minimise the weighted squared error.

        `prior[i]` is (weight, value): as if feature i alone had been seen to take `value`, with so much of
        the weight that it has in all observations. A small weight decides between features that the
        observations cannot tell apart, and changes little where they can. With three features every
        support can be tried, which is exact and needs no iteration; mostly the first one is the answer.
        """
        if self.width == 2:
            return self._solve_two(prior or ((0.0, 0.0), (0.0, 0.0)))
        diagonal = [row[i] for i, row in enumerate(self.gram)]
        right = self.right
        if prior is not None:
            right = [r + d * w * v for r, d, (w, v) in zip(right, diagonal, prior, strict=True)]
            diagonal = [d * (1.0 + w) for d, (w, _) in zip(diagonal, prior, strict=True)]
        free = self._solve_on(range(self.width), diagonal, right)
        if free is not None and min(free) >= 0.0:
            return free
        best: list[float] = [0.0] * self.width
        best_gain = 0.0
        for size in range(self.width - 1, 0, -1):
            for support in combinations(range(self.width), size):
                solution = self._solve_on(support, diagonal, right)
                if solution is None or min(solution) < 0.0:
                    continue
                # At its optimum a support takes this much off the squared error.
                gain = sum(x * right[i] for i, x in zip(support, solution, strict=True))
                if gain > best_gain * (1.0 + 1e-12):
                    best, best_gain = [0.0] * self.width, gain
                    for index, value in zip(support, solution, strict=True):
                        best[index] = value
        return best

    def _solve_on(
        self, support: Sequence[int], diagonal: Sequence[float], right: Sequence[float]
    ) -> list[float] | None:
        """Gaussian elimination with pivoting, scaled to a unit diagonal; None where it is singular."""
        size = len(support)
        if min(diagonal[i] for i in support) <= 0.0:
            return None
        if size == 1:
            return [right[support[0]] / diagonal[support[0]]]
        scale = [diagonal[i] ** -0.5 for i in support]
        rows = [
            [1.0 if p == q else self.gram[i][j] * scale[p] * scale[q] for q, j in enumerate(support)]
            + [right[i] * scale[p]]
            for p, i in enumerate(support)
        ]
        for column in range(size):
            pivot = max(range(column, size), key=lambda r: abs(rows[r][column]))
            if abs(rows[pivot][column]) < 1e-10:
                return None
            rows[column], rows[pivot] = rows[pivot], rows[column]
            head = rows[column]
            for r in range(column + 1, size):
                factor = rows[r][column] / head[column]
                if factor:
                    rows[r] = [a - factor * b for a, b in zip(rows[r], head, strict=True)]
        solution = [0.0] * size
        for r in reversed(range(size)):
            rest = sum(rows[r][q] * solution[q] for q in range(r + 1, size))
            solution[r] = (rows[r][size] - rest) / rows[r][r]
        return [x * s for x, s in zip(solution, scale, strict=True)]

    def _solve_two(self, prior: Sequence[tuple[float, float]]) -> list[float]:
        """The same for two features, written out: every transfer solves one."""
        (p, off), (_, q) = self.gram
        x, y = self.right
        (first_weight, first), (second_weight, second) = prior
        x += p * first_weight * first
        y += q * second_weight * second
        p *= 1.0 + first_weight
        q *= 1.0 + second_weight
        determinant = p * q - off * off
        if determinant > 1e-10 * p * q:
            first, second = (x * q - off * y) / determinant, (y * p - off * x) / determinant
            if first >= 0.0 and second >= 0.0:
                return [first, second]
        # One of them explains it alone: the one that takes more off the squared error.
        first = max(0.0, x / p) if p > 0.0 else 0.0
        second = max(0.0, y / q) if q > 0.0 else 0.0
        return [0.0, second] if second * y >= first * x else [first, 0.0]
