"""What every test shares: an environment without settings, and repeatable property tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Speed is no property: a shared machine may take any time for an example.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own KVFERRY_ variables must not reach the tests."""
    for variable in list(os.environ):
        if variable.startswith("KVFERRY_"):
            monkeypatch.delenv(variable)
