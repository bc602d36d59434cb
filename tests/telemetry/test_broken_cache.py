"""A cache side that breaks is seen in the metrics and in the run-time settings, while the engine goes on."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvferry.cache.machine import Cache
from kvferry.cache.settings import CacheSettings
from kvferry.clock import VirtualClock
from kvferry.config import Config
from kvferry.executors.shelf import Shelf
from kvferry.executors.threads import ThreadExecutor
from kvferry.gate.publication import Publication
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Kind
from kvferry.telemetry.metrics import open_metrics

if find_spec("torch") is None:
    pytest.skip("the engine's side needs torch", allow_module_level=True)


def ferry_of(shelf: Shelf) -> Any:
    from kvferry.engines.ferry import Ferry
    from kvferry.engines.spaces import NamedSpaces

    clock = VirtualClock()
    return Ferry(
        config=Config(),
        cache=Cache(
            CacheSettings(block_tokens=8, bytes_per_token=16, tiers=shelf.outcomes),
            Publication("all", ("default",)),
        ),
        shelf=shelf,
        spaces=NamedSpaces({}, b"s" * 32, None),
        executor=lambda deliver: ThreadExecutor(shelf.tiers, deliver, clock=clock, holder=b"me"),
        clock=clock,
        metrics=open_metrics(required=True),
        replica="here",
        chunk_tokens=64,
        sink=None,
    )


@pytest.fixture
def ferry() -> Any:
    return ferry_of(Shelf([MemoryTier(1 << 20)], [Kind.HOST]))


def values(ferry: Any) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(ferry.metrics().decode())
        for sample in family.samples
    }


def break_it(ferry: Any) -> None:
    from kvferry.engines.failopen import FailOpen

    # Nothing was ever asked of this request: the machine does not know it.
    FailOpen(ferry).finish("nobody", False, None)


def test_a_sound_cache_shows_its_mode_and_tiers(ferry: Any) -> None:
    found = values(ferry)
    assert found["kvferry_mode", "on"] == 1
    assert found["kvferry_failures_total", "cache"] == 0
    assert found["kvferry_tier_up", "host"] == 1
    assert ferry.settings()["state"]["broken"] is None


def test_a_broken_cache_counts_once_and_is_off(ferry: Any) -> None:
    break_it(ferry)
    found = values(ferry)
    assert found["kvferry_failures_total", "cache"] == 1
    assert (found["kvferry_mode", "off"], found["kvferry_mode", "on"]) == (1, 0)


def test_a_broken_cache_says_why_in_the_settings(ferry: Any) -> None:
    break_it(ferry)
    assert ferry.settings()["state"]["broken"] == "KeyError: 'nobody'"


def test_a_broken_cache_reaches_no_tier(ferry: Any) -> None:
    assert values(ferry)["kvferry_tier_capacity_bytes", "host"] == 1 << 20
    break_it(ferry)
    found = values(ferry)
    assert found["kvferry_tier_up", "host"] == 0
    assert ("kvferry_tier_capacity_bytes", "host") not in found
