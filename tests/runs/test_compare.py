from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvferry.config import load
from kvferry.errors import UsageError
from kvferry.runs import RunDirectory, compare


def run(path: Path, *overrides: str, seed: int = 1, model: str = "smollm2", **summary: Any) -> RunDirectory:
    loaded = load(env={}, overrides=overrides)
    made = RunDirectory.create(
        path,
        command=[],
        config=loaded.config,
        origins=loaded.origins,
        seed=seed,
        equal={"model": {"name": model}},
    )
    made.write_summary(summary)
    return made


def test_figures_stand_side_by_side(tmp_path: Path) -> None:
    left = run(tmp_path / "a", arms={"cold": {"p50": 2.0}}, model_name="x", same=True)
    right = run(tmp_path / "b", "gate.policy=always", arms={"cold": {"p50": 3.0}}, extra=1)
    found = compare(left, right)
    assert found.factor is not None
    assert (found.factor.factor, found.factor.left, found.factor.right) == (
        "config.gate.policy",
        "rule",
        "always",
    )
    assert [(one.name, one.left, one.right, one.ratio) for one in found.figures] == [
        ("arms.cold.p50", 2.0, 3.0, 1.5),
        ("extra", None, 1, None),
    ]


def test_a_repetition_has_no_factor(tmp_path: Path) -> None:
    assert compare(run(tmp_path / "a"), run(tmp_path / "b")).factor is None


def test_what_a_replica_is_called_is_no_factor(tmp_path: Path) -> None:
    assert compare(run(tmp_path / "a", "replica=A"), run(tmp_path / "b", "replica=B")).factor is None


def test_two_factors_are_refused_by_name(tmp_path: Path) -> None:
    left, right = run(tmp_path / "a"), run(tmp_path / "b", "gate.policy=never", seed=2)
    with pytest.raises(UsageError, match=r"config\.gate\.policy \('rule' and 'never'\), seed \(1 and 2\)"):
        compare(left, right)


def test_a_factor_beside_the_declared_one_is_refused(tmp_path: Path) -> None:
    left, right = run(tmp_path / "a"), run(tmp_path / "b", "gate.policy=never", model="other")
    with pytest.raises(UsageError, match=r"more than 'gate\.policy': equal\.model\.name"):
        compare(left, right, "gate.policy")


def test_a_declared_factor_has_to_differ(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="do not differ in 'seed'"):
        compare(run(tmp_path / "a"), run(tmp_path / "b"), "seed")


def test_an_unfinished_run_is_not_compared(tmp_path: Path) -> None:
    left, right = run(tmp_path / "a"), run(tmp_path / "b")
    (tmp_path / "b" / "summary.json").unlink()
    with pytest.raises(UsageError, match="did not come to its end"):
        compare(left, right)
