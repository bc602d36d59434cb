"""The cost model against published measurements: fitted on some rows, it must predict the others.

The numbers are read from the collection of published figures where a checkout has one beside it; errors are
printed (`pytest -s`), and asserted only as far as they hold.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvferry.cost.break_even import break_even
from kvferry.cost.prefill import PrefillModel
from kvferry.cost.transfer import LegModel

FIGURES = Path(__file__).parents[3] / "shared" / "data" / "break-even-fixtures.md"
GPT_OSS_BYTES_PER_TOKEN = 36_864
"""gpt-oss-120b: half of 36 layers attend to everything, with 8 KV heads of 64 in bf16."""


@pytest.fixture(scope="module")
def figures() -> dict[int, str]:
    """The numbered items of the collection."""
    if not FIGURES.exists():
        pytest.skip(f"the collection of published figures is not beside this checkout: {FIGURES}")
    items = re.findall(r"^(\d+)\. (.+)$", FIGURES.read_text(), re.MULTILINE)
    return {int(number): text for number, text in items}


def rows_of(text: str) -> list[tuple[int, float, float]]:
    """(prefix tokens, recompute seconds, pull seconds)."""
    rows = re.findall(r"(\d+)k ([\d.,]+) -> ([\d.,]+)", text)
    seconds = [
        (float(a.replace(",", "")) / 1e3, float(b.rstrip(".").replace(",", "")) / 1e3) for _, a, b in rows
    ]
    return [(int(k) * 1024, *pair) for (k, _, _), pair in zip(rows, seconds, strict=True)]


def fitted(rows: list[tuple[int, float, float]]) -> tuple[PrefillModel, LegModel]:
    prefill, leg = PrefillModel(), LegModel()
    for tokens, recompute, pull in rows:
        prefill.observe(tokens, 0, recompute)
        leg.observe(tokens * GPT_OSS_BYTES_PER_TOKEN, pull)
    return prefill, leg


def test_a_peer_to_peer_pull_is_predicted_from_three_of_its_rows(figures: dict[int, str]) -> None:
    rows = rows_of(figures[1])
    assert len(rows) == 5
    for held_out in ((1, 3), (1, 2), (2, 3)):
        prefill, leg = fitted([row for i, row in enumerate(rows) if i not in held_out])
        for i in held_out:
            tokens, recompute, pull = rows[i]
            computed = prefill.seconds(tokens, 0, tokens)
            pulled = leg.seconds(tokens * GPT_OSS_BYTES_PER_TOKEN)
            print(
                f"{tokens:6d} tokens: recompute {computed * 1e3:7.1f} ms ({computed / recompute - 1:+.1%}), "
                f"pull {pulled * 1e3:6.1f} ms ({pulled / pull - 1:+.1%})"
            )
            assert computed == pytest.approx(recompute, rel=0.25)
            assert pulled == pytest.approx(pull, rel=0.25)
            assert pulled < computed, "the pull won in every row that was measured"


def test_the_longest_prefix_is_extrapolated_from_the_others(figures: dict[int, str]) -> None:
    rows = rows_of(figures[1])
    prefill, leg = fitted(rows[:4])
    tokens, recompute, pull = rows[4]
    computed, pulled = prefill.seconds(tokens, 0, tokens), leg.seconds(tokens * GPT_OSS_BYTES_PER_TOKEN)
    print(f"{tokens} tokens: recompute {computed / recompute - 1:+.1%}, pull {pulled / pull - 1:+.1%}")
    assert computed == pytest.approx(recompute, rel=0.2)
    assert pulled == pytest.approx(pull, rel=0.2)


def test_three_ways_to_25k_tokens_come_in_the_order_that_was_measured(figures: dict[int, str]) -> None:
    """Mistral-7B on an A40: its KV through 5 Gbit/s, compressed below 500 MB, against prefill and memory."""
    text = figures[2]
    prefill, local, remote = (
        float(re.search(pattern, text).group(1))  # type: ignore[union-attr]
        for pattern in (r"prefill ([\d.]+) s", r"local CPU ([\d.]+) s", r"Gbit/s ([\d.]+) s")
    )
    gbit, most_mb = re.search(r"(\d+) Gbit/s", text), re.search(r"under (\d+) MB", text)
    assert gbit is not None
    assert most_mb is not None
    wire = int(most_mb.group(1)) * 1e6 / (int(gbit.group(1)) * 1e9 / 8)
    verdict = break_even(int(most_mb.group(1)) * 10**6, 0.0, prefill, int(gbit.group(1)) * 1e9 / 8)
    rate = verdict.break_even_bytes_per_second
    print(f"wire at most {wire:.2f} s of {remote} s measured; break-even {rate / 1e6:.0f} MB/s")
    assert wire < remote, "the rest of the measured time is lookup, decompression and install"
    assert local < remote < prefill
    assert verdict.carry
    uncompressed = 25_000 * 2 * 32 * 8 * 128 * 2
    raw = break_even(uncompressed, 0.0, prefill, int(gbit.group(1)) * 1e9 / 8)
    assert raw.load_seconds is not None
    print(f"uncompressed: {uncompressed / 1e9:.2f} GB, {raw.load_seconds:.2f} s on the wire")
    assert raw.load_seconds > prefill * 0.9, "without compression the crossing hardly pays"


def test_the_minimum_bandwidth_of_a_large_model(figures: dict[int, str]) -> None:
    """Llama-3-70B, prefix 8,192: prefill of all layers on 8 GPUs against the bytes of its KV."""
    text = figures[3]
    about = [float(x) for x in re.findall(r"about ([\d.]+) GB/s on 8 x A800 and ([\d.]+)", text)[0]]
    computed = [float(x) for x in re.findall(r"\(([\d.]+) and ([\d.]+) computed\)", text)[0]]
    tokens, layers, hidden, kv_heads = 8192, 80, 8192, 8
    size = tokens * 2 * layers * kv_heads * 128 * 2
    # The equation's constants: 4 for attention, 22 for projections and feed-forward.
    flop = layers * (4 * tokens**2 * hidden + 22 * tokens * hidden**2)
    for peak, given, exact in zip((312e12, 989e12), about, computed, strict=True):
        rate = break_even(size, 0.0, flop / (8 * peak)).break_even_bytes_per_second / 1e9
        print(f"8 x {peak / 1e12:.0f} TFLOP/s: {rate:.2f} GB/s ({rate / exact - 1:+.2%} from theirs)")
        assert rate == pytest.approx(exact, rel=0.005)
        assert exact == pytest.approx(given, rel=0.05)
