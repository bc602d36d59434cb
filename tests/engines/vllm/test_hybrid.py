"""Models with several KV cache groups: all groups are loaded, or the request is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from .conftest import Trio, Truth, balanced, prompt_for
from .faulty import Fault, make
from .replicas import Answer, Replica, save_gemma

TOKENS, BLOCKS = 300, 9
Make = Callable[..., Replica]
HYBRID = {"disable_hybrid_kv_cache_manager": False}


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gemma(tmp_path_factory.mktemp("gemma") / "tiny")


@pytest.fixture(scope="module")
def right(gemma: Path) -> Iterator[Truth]:
    """What plain vLLM answers."""
    plain = Replica(gemma, None, enable_prefix_caching=False)

    def computed(prompt: list[int]) -> Answer:
        return plain.ask(prompt)

    yield computed
    plain.close()


class Hybrids(Trio):
    """The three replicas with another model."""


@pytest.fixture(scope="module")
def _hybrids(_replicas: Make, gemma: Path, right: Truth) -> Hybrids:
    from . import faulty

    def made(settings: dict[str, str]) -> Replica:
        return _replicas(settings, model=gemma, **HYBRID)

    return Hybrids(made, make("hybrid"), f"plugin://{faulty.__name__}/opened?name=hybrid", right)


@pytest.fixture
def hybrids(_hybrids: Hybrids) -> Hybrids:
    _hybrids.fresh()
    return _hybrids


def test_it_has_two_groups(hybrids: Hybrids) -> None:
    assert len(hybrids.a.connector._terms.layers) == 2
    assert len(hybrids.a.connector._terms.windowed) == 1


def test_local_hit(hybrids: Hybrids) -> None:
    prompt = prompt_for("hybrid local", TOKENS)
    hybrids.a.ask(prompt)
    answer = hybrids.a.ask(prompt)
    assert answer.agrees_with(hybrids.truth(prompt))
    assert answer.ledger == {"device_hit": 288, "partial_block": 12}


@pytest.mark.parametrize("tokens", [100, 300, 900])
def test_pool_hit(hybrids: Hybrids, tokens: int) -> None:
    prompt = prompt_for("hybrid pool", tokens)
    keys = published(hybrids, prompt)
    assert len(keys) == 2 * (tokens // 32)
    answer = hybrids.b.ask(prompt)
    assert answer.agrees_with(hybrids.truth(prompt))
    assert answer.ledger["pool_hit"] == tokens // 32 * 32
    again = hybrids.b.ask(prompt)
    assert again.agrees_with(hybrids.truth(prompt))
    hybrids.sound(prompt)


def test_a_prompt_that_shares_its_beginning(hybrids: Hybrids) -> None:
    prompt = prompt_for("hybrid begin", TOKENS)
    published(hybrids, prompt)
    other = [*prompt[:230], *prompt_for("hybrid end", 170)]
    answer = hybrids.b.ask(other)
    assert answer.agrees_with(hybrids.truth(other))
    assert answer.ledger["pool_hit"] == 224
    hybrids.sound(other)


@pytest.mark.parametrize("at", [0, 4, 8], ids=["first", "middle", "last"])
@pytest.mark.parametrize("fault", [Fault.CORRUPT, Fault.ABSENT, Fault.RAISES, Fault.HANGS], ids=str)
@pytest.mark.parametrize("group", [0, 1])
def test_a_load_that_fails_in_one_group_is_recomputed_whole(
    hybrids: Hybrids, fault: Fault, at: int, group: int
) -> None:
    """Trap: vLLM takes block numbers of a failed load for a model with one group only."""
    prompt = prompt_for("hybrid fault", TOKENS)
    keys = published(hybrids, prompt)
    longer = [*prompt[:288], *prompt_for("hybrid tail", 60)]
    terms = {"fields": {"deadline_seconds": 1.0}} if fault is Fault.HANGS else {}
    # A group's blocks are stored in order; which group comes first does not matter here.
    with hybrids.pool.failing(keys[group * BLOCKS + at], fault):
        during = hybrids.b.ask_all([(prompt, terms), (longer, terms)])
    for answer, asked in zip(during, (prompt, longer), strict=True):
        assert answer.agrees_with(hybrids.truth(asked))
    assert all(replica.connector.why_off == "" for replica in hybrids.all)
    hybrids.sound(prompt)


def test_a_small_cache_is_not_filled_with_what_waits_for_publication(
    hybrids: Hybrids, replica: Make, gemma: Path
) -> None:
    """Blocks behind the window are kept until they are published, unless memory is short."""
    prompts = [prompt_for("hybrid small", 400) for _ in range(3)]
    small = replica(
        {"pool": hybrids.url}, model=gemma, kv_cache_memory_bytes=60 * 65536, max_model_len=600, **HYBRID
    )
    ids = [small.send(prompt, answer_tokens=60) for prompt in prompts]
    small.wait(ids)
    small.settle()
    balanced(small)
    for prompt in prompts:
        assert hybrids.b.ask(prompt).agrees_with(hybrids.truth(prompt))


def published(hybrids: Hybrids, prompt: list[int]) -> list[bytes]:
    before = len(hybrids.pool.order)
    assert hybrids.a.ask(prompt).agrees_with(hybrids.truth(prompt))
    hybrids.a.settle()
    return hybrids.pool.order[before:]


def test_a_model_with_states_is_refused_and_served_as_by_plain_vllm(replica: Make, tmp_path: Path) -> None:
    """A state is no KV of its own tokens: it is not carried, and that is said.

    The engine starts; it cannot compute such a model on a CPU, whose build has no kernel for it.
    """
    import torch
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(2)
    config = MambaConfig(
        vocab_size=512, hidden_size=64, state_size=16, num_hidden_layers=2, initializer_range=0.3
    )
    MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    one = replica({"host_memory": "32MiB"}, model=tmp_path / "mamba")
    assert "MambaSpec, which kvferry does not carry yet" in one.connector.why_off
    assert one.worker._worker is None
