"""One piece of work over many files: in this process, in several, or on a Ray cluster.

Owns the spreading, and nothing of the work: a function that can be pickled, a list of arguments, and results
in the order of the arguments whoever did the work. The first error ends it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from ..errors import MissingExtra, UsageError

__all__ = ["fan_out"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_AHEAD = 2
"""Tasks a Ray worker is given before its results are taken, so that none waits and memory stays bounded."""


def fan_out(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    *,
    workers: int = 1,
    ray_address: str | None = None,
) -> Iterator[_Result]:
    """`work(item)` for each item, results in their order.

    `workers` processes are spawned (1: none), or tasks go to the Ray cluster at `ray_address`, at most
    `_AHEAD` x `workers` of them at once. Raises `UsageError` for less than one worker, `MissingExtra` where
    Ray is not installed, and whatever `work` raises.
    """
    if workers < 1:
        raise UsageError(f"--workers: {workers} do no work; give 1 or more")
    if ray_address is not None:
        yield from _on_ray(work, items, workers, ray_address)
    elif workers == 1 or len(items) < 2:
        yield from map(work, items)
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(items)), mp_context=context) as pool:
            yield from pool.map(work, items)


def _on_ray(
    work: Callable[[_Item], _Result], items: Sequence[_Item], workers: int, address: str
) -> Iterator[_Result]:
    try:
        import ray  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtra("--ray", "ray") from error
    ray.init(address=address, log_to_driver=False)
    try:
        remote = ray.remote(work)
        waiting = [remote.remote(item) for item in items[: _AHEAD * workers]]
        for number in range(len(items)):
            upcoming = number + _AHEAD * workers
            if upcoming < len(items):
                waiting.append(remote.remote(items[upcoming]))
            yield ray.get(waiting[number])
    finally:
        ray.shutdown()
