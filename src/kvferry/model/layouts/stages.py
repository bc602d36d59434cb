"""Which layers each pipeline stage holds.

Owns vLLM's rule: layers are split evenly, and what is left over goes to the stages before the last one,
backwards, since the last also holds the head. Engines that split otherwise differ by one layer a stage.
"""

from __future__ import annotations

from ...errors import UsageError

__all__ = ["stage_ranges"]


def stage_ranges(layers: int, pp: int) -> list[range]:
    """The layers of each of `pp` stages. Raises `UsageError` where there are more stages than layers."""
    if pp > max(layers, 1):
        raise UsageError(f"--pp {pp}: the model has only {layers} layers")
    sizes = [layers // pp] * pp
    for step in range(layers % pp):
        sizes[-(step + 2) % pp] += 1
    ends, start = [], 0
    for size in sizes:
        ends.append(range(start, start + size))
        start += size
    return ends
