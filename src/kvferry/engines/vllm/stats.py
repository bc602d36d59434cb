"""kvferry's metrics on vLLM's own /metrics page.

The engine runs in a process of its own and the page is served by another. Each engine process keeps its
metrics in a recorder; about once a second its text travels with vLLM's connector statistics, and the serving
process shows the last text of every engine, with a label for which. Owns that journey and nothing that is
counted. A scrape costs the engine nothing, and rendering is done beside its loop: it asks tiers for usage.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

__all__ = ["Feed", "FerryStats", "ShownMetrics"]

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 1.0
_SHORTEST_SECONDS = 0.25
_KEY = "kvferry"
_LOGGED = (
    ("kvferry_loads_in_flight", "loads in flight"),
    ("kvferry_saved_seconds_total", "saved s"),
    ("kvferry_prompt_tokens_total", "prompt tokens"),
)


class FerryStats(KVConnectorStats):
    """`data["kvferry"]`: for each process of the engine ("scheduler", "worker-1") its metrics as text."""

    def reset(self) -> None:
        """Nothing is kept between two steps."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Both processes' texts; of one process the later."""
        theirs = other.data.get(_KEY, {})
        self.data = {_KEY: {**self.data.get(_KEY, {}), **theirs}}
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line: hits and prompt tokens since the engine began."""
        figures: dict[str, int | float] = {}
        for text in self.data.get(_KEY, {}).values():
            for name, shown in _LOGGED:
                for line in text.splitlines():
                    if line.startswith(name + " "):
                        figures[shown] = figures.get(shown, 0) + float(line.rpartition(" ")[2])
        return figures

    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self.data


class Feed:
    """Renders in a thread of its own; `take` gives what is new, and never waits."""

    def __init__(self, process: str, render: Callable[[], bytes]) -> None:
        self._process = process
        self._render = render
        self._fresh: str | None = None
        self._closed = threading.Event()
        self._poked = threading.Event()
        self._wanted = self._shown = 0
        """How often `poke` was called, and up to which call the latest text reaches."""
        self._owed_until = 0.0
        self._thread = threading.Thread(target=self._run, name="kvferry-metrics", daemon=True)
        self._thread.start()

    def take(self) -> FerryStats | None:
        """The latest text, once."""
        text, self._fresh = self._fresh, None
        return None if text is None else FerryStats(data={_KEY: {self._process: text}})

    def poke(self) -> None:
        """Something has been counted that no later step may tell of: render soon."""
        self._owed_until = time.monotonic() + 2 * _PERIOD_SECONDS
        self._wanted += 1
        self._poked.set()

    @property
    def owes(self) -> bool:
        """Whether the page would lack what was counted at the last `poke`, if no step came any more."""
        waits = self._shown < self._wanted or self._fresh is not None
        return waits and time.monotonic() < self._owed_until

    def close(self) -> None:
        """Stop rendering."""
        self._closed.set()
        self._poked.set()

    def _run(self) -> None:
        last = ""
        while not self._closed.is_set():
            self._poked.clear()
            wanted = self._wanted
            try:
                text = self._render().decode()
            except Exception:
                log.debug("metrics could not be rendered", exc_info=True)
            else:
                if text != last:
                    self._fresh = last = text
                self._shown = wanted
            self._closed.wait(_SHORTEST_SECONDS)
            self._poked.wait(_PERIOD_SECONDS - _SHORTEST_SECONDS)


class ShownMetrics(KVConnectorPromMetrics):
    """In the serving process: the last text of each engine, for the page's registry."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.texts: dict[tuple[int, str], str] = {}
        """By engine and process."""
        _PAGE.show(self)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """What an engine has sent."""
        for process, text in transfer_stats_data.get(_KEY, {}).items():
            self.texts[engine_idx, process] = text

    def collect(self) -> Iterable[Any]:
        """Families as prometheus_client wants them; samples of several processes under one name."""
        return _families(self.texts)


class _Page:
    """What the registry asks: one for a process, or families would stand on the page more than once."""

    def __init__(self) -> None:
        self._shown: list[weakref.ref[ShownMetrics]] = []
        self._registered = False

    def show(self, metrics: ShownMetrics) -> None:
        """From now on, until nobody else holds them."""
        self._shown = [one for one in self._shown if one() is not None]
        self._shown.append(weakref.ref(metrics))
        if self._registered:
            return
        from prometheus_client import REGISTRY

        REGISTRY.register(self)
        self._registered = True

    def collect(self) -> Iterable[Any]:
        """The families of all; of two engines of one number the later one's."""
        texts: dict[tuple[int, str], str] = {}
        for one in self._shown:
            shown = one()
            if shown is not None:
                texts |= shown.texts
        return _families(texts)

    def describe(self) -> Iterable[Any]:
        """Nothing before the first text; asked by the registry when this is registered."""
        return ()


_PAGE = _Page()


def _families(texts: Mapping[tuple[int, str], str]) -> Iterable[Any]:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.parser import text_string_to_metric_families

    families: dict[str, Metric] = {}
    for (engine, process), text in sorted(texts.items()):
        for parsed in text_string_to_metric_families(text):
            if not parsed.samples:
                continue
            family = families.setdefault(parsed.name, Metric(parsed.name, parsed.documentation, parsed.type))
            for sample in parsed.samples:
                labels = {**sample.labels, "engine": str(engine), "process": process}
                family.add_sample(sample.name, labels, sample.value)
    return families.values()
