"""A tiny model for which a context is worth something, and its noisy sibling."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAVE_TORCH = find_spec("torch") is not None and find_spec("transformers") is not None
collect_ignore_glob = [] if HAVE_TORCH else ["test_*.py"]

if HAVE_TORCH:
    import torch

    from kvferry.engines.transformers.capture import Captured, open_captured
    from kvferry.measure.retention.reader import Reader

    from ...e2e.model import save_tiny_llama
    from .texts import letters


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """A tiny Llama, trained for seconds."""
    torch.set_num_threads(1)
    made = open_captured(save_tiny_llama(tmp_path_factory.mktemp("retention") / "tiny", seed=3))
    optimiser = torch.optim.Adam(made.model.parameters(), lr=3e-3)
    for step in range(150):
        ids = torch.tensor([made.encode(letters(step * 16 + row, 80)) for row in range(16)])
        loss = made.model(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for parameter in made.model.parameters():
        parameter.requires_grad_(False)
    return made


@pytest.fixture(scope="session")
def sibling(model: Captured) -> Captured:
    """The same with noise on its weights, under another name."""
    import copy

    other = copy.deepcopy(model.model)
    torch.manual_seed(5)
    for parameter in other.parameters():
        if parameter.ndim > 1:
            parameter.add_(0.1 * parameter.std() * torch.randn_like(parameter))
    return Captured(
        other,
        name="sibling",
        weights_revision="other",
        tokenizer_revision=model.kv.tokenizer,
        tokenizer=model.tokenizer,
    )


@pytest.fixture
def reader(model: Captured) -> Reader:
    return Reader(model)
