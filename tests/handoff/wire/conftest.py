"""Lets the tests of this folder and of the transports share `crossing`, which is no test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from crossing import Pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.listener.close()
