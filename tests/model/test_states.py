"""Numbers of a state, against the widths that the papers give, and how ranks divide them."""

from __future__ import annotations

import pytest

from kvferry.errors import ModelError
from kvferry.model.states import gated_delta, key_delta, lightning, mamba1, mamba2, rg_lru, short_conv

GDN = gated_delta(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4)


def test_gated_delta() -> None:
    assert (GDN.conv_width(1), GDN.matrix_numbers(1)) == (2 * 16 * 128 + 32 * 128, 32 * 128 * 128)


def test_gated_delta_is_divided() -> None:
    assert (GDN.conv_width(2), GDN.matrix_numbers(2)) == (4096, 16 * 128 * 128)


def test_key_delta_has_three_convolutions() -> None:
    state = key_delta(heads=32, head_dim=128, kernel=4)
    assert (state.conv_width(2), state.matrix_numbers(2)) == (3 * 32 * 128 // 2, 16 * 128 * 128)
    assert state.always_float32


def test_lightning_has_no_convolution() -> None:
    state = lightning(heads=64, head_dim=128)
    assert (state.kernel, state.matrix_numbers(8)) == (0, 8 * 128 * 128)


def test_mamba1() -> None:
    state = mamba1(inner=8192, state_size=16, kernel=4)
    assert (state.conv_width(2), state.matrix_numbers(2)) == (4096, 4096 * 16)


def test_mamba2_divides_groups_where_it_can() -> None:
    state = mamba2(heads=128, head_dim=80, groups=8, state_size=128, kernel=4)
    assert state.conv_width(1) == 10_240 + 2 * 8 * 128
    assert state.conv_width(4) == 2560 + 2 * 2 * 128


def test_mamba2_replicates_a_single_group() -> None:
    state = mamba2(heads=48, head_dim=64, groups=1, state_size=128, kernel=4)
    assert state.conv_width(4) == 768 + 2 * 128


def test_short_convolution_has_no_matrix() -> None:
    state = short_conv(width=2048, kernel=3)
    assert (state.conv_width(1), state.matrix_numbers(1)) == (2048, 0)


def test_rg_lru_is_one_number_a_channel() -> None:
    assert rg_lru(width=2560, kernel=4).matrix_numbers(1) == 2560


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ModelError, match=r"--tp 3 does not divide the 32 heads"):
        GDN.matrix_numbers(3)
