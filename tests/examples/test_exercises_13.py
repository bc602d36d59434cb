"""The two exercises of hand-off between models print what is true, line by line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def said(name: str, seconds: float) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def matrix() -> str:
    return said("exercise_13_1", 60.0)


SPEEDUPS = {
    ("16 bit", "25 GbE"): 3.4,
    ("16 bit", "100 GbE"): 13.7,
    ("16 bit", "23.9 GB/s"): 26.0,
    ("int8", "25 GbE"): 6.9,
    ("int8", "100 GbE"): 27.5,
    ("int8", "23.9 GB/s"): 51.9,
    ("int4", "25 GbE"): 13.7,
    ("int4", "100 GbE"): 54.9,
    ("int4", "23.9 GB/s"): 103.8,
}


@pytest.mark.parametrize(("codec", "channel"), SPEEDUPS)
def test_by_the_linear_rule_a_cell_is_the_same_at_every_context(
    matrix: str, codec: str, channel: str
) -> None:
    rows = [line for line in matrix.splitlines() if re.match(rf"  {codec} .*\| {channel} ", line)]
    found = [float(re.findall(r"x *([\d.]+) by 2 N n", line)[0]) for line in rows]
    assert found == [SPEEDUPS[codec, channel]] * 3


@pytest.mark.parametrize(
    "words",
    [
        "context 4,096: prefill 0.672 s by 2 N n, 0.721 s with attention (+7%)",
        "context 65,536: prefill 10.748 s by 2 N n, 23.414 s with attention (+118%)",
        "int8 of 25,000 tokens: 1.717 GiB; 595 ms at 25 GbE, 147 ms at 100 GbE, 77 ms at 23.9 GB/s",
        "at 990 TFLOP/s, 40 to 60 %: 0.69 to 1.04 s",
        "at 100 TFLOP/s: 4.1 s in full, 6.83 to 10.25 s at 60 to 40 %",
        "int8 takes 0.595 s: beats it",
        "16 bit takes 1.189 s: loses",
    ],
)
def test_every_figure_that_is_often_wrong(matrix: str, words: str) -> None:
    assert words in matrix


def test_with_attention_counted_the_gain_grows_with_the_context(matrix: str) -> None:
    rows = [line for line in matrix.splitlines() if line.startswith("  int8") and "25 GbE" in line]
    found = [float(re.findall(r"x *([\d.]+) with attention", line)[0]) for line in rows]
    assert found == [7.4, 8.9, 15.0]


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra transformers")


@pytest.fixture(scope="module")
def ranges() -> dict[int, list[float]]:
    """First position to (keys stripped, raw, values stripped, raw, cosine stripped, raw)."""
    rows = re.findall(r"^ *([\d,]+) to [\d,]+ +(.*)$", said("exercise_13_2", 200.0), re.MULTILINE)
    return {int(start.replace(",", "")): [float(cell) for cell in cells.split()] for start, cells in rows}


@needs_torch
def test_within_the_calibrated_positions_both_are_about_as_good(ranges: dict[int, list[float]]) -> None:
    stripped, raw = ranges[0][:2]
    assert raw > stripped - 0.05


@needs_torch
@pytest.mark.parametrize("start", [256, 1_024, 4_096, 16_384])
def test_stripped_holds_at_any_position(ranges: dict[int, list[float]], start: int) -> None:
    assert ranges[start][0] == pytest.approx(ranges[0][0], abs=0.01)


@needs_torch
def test_raw_collapses_past_them(ranges: dict[int, list[float]]) -> None:
    assert ranges[1_024][1] < ranges[0][1] - 0.1
    assert ranges[4_096][1] < 0.2


@needs_torch
def test_values_know_no_position(ranges: dict[int, list[float]]) -> None:
    assert {cell for cells in ranges.values() for cell in cells[2:4]} == {ranges[0][2]}


@needs_torch
def test_attention_loses_what_the_keys_lose(ranges: dict[int, list[float]]) -> None:
    assert ranges[4_096][4] == pytest.approx(ranges[0][4], abs=0.01)
    assert ranges[4_096][5] < ranges[4_096][4] - 0.2
