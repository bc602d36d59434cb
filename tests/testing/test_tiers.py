"""The example of a plug-in tier passes the suite, and the suite catches tiers that lie."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kvferry.clock import Clock
from kvferry.store.memory import MemoryTier
from kvferry.store.tier import Got, Tier
from kvferry.testing.tiers import TierSuite

_EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin_tier.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("plugin_tier", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestPluginTier(TierSuite):
    capacity_enforced = False
    shared = True

    def open_tier(
        self, place: Path, *, capacity_bytes: int | None = None, clock: Clock | None = None
    ) -> Tier:
        tier: Tier = example().SqliteTier(str(place / "blocks.db"), clock=clock)
        return tier


class Forgetful(MemoryTier):
    """Says that it has read what it has not."""

    def get_telling(self, keys: Any, into: Any, timeout_seconds: float, arrived: Any) -> bytes:
        return bytes([Got.OK]) * len(keys)


def test_the_suite_catches_a_tier_that_does_not_read() -> None:
    tier = Forgetful(1 << 20)
    with pytest.raises(AssertionError):
        TierSuite().test_reads_back_what_was_put(tier)
    with pytest.raises(AssertionError):
        TierSuite().test_an_unknown_key_is_absent(tier)
