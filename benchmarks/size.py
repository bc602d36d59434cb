"""How many configs a second are read and sized, on one core: the text of a config.json to every figure.

The goal is 1,000 a second. Sides take turns: a dense model, a hybrid with windows, one with states, one with
a latent; each is parsed, read, laid out for vllm and sized, without the list of layers.

    python benchmarks/size.py [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from importlib.resources import files

from side_by_side import Figures, options

from kvferry.model.config import parse_config
from kvferry.model.layouts.setup import Setup
from kvferry.model.size import size_of

SIDES = {
    "dense": "qwen3-8b",
    "windows": "gemma-3-27b",
    "states": "qwen3.5-35b-a3b",
    "latent": "deepseek-r1",
    "searched": "llama-nemotron-ultra-253b",
}
SETUP = Setup(memory_bytes=40 * 2**30, context=32_768)
GOAL_A_SECOND = 1000.0


def sizing(name: str) -> Callable[[], object]:
    text = files("kvferry.model.presets").joinpath(f"{name}.json").read_bytes()
    return lambda: size_of(parse_config(text, name), SETUP, layers=False)


def main() -> None:
    given = options(__doc__)
    figures = Figures("size", runs=3 if given.quick else 15, packages=["msgspec"])
    samples = figures.measure(
        {name: sizing(preset) for name, preset in SIDES.items()},
        times=50 if given.quick else 300,
        unit="us",
        scale=1e6,
    )
    for name, found in samples.items():
        print(
            f"{name:28} {1e6 / statistics.median(found):9.0f} configs/s (goal {GOAL_A_SECOND:.0f})",
            file=sys.stderr,
        )
    figures.write(given.json)


if __name__ == "__main__":
    main()
