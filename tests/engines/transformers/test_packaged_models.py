"""The gates on the packaged models that a user has fetched: nothing is downloaded for a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

from kvferry.config import cache_dir
from kvferry.engines.transformers.capture import Captured, open_captured, restore
from kvferry.engines.transformers.packaged_models import PACKAGED

pytestmark = pytest.mark.real_model

TEXT = "def merge(left, right):\n    merged = []\n    while left and right:\n" * 40
CODE = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +"


@pytest.fixture(scope="module", params=["gemma-3-270m", "qwen2.5-coder-0.5b-instruct"])
def model(request: pytest.FixtureRequest) -> Captured:
    model = PACKAGED[request.param]
    found = sorted((cache_dir() / "models").glob(f"{request.param}-*-{model.sha256[:8]}-*"))
    if not found:
        pytest.skip(f"{request.param} is not in the cache: kvferry handoff apply with it fetches it")
    return open_captured(found[-1], name=request.param, threads=1)


def logits(model: Any, cache: Any, ids: Sequence[int], start: int) -> torch.Tensor:
    with torch.inference_mode():
        places = torch.arange(start, start + len(ids))[None]
        found: torch.Tensor = model(
            torch.tensor([list(ids)]), past_key_values=cache, position_ids=places
        ).logits
    return found


def test_stripped_keys_are_the_models_own(model: Captured) -> None:
    assert model.check_strip() < 1e-6


def test_a_native_cache_injected_again_gives_equal_logits(model: Captured) -> None:
    """Past the window of Gemma's sliding layers."""
    ids = model.encode(TEXT)[:600]
    expected = DynamicCache(config=model.model.config)
    logits(model.model, expected, ids, 0)
    again = restore(model.model, model.prefill(ids).layers, len(ids))
    rest = ids[5:9]
    assert torch.equal(
        logits(model.model, again, rest, len(ids)), logits(model.model, expected, rest, len(ids))
    )


def test_it_goes_on_as_a_model_that_was_read_rightly_does(model: Captured) -> None:
    ids = torch.tensor([model.encode(CODE)])
    with torch.inference_mode():
        said = model.model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert model.tokenizer.decode(said).startswith(" fibonacci(n - 2)")
