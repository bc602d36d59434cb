"""Tests of maps across families need torch and transformers; without them they are not collected."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

HAVE_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None
collect_ignore_glob = [] if HAVE_TORCH else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    if HAVE_TORCH:
        import torch

        torch.set_num_threads(1)
