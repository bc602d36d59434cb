from __future__ import annotations

import torch

from kvferry.engines.transformers.sampling import Chooser
from kvferry.serving.contract import Sampling

LOGITS = torch.tensor([0.0, 2.0, 1.0, 1.9])


def chosen(rid: str = "a", **options: float | int | None) -> list[int]:
    chooser = Chooser(Sampling(max_tokens=1, **options), rid)  # type: ignore[arg-type]
    return [chooser.choose(LOGITS) for _ in range(40)]


def test_greedy_takes_the_likeliest() -> None:
    assert set(chosen()) == {1}


def test_a_seed_repeats() -> None:
    assert chosen(temperature=1.0, seed=5) == chosen("b", temperature=1.0, seed=5)


def test_another_seed_differs() -> None:
    assert chosen(temperature=1.0, seed=5) != chosen(temperature=1.0, seed=6)


def test_without_a_seed_the_id_repeats() -> None:
    assert chosen(temperature=1.0) == chosen(temperature=1.0)


def test_a_small_top_p_is_greedy() -> None:
    assert set(chosen(temperature=1.0, top_p=0.01)) == {1}


def test_top_p_leaves_out_the_tail() -> None:
    assert set(chosen(temperature=1.0, top_p=0.7)) == {1, 3}


def test_a_low_temperature_sharpens() -> None:
    assert set(chosen(temperature=0.005)) == {1}
