"""The matrix of carrying against computing, and the figures that are known for it."""

from __future__ import annotations

import pytest

from kvferry.errors import UsageError
from kvferry.model.channels import AUTHORS, CHANNELS, CODECS, Channel, parse_channel
from kvferry.model.layers import Attention, Layer, Model, Naive
from kvferry.model.open import open_model
from kvferry.model.prefill import attention_flop, linear_flop
from kvferry.model.transfer import Crossing, Transfer, numbers_at, transfer_table

QWEN3_8B = open_model("qwen3-8b")
LINKS = [Channel("25", 3.1e9, ""), Channel("100", 12.5e9, ""), Channel("239", 23.9e9, "")]


def table(context: int, mapper: float | None = None, tflops: float = 100) -> Transfer:
    return transfer_table(
        QWEN3_8B,
        context,
        channels=LINKS,
        codecs=CODECS,
        flop_per_second=tflops * 1e12,
        mapper_bytes_per_second=mapper,
    )


def rows(found: Transfer, codec: str) -> list[Crossing]:
    return [one for one in found.crossings if one.codec == codec]


@pytest.mark.parametrize(("context", "expected"), [(4096, 0.672), (65_536, 10.748)])
def test_prefill_by_the_linear_rule(context: int, expected: float) -> None:
    prefill = table(context).prefill
    assert prefill is not None
    assert round(prefill.linear_seconds or 0, 3) == expected


@pytest.mark.parametrize(("context", "percent"), [(4096, 7), (25_000, 45), (65_536, 118)])
def test_what_attention_adds(context: int, percent: int) -> None:
    prefill = table(context).prefill
    assert prefill is not None
    assert round(100 * (prefill.attention_share or 0)) == percent
    assert prefill.seconds == pytest.approx(
        (prefill.linear_seconds or 0) * (1 + (prefill.attention_share or 0))
    )


@pytest.mark.parametrize("context", [4096, 16_384, 65_536])
@pytest.mark.parametrize(
    ("codec", "expected"),
    [("16 bit", [3.4, 13.7, 26.0]), ("int8", [6.9, 27.5, 51.9]), ("int4", [13.7, 54.9, 103.8])],
)
def test_gains_with_a_mapper_counted_once(context: int, codec: str, expected: list[float]) -> None:
    """By the linear rule they are the same at every context."""
    found = rows(table(context, mapper=1e12), codec)
    assert [round(one.linear_speedup or 0, 1) for one in found] == expected


def test_with_attention_counted_the_gain_grows_with_the_context() -> None:
    short, long = (rows(table(context), "int8")[0].speedup or 0 for context in (4096, 65_536))
    assert long > 2 * short


def test_int8_of_25k_tokens() -> None:
    found = rows(table(25_000), "int8")
    assert round(found[0].bytes / 2**30, 3) == 1.717
    assert [round(1000 * one.transfer_seconds) for one in found] == [595, 147, 77]


@pytest.mark.parametrize(("share", "expected"), [(0.4, 1.04), (0.6, 0.69)])
def test_25k_tokens_on_a_fast_receiver(share: float, expected: float) -> None:
    prefill = table(25_000, tflops=990 * share).prefill
    assert prefill is not None
    assert round(prefill.linear_seconds or 0, 2) == expected


def test_over_25_gbe_int8_still_wins_and_16_bit_loses() -> None:
    found = table(25_000, tflops=990 * 0.4)
    assert (rows(found, "int8")[0].linear_speedup or 0) > 1
    assert (rows(found, "16 bit")[0].linear_speedup or 0) < 1


def test_the_rule_of_thumb_needs_both() -> None:
    holds = [one.rule_holds for one in rows(table(25_000), "int8")]
    assert holds == [True, True, True]
    assert [one.rule_holds for one in rows(table(4096), "int8")] == [False, False, False]


def test_break_even_is_where_both_take_as_long() -> None:
    one = rows(table(16_384), "16 bit")[0]
    prefill = table(16_384, tflops=(one.break_even_flop_per_second or 0) / 1e12).prefill
    assert prefill is not None
    assert prefill.seconds == pytest.approx(one.ready_seconds)


def test_the_claimed_channel_is_marked() -> None:
    (claimed,) = [channel for channel in CHANNELS if channel.source == AUTHORS]
    assert (claimed.name, claimed.bytes_per_second) == ("MCDMA", 23.9e9)


def test_a_window_is_carried_once() -> None:
    model = open_model("gpt-oss-20b")
    assert numbers_at(model, 100_000) == 12 * 1024 * (100_000 + 128)


def test_shared_layers_are_carried_once() -> None:
    assert numbers_at(open_model("gemma-4-e4b"), 1000) == 4 * 2048 * 1000 + 20 * 1024 * 512


def test_a_latent_is_carried_once_whatever_the_ranks() -> None:
    assert numbers_at(open_model("deepseek-r1"), 10) == 61 * 576 * 10


def test_states_travel_as_they_are() -> None:
    found = transfer_table(QWEN3_8B, 16, channels=LINKS, codecs=CODECS, state_bytes=1000)
    assert [one.bytes - 1000 for one in found.crossings[::3]] == [16 * 147_456, 16 * 73_728, 16 * 36_864]


def test_without_weights_there_is_no_prefill() -> None:
    found = transfer_table(open_model("gemma-4-e4b"), 1000, channels=LINKS, codecs=CODECS)
    assert found.prefill is None
    assert found.crossings[0].linear_speedup is None


def test_attention_of_a_window_is_linear_beyond_it() -> None:
    def model(window: int | None, chunked: bool = False) -> Model:
        part = Attention(
            kv_heads=1, key_width=8, value_width=8, window=window, chunked=chunked, query_heads=1
        )
        return Model(
            source="", architecture="", layers=(Layer(part),), naive=Naive(layers=1, kv_heads=1, head_dim=8)
        )

    assert attention_flop(model(None), 1000) == 2 * 16 * 1000**2 / 2
    assert attention_flop(model(100), 1000) == 2 * 16 * (100 * 1000 - 100**2 / 2)
    assert attention_flop(model(100, chunked=True), 1000) == 2 * 16 * 10 * 100**2 / 2
    assert linear_flop(8.2e9, 4096) == pytest.approx(67.17e12, rel=1e-3)


def test_a_channel_of_ones_own() -> None:
    assert parse_channel("lab=12.5GB/s") == Channel("lab", 12.5e9, "given")


@pytest.mark.parametrize("text", ["12.5GB/s", "=12.5GB/s"])
def test_a_channel_without_a_name(text: str) -> None:
    with pytest.raises(UsageError, match="write a name and a rate"):
        parse_channel(text)
