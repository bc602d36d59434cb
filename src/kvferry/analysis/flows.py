"""What a pool reads and writes when, and in four situations that a link and a store must stand.

The pool of this file forgets nothing and serves every hit, so its flows are an upper bound: what replicas hit
in their own memory is not read from it. Time is cut into steps of a minute, and a window is a run of whole
steps: its mean rate is that of its tokens over its length. A trace shorter than the window is one window as
long as the trace, from its first request to its last, and so the last step ends with the last request: spread
over more, rates would come out too low. A trace shorter than a second counts as one. Owns the sums per step;
memory grows with the trace's span.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..units import counted
from .result import FlowPicture, FlowPoint, Flows, Window
from .touched import Touched

__all__ = ["STEP_SECONDS", "FlowCount"]

_Floats = npt.NDArray[np.float64]
STEP_SECONDS = 60.0
_MOST_POINTS = 2_000
_SHORTEST_SECONDS = 1.0


class FlowCount:
    """Tokens read and written, and of all prompts, in every step."""

    def __init__(self) -> None:
        self._steps = np.zeros((3, 0))
        self._span_seconds = 0.0

    def add(self, touched: Touched) -> None:
        """Book a chunk: a hit reads its tokens, the rest of a prompt is written."""
        step = (touched.arrival_seconds // STEP_SECONDS).astype(np.int64)
        if len(step):
            self._span_seconds = float(touched.arrival_seconds[-1])
        hit = touched.matched_tokens
        count = int(step[-1]) + 1 if len(step) else 0
        if count > self._steps.shape[1]:
            longer = np.zeros((3, max(count, 2 * self._steps.shape[1])))
            longer[:, : self._steps.shape[1]] = self._steps
            self._steps = longer
        for row, tokens in enumerate((hit, touched.input_tokens - hit, touched.input_tokens)):
            self._steps[row] += np.bincount(step, weights=tokens, minlength=self._steps.shape[1])

    def _used(self) -> _Floats:
        used = np.flatnonzero(self._steps[2])
        return self._steps[:, : int(used[-1]) + 1] if len(used) else self._steps[:, :0]

    def _window(self, seconds: float) -> float:
        return min(seconds, max(self._span_seconds, _SHORTEST_SECONDS))

    def _steps_of(self, window_seconds: float) -> int:
        """All of them for the window that is the whole trace: its last request may begin a step."""
        used = max(1, self._used().shape[1])
        return used if window_seconds >= self._span_seconds else round(window_seconds / STEP_SECONDS)

    def worst(self, window_seconds: float, bytes_per_token: float) -> Window:
        """The worst window of reads, and that of writes; never longer than the trace."""
        window_seconds = self._window(window_seconds)
        bits = 8.0 * bytes_per_token / window_seconds
        steps = self._steps_of(window_seconds)
        (read_at, read), (write_at, write) = (_worst(row, steps) for row in self._used()[:2])
        return Window(
            seconds=window_seconds,
            read_start_seconds=read_at,
            read_bits_per_second=read * bits,
            write_start_seconds=write_at,
            write_bits_per_second=write * bits,
        )

    def flows(
        self,
        *,
        window_seconds: float,
        bytes_per_token: float,
        replicas: int,
        storage_nodes: int,
        unique_tokens: int,
        hot_tokens: int,
        warm_seconds: float,
    ) -> Flows:
        """The series and the four pictures.

        `hot_tokens` is the hot set that new replicas pull, in `warm_seconds`.
        """
        steps = self._used()
        window_seconds = self._window(window_seconds)
        bits = 8.0 * bytes_per_token
        every = max(1, -(-steps.shape[1] // _MOST_POINTS))
        worst = self.worst(window_seconds, bytes_per_token)
        read, write = worst.read_bits_per_second, worst.write_bits_per_second
        burst = _worst(steps[2], self._steps_of(window_seconds))[1] * bits / window_seconds
        warming = replicas * hot_tokens * bits / warm_seconds
        rest = max(1, storage_nodes - 1)
        rebuilt = unique_tokens * bits / storage_nodes / window_seconds if storage_nodes > 1 else 0.0
        pictures = (
            _picture(
                "steady",
                "every hit of the worst window is read from the pool, everything new is written to it",
                window_seconds, read, write, 0.0, storage_nodes,
            ),
            _picture(
                "new-replicas",
                f"{counted(replicas, 'new replica')} pull{'s' if replicas == 1 else ''} the hot set of "
                f"{counted(hot_tokens, 'token')} in {warm_seconds:g} s{', each,' if replicas > 1 else ','} "
                "on top of the worst window",
                window_seconds, read, write, warming, storage_nodes,
            ),
            _picture(
                "miss-burst",
                "nothing hits for a window: every prompt is computed and published at once",
                window_seconds, 0.0, burst, 0.0, storage_nodes,
            ),
            _picture(
                "node-lost",
                f"one of {storage_nodes} storage nodes is lost: the rest take its traffic, and its blocks "
                "are copied again within a window"
                if storage_nodes > 1
                else "the only storage node is lost: nothing is read or written, everything is recomputed",
                window_seconds, *((read, write, rebuilt) if storage_nodes > 1 else (0.0, 0.0, 0.0)), rest,
            ),
        )  # fmt: skip
        return Flows(
            step_seconds=every * STEP_SECONDS,
            series=tuple(self._series(every, bits)),
            storage_nodes=storage_nodes,
            replicas=replicas,
            pictures=pictures,
        )

    def _series(self, every: int, bits: float) -> Iterator[FlowPoint]:
        """Means over `every` steps each. The last point ends with the trace; where less than half of its time
        is left, the one before it takes it in: a few requests in a second are no rate of a link."""
        steps = self._used()
        length = every * STEP_SECONDS
        starts = list(range(0, steps.shape[1], every))
        if len(starts) > 1 and self._span_seconds - starts[-1] * STEP_SECONDS < length / 2:
            starts.pop()
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            seconds = length
            if end is None:
                seconds = max(self._span_seconds - start * STEP_SECONDS, _SHORTEST_SECONDS)
            read, written, _ = steps[:, start:end].sum(axis=1) * bits / seconds
            yield FlowPoint(
                start_seconds=start * STEP_SECONDS,
                read_bits_per_second=float(read),
                write_bits_per_second=float(written),
            )


def _picture(
    name: str, what: str, seconds: float, read: float, write: float, replica: float, nodes: int
) -> FlowPicture:
    return FlowPicture(
        name=name,
        what=what,
        seconds=seconds,
        read_bits_per_second=read,
        write_bits_per_second=write,
        replica_bits_per_second=replica,
        per_node_bits_per_second=(read + write + replica) / nodes,
    )


def _worst(tokens: _Floats, steps: int) -> tuple[float, float]:
    """(start in seconds, sum) of the run of steps with the largest sum."""
    total = np.concatenate([[0.0], np.cumsum(tokens)])
    if len(tokens) <= steps:
        return 0.0, float(total[-1])
    sums = total[steps:] - total[:-steps]
    start = int(np.argmax(sums))
    return start * STEP_SECONDS, float(sums[start])
