"""Where vLLM is not installed, the gate says so, and its modules can be imported all the same."""

from __future__ import annotations

import importlib.util

import pytest

from kvferry.engines.vllm import gated
from kvferry.errors import MissingExtra


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_class_needs_the_extra() -> None:
    with pytest.raises(MissingExtra, match=r"pip install .*\[vllm\]"):
        _ = gated.GatedExampleConnector
