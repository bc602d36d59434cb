from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import ConfigError
from kvferry.units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 * 2**30),
        ("16GB", 16 * 10**9),
        ("64 MB", 64_000_000),
        ("1.5GiB", 3 * 2**29),
        ("1_073_741_824B", 2**30),
        ("0B", 0),
        (" 1kB ", 1000),
        (17, 17),
    ],
)
def test_a_size_is_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("16", "write 16GiB or 1073741824B"),
        ("64Mb", "MB"),
        ("16gib", "GiB"),
        ("1KB", "kB"),
        ("-1B", "write"),
        ("1.5B", "whole number of bytes"),
        ("", "write"),
        ("B", "write"),
        ("1e3B", "write"),
        ("99999999PiB", "more than any machine"),
        ("25Gbit", "unknown unit"),
        ("٣B", "write"),
        (-1, "negative"),
        (True, "write"),
        (None, "write"),
        (1.5, "write"),
    ],
)
def test_a_size_that_cannot_be_read_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=r"^pool size: ") as caught:
        parse_bytes(text, "pool size")
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5ms", 0.005),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("7ns", 7e-9),
        ("30s", 30.0),
        ("1.5min", 90.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        (0.25, 0.25),
        (3, 3.0),
    ],
)
def test_a_span_is_read(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "advice"),
    [("5", "has no unit"), ("5m", "min, ms"), ("5S", "case decides"), ("5sec", "unknown unit"), (-1, "5ms"),
     (math.nan, "5ms"), (math.inf, "5ms"), (False, "5ms"), ("1:30", "5ms"), ("9" * 400 + "s", "beyond")],
)  # fmt: skip
def test_a_span_that_cannot_be_read_says_what_to_write(text: str | float, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_seconds(text)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("8GiB/s", 8 * 2**30), ("3.1GB/s", 3.1e9), ("25Gbit/s", 3.125e9), ("8bit/s", 1.0), ("1Kibit/s", 128.0)],
)
def test_a_rate_is_read(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "advice"),
    [("8GiB", "8GiB/s"), ("10Gbps", "Gbit/s"), ("8", "has no unit"), ("0B/s", "zero"), ("8gib/s", "GiB/s")],
)
def test_a_rate_that_cannot_be_read_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rate(text)
    assert advice in str(caught.value)


@pytest.mark.parametrize(("text", "tokens"), [("4096", 4096), ("32k", 32_000), ("32Ki", 32_768), (7, 7)])
def test_tokens_are_read(text: str | int, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["32K", "1.5", "4096t", -1, True])
def test_tokens_that_cannot_be_read_say_what_to_write(text: str | int) -> None:
    with pytest.raises(ConfigError, match="4096"):
        parse_tokens(text)


@given(st.integers(0, 2**63 - 1))
def test_an_exact_size_reads_back(size: int) -> None:
    assert parse_bytes(format_bytes(size, exact=True)) == size


@given(st.floats(0, 1e12, allow_nan=False))
def test_an_exact_span_reads_back(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds, exact=True)) == seconds


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_seconds, parse_rate, parse_tokens):
        try:
            assert parse(text) >= 0
        except ConfigError:
            continue


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_bytes(4.5 * 2**30), "4.5 GiB"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(0), "0 B"),
        (format_bytes(-(2**20)), "-1 MiB"),
        (format_seconds(0.03525), "35.25 ms"),
        (format_seconds(0.129), "129 ms"),
        (format_seconds(0), "0 s"),
        (format_seconds(-0.5), "-500 ms"),
        (format_seconds(7300), "2.028 h"),
        (format_seconds(math.inf), "inf"),
        (format_rate(8 * 2**30), "8 GiB/s"),
    ],
)
def test_amounts_are_shown_with_the_unit_they_fill(shown: str, expected: str) -> None:
    assert shown == expected
