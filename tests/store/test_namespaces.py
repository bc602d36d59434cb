"""The first replica sets the probe; others are let in by numerics, not by names."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kvferry.errors import FormatError
from kvferry.store.memory import MemoryTier
from kvferry.store.namespaces import Joined, Refused, join, manifests, others, relative_errors

DIGEST = b"d" * 32
FIELDS = {"model": "m", "block_tokens": 32}


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier(1 << 20)


@pytest.fixture
def probe() -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((4, 2, 3, 8)).astype(np.float32)


def enter(
    tier: MemoryTier, probe: NDArray[np.float32], release: str = "1", digest: bytes = DIGEST
) -> Joined | Refused:
    return join(tier, digest, FIELDS, {"kvferry": release}, probe, 1e-3, 1.0)


def test_the_first_sets_the_probe(tier: MemoryTier, probe: NDArray[np.float32]) -> None:
    assert enter(tier, probe) == Joined(first=True, worst_error=0.0)


def test_the_same_numbers_are_let_in(tier: MemoryTier, probe: NDArray[np.float32]) -> None:
    enter(tier, probe)
    answer = enter(tier, probe * np.float32(1 + 1e-5))
    assert isinstance(answer, Joined)
    assert not answer.first
    assert answer.worst_error == pytest.approx(1e-5, rel=0.1)


def test_one_layer_that_differs_is_refused_with_the_numbers(
    tier: MemoryTier, probe: NDArray[np.float32]
) -> None:
    enter(tier, probe)
    other = probe.copy()
    other[2] *= 1.5
    answer = enter(tier, other)
    assert isinstance(answer, Refused)
    assert answer.worst_index == 2
    assert answer.worst_error == pytest.approx(0.5, rel=1e-3)
    assert "other weights" in answer.reason


def test_another_shape_is_refused(tier: MemoryTier, probe: NDArray[np.float32]) -> None:
    enter(tier, probe)
    assert isinstance(enter(tier, probe[:3]), Refused)


def test_a_probe_that_is_not_finite_is_refused(tier: MemoryTier, probe: NDArray[np.float32]) -> None:
    probe[0, 0, 0, 0] = np.nan
    assert isinstance(enter(tier, probe), Refused)
    assert tier.notes("", 1.0) == []


def test_manifests_of_all_who_joined(tier: MemoryTier, probe: NDArray[np.float32]) -> None:
    for release in ("1", "2", "1"):
        enter(tier, probe, release)
    enter(tier, probe + 1, "3")
    releases = sorted(manifest["kvferry"] for manifest in manifests(tier, DIGEST, 1.0))
    assert releases == ["1", "2"]


def test_others_lists_namespaces_with_their_fields(tier: MemoryTier, probe: NDArray[np.float32]) -> None:
    enter(tier, probe)
    enter(tier, probe, digest=b"e" * 32)
    assert others(tier, 1.0) == {DIGEST: FIELDS, b"e" * 32: FIELDS}
    assert others(tier, 1.0, than=DIGEST) == {b"e" * 32: FIELDS}


def test_a_damaged_probe_is_told(tier: MemoryTier, probe: NDArray[np.float32]) -> None:
    enter(tier, probe)
    tier.write_note(f"namespaces/{DIGEST.hex()}/probe", b"junk", 1.0)
    with pytest.raises(FormatError, match="purge"):
        enter(tier, probe)


def test_a_layer_of_zeros_compares_with_zeros_only() -> None:
    zeros, ones = np.zeros((1, 3)), np.ones((1, 3))
    assert relative_errors(zeros, zeros) == [0]
    assert relative_errors(ones, zeros) == [np.inf]
