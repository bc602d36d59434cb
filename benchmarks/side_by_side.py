"""What the benchmarks share: sides that take turns, medians, and the file they write.

    {name, versions, runs, figures: {key: {median, min, max, unit}}, ratios: {key: {median, min, max}}}

A ratio is named `ours_vs_theirs` and is more than 1 where ours is better.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["Figures", "cpu_seconds", "options", "spread"]


def options(doc: str | None, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """`--quick` and `--json FILE`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds instead of many")
    parser.add_argument("--json", metavar="FILE", type=Path)
    return parser.parse_args(argv)


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def cpu_seconds(side: Callable[[], object], times: int) -> float:
    """CPU seconds of one call, as a mean over `times` of them."""
    start = time.process_time()
    for _ in range(times):
        side()
    return (time.process_time() - start) / times


class Figures:
    """Collects what was measured, tells it on stderr, and writes it."""

    def __init__(self, name: str, runs: int, packages: Sequence[str]) -> None:
        self.runs = runs
        self._document: dict[str, Any] = {
            "name": name,
            "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
            "runs": runs,
            "figures": {},
            "ratios": {},
        }

    def measure(
        self, sides: Mapping[str, Callable[[], object]], *, times: int, unit: str, scale: float
    ) -> dict[str, list[float]]:
        """CPU time of every side in every round, in `unit`; sides change places, and one round warms up."""
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(-1, self.runs):
            for name in sides if number % 2 else reversed(sides):
                seconds = cpu_seconds(sides[name], times)
                if number >= 0:
                    samples[name].append(seconds * scale)
        for name, found in samples.items():
            self._document["figures"][name] = {**spread(found), "unit": unit}
            print(f"{name:28} {statistics.median(found):9.2f} {unit}", file=sys.stderr)
        return samples

    def ratio(self, name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
        """Theirs over ours, round by round: more than 1 where ours took less."""
        found = [b / a for a, b in zip(ours, theirs, strict=True)]
        self._document["ratios"][name] = spread(found)
        print(f"{name:28} {statistics.median(found):9.2f}", file=sys.stderr)

    def write(self, path: Path | None) -> None:
        """To a file, or not at all."""
        if path is not None:
            path.write_text(json.dumps(self._document, indent=2) + "\n")
