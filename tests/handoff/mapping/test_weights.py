"""Sensitivities are the squared derivatives of attention that they claim to be."""

from __future__ import annotations

import pytest
import torch

from kvferry.handoff.mapping import weights
from kvferry.handoff.mapping.weights import boundaries, sensitivity

HEADS, GROUP, TOKENS, WIDTH = 2, 3, 9, 4
SCALE = 0.6


@pytest.fixture
def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return (
        torch.randn(HEADS * GROUP, TOKENS, WIDTH, generator=generator),
        torch.randn(HEADS, TOKENS, WIDTH, generator=generator),
        torch.randn(HEADS, TOKENS, WIDTH, generator=generator),
    )


def by_autograd(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared derivatives of the outputs of the query at `end` by keys and by values, [KV heads, end]."""
    query = queries[:, end].reshape(HEADS, GROUP, WIDTH)

    def attend(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (query @ k.transpose(1, 2) * SCALE).softmax(-1) @ v

    by_key, by_value = torch.autograd.functional.jacobian(attend, (keys[:, : end + 1], values[:, : end + 1]))
    own = torch.arange(HEADS)
    # The derivatives of a KV head's own queries: others' are zero.
    squares = [one[own, :, :, own].square().sum((1, 2, 4))[:, :end] for one in (by_key, by_value)]
    return squares[0], squares[1] / WIDTH


def test_one_boundary_against_autograd(
    parts: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "boundaries", lambda tokens, count: [6])
    ours = sensitivity(*parts, scale=SCALE)
    for one, theirs in zip(ours, by_autograd(*parts, 6), strict=True):
        expected = torch.zeros(HEADS, TOKENS)
        expected[:, :6] = theirs
        torch.testing.assert_close(one, expected / expected.mean(1, keepdim=True), atol=1e-5, rtol=1e-4)


def test_their_mean_is_one(parts: tuple[torch.Tensor, ...]) -> None:
    for one in sensitivity(*parts, scale=SCALE):
        torch.testing.assert_close(one.mean(1), torch.ones(HEADS))


def test_a_position_is_judged_only_by_later_queries(parts: tuple[torch.Tensor, ...]) -> None:
    queries, keys, values = parts
    before = sensitivity(queries, keys, values, scale=SCALE)
    earlier = queries.clone()
    earlier[:, 0] += 5.0
    after = sensitivity(earlier, keys, values, scale=SCALE)
    torch.testing.assert_close(after, before)


def test_what_no_later_query_sees_weighs_nothing(
    parts: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "boundaries", lambda tokens, count: [8])
    for one in sensitivity(*parts, scale=SCALE, window=4):
        assert ((one == 0) == torch.tensor([True] * 5 + [False] * 3 + [True])).all()


@pytest.mark.parametrize("tokens", [2, 3, 40, 4096])
def test_boundaries_are_spaced_from_one_to_the_last_token(tokens: int) -> None:
    found = boundaries(tokens)
    assert (found[0], found[-1], len(found) <= 32) == (1, tokens - 1, True)


def test_one_token_has_no_boundary_and_an_even_weight() -> None:
    one = torch.ones(1, 1, 4)
    assert [float(part) for part in sensitivity(one, one, one, scale=1.0)] == [1.0, 1.0]
