"""The measurement measures what it says."""

from __future__ import annotations

import pytest
import torch

from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rows import Recipe
from kvferry.handoff.mapping.speed import Speed, measure_speed

from .planted import Planted, Source, model_kv, text_of


@pytest.fixture(scope="module")
def speed() -> Speed:
    source = Source(model_kv("s", 2, 2, 6))
    target = Planted(model_kv("t", 2, 2, 6), source, (0, 1), (1, 0))
    mapper = fit_map(source, target, text_of(6), Recipe(weighted=False, most_layers=1, warm_rows=128))
    return measure_speed(mapper, source, target, list(range(40)), offset=500, repeats=2)


def test_the_bytes_are_those_of_the_target_s_cache(speed: Speed) -> None:
    assert speed.mapped_bytes == 2 * 2 * 2 * 6 * 40 * torch.float32.itemsize


def test_mapped_and_native_kv_stand_at_the_same_positions(speed: Speed) -> None:
    assert (speed.key_cosine, speed.value_cosine) == pytest.approx((1.0, 1.0), abs=1e-3)


def test_ratios_are_of_the_seconds(speed: Speed) -> None:
    assert speed.times_faster_than_prefill == speed.target_prefill_seconds / speed.apply_seconds
    assert speed.mapped_bytes_per_second == speed.mapped_bytes / speed.apply_seconds
