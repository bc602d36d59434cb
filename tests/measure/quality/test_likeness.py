from __future__ import annotations

import pytest
import torch

from kvferry.measure.quality.likeness import mean_cosine


def test_the_same_is_alike() -> None:
    vectors = torch.randn(3, 5, 8)
    assert mean_cosine(vectors, vectors) == 1.0


def test_length_does_not_matter() -> None:
    vectors = torch.randn(3, 5, 8)
    assert mean_cosine(3 * vectors, vectors) == pytest.approx(1.0)


def test_the_mean_is_over_vectors() -> None:
    ours, theirs = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    assert mean_cosine(ours, theirs) == 0.5


def test_two_zeros_are_alike() -> None:
    assert mean_cosine(torch.zeros(2, 4), torch.zeros(2, 4)) == 1.0


def test_a_zero_is_like_nothing_else() -> None:
    assert mean_cosine(torch.zeros(2, 4), torch.ones(2, 4)) == 0.0
