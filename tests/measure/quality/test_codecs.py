from __future__ import annotations

import pytest

from kvferry.engines.transformers.runner import Runner
from kvferry.measure.quality.codecs import CodecQuality, measure_codecs
from kvferry.store.codec import Codec


@pytest.fixture(scope="module")
def measured(runner: Runner) -> dict[str, CodecQuality]:
    from kvferry.engines.transformers.build import block_layout
    from kvferry.store.codec import CODECS, open_codec

    codecs = {name: open_codec(name, block_layout(runner)) for name in CODECS}
    ids = [(7 * i * i + 3 * i + 1) % 250 for i in range(45)]
    return measure_codecs(runner, ids, codecs, prefix_tokens=32, greedy_tokens=8)


def test_the_control_shows_no_difference(measured: dict[str, CodecQuality]) -> None:
    assert measured["raw"] == CodecQuality(1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
def test_a_lossy_codec_shows_in_the_kv(measured: dict[str, CodecQuality], name: str) -> None:
    assert 0.98 < measured[name].key_cosine < 1.0
    assert 0.98 < measured[name].value_cosine < 1.0


@pytest.mark.parametrize("name", ["fp8", "int8", "int4"])
def test_a_lossy_codec_shows_in_attention(measured: dict[str, CodecQuality], name: str) -> None:
    one = measured[name]
    assert 0.0 < one.attention_error <= one.worst_attention_error < 0.5


def test_eight_bits_are_nearer_than_four(measured: dict[str, CodecQuality]) -> None:
    assert measured["int8"].attention_error < measured["int4"].attention_error / 4


def test_a_text_that_ends_with_its_prefix_is_refused(
    runner: Runner, codecs: dict[str, Codec], prompt: list[int]
) -> None:
    with pytest.raises(ValueError, match="33 tokens leave nothing to continue behind 32"):
        measure_codecs(runner, prompt[:33], codecs, prefix_tokens=32, greedy_tokens=1)
