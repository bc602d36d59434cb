"""Trust by numerics: names that agree are not enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip(
    "vllm", reason="vLLM is not installed here: make test-vllm runs these in a venv of its own"
)

from .conftest import Trio, prompt_for
from .replicas import Replica, save_llama

TOKENS = 300
Make = Callable[..., Replica]
RULE = {"gate": {"policy": "rule", "holdout_share": 0.0, "explore_share": 0.0}}
"""As a user has it: a replica that has computed nothing yet computes."""


def test_a_replica_with_other_weights_under_the_same_name_shares_nothing(
    replica: Make, trio: Trio, model: Path, tmp_path: Path
) -> None:
    prompt = prompt_for("liar", TOKENS)
    honest = replica({"pool": trio.url, "revision": "v1"})
    honest.ask(prompt)
    honest.settle()
    pooled = trio.pool.keys()

    liar = replica(
        {"pool": trio.url, "revision": "v1", **RULE}, model=save_llama(tmp_path / model.name, seed=5)
    )
    assert "pool_hit" not in liar.ask(prompt).ledger
    liar.settle()
    liar.forget()
    after = liar.ask(prompt)
    assert after.ledger == {"incompatible": 288, "partial_block": 12}
    assert after.record is not None
    assert "differs from the same block computed here" in after.record.alien_fields
    liar.settle()
    assert trio.pool.keys() == pooled


def test_a_replica_with_the_same_weights_is_let_in(replica: Make, trio: Trio) -> None:
    prompt = prompt_for("honest", TOKENS)
    trio.published(prompt)
    newcomer = replica({"pool": trio.url, **RULE})
    newcomer.ask(prompt)
    newcomer.settle()
    side = newcomer.connector._scheduler
    assert not side._audits._under_way
    assert side._spaces.standing()["default"]["standing"] == "joined"
