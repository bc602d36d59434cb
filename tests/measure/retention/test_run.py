"""The whole measurement on tiny models: what is exact is exact, what is noise is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvferry.engines.transformers.capture import Captured
from kvferry.errors import UsageError
from kvferry.measure.retention.requirements import LESS_IS_BETTER, MORE_IS_BETTER, parse_required
from kvferry.measure.retention.run import Wanted, measure_retention
from kvferry.runs.retention_summary import Beyond, Interval, Refused, Retention

from .texts import Identity, Noise, asked, continued


def wanted(**more: Any) -> Wanted:
    return Wanted(**{"user_items": (*continued(10), *asked(8)), **more})


@pytest.fixture(scope="module")
def exact(model: Captured) -> Retention:
    return measure_retention(model, model, Identity(), wanted())


@pytest.fixture(scope="module")
def noise(model: Captured) -> Retention:
    return measure_retention(model, model, Noise(), wanted())


def known(figure: Any) -> Interval:
    assert isinstance(figure, Interval), figure
    return figure


def test_the_identity_agrees_everywhere(exact: Retention) -> None:
    for name in ("top1@1", "top1@32", "top1@128", "beyond_top1", "floor_retention"):
        assert known(exact.figures[name]).value == pytest.approx(1.0, abs=1e-3)


def test_the_identity_loses_no_likelihood(exact: Retention) -> None:
    for name in ("kl", "nll_difference", "slope_nll"):
        if name in exact.figures and not isinstance(exact.figures[name], Refused):
            assert known(exact.figures[name]).value == pytest.approx(0.0, abs=1e-4)


def test_the_identity_may_be_used(exact: Retention) -> None:
    assert (exact.verdict.answer, exact.verdict.reasons) == ("use", ())


def test_noise_is_told_not_to_be_used(noise: Retention) -> None:
    assert (noise.verdict.answer, noise.verdict.failed) == ("do not use", True)


def test_noise_agrees_less(noise: Retention) -> None:
    assert known(noise.figures["top1@32"]).high < 0.9


def test_controls_are_worse_than_the_identity(exact: Retention) -> None:
    for name in ("random", "wrong", "none"):
        assert known(exact.gains[name]).low > 0


def test_raw_of_the_same_model_is_the_identity(exact: Retention) -> None:
    assert exact.nll_per_character["raw"] == exact.nll_per_character["target"]


def test_a_gap_that_is_not_there_is_refused(exact: Retention) -> None:
    """Source and target are one model: nothing can be recovered between them."""
    for name in ("gap_recovered", "gap_recovered_accuracy"):
        found = exact.figures[name]
        assert isinstance(found, Refused)
        assert "nothing to take a share of" in found.reason


def test_answers_are_kept(exact: Retention) -> None:
    assert known(exact.accuracy["all"]["mapped"]).value == known(exact.accuracy["all"]["target"]).value > 0.9
    assert known(exact.figures["retention"]).value == 1.0


def test_holding_everything_back_needs_no_map(exact: Retention) -> None:
    (all_of_it,) = [one for one in exact.hold_back if one.tokens == 64]
    assert known(all_of_it.top1["none"]).value == 1.0
    assert known(all_of_it.gain).value == pytest.approx(0.0, abs=1e-4)


def test_beyond_is_beyond(exact: Retention) -> None:
    assert isinstance(exact.beyond, Beyond)
    assert exact.beyond.offset >= 128


def test_every_name_of_require_is_a_figure(exact: Retention) -> None:
    assert set(MORE_IS_BETTER) | set(LESS_IS_BETTER) == set(exact.figures)


def test_it_survives_json(exact: Retention) -> None:
    again = msgspec.json.decode(msgspec.json.encode(exact), type=Retention)
    assert again == exact


def test_a_sibling_lies_between(model: Captured, sibling: Captured) -> None:
    found = measure_retention(model, sibling, Identity(), wanted())
    assert 0 < known(found.figures["kl"]).value < known(found.kl["none"]).value


def test_requirements_are_judged(model: Captured) -> None:
    required = tuple(parse_required(["top1>=0.9", "kl<=0.000001", "gap_recovered>=0.5"]))
    found = measure_retention(model, model, Noise(), wanted(required=required))
    assert [one.met for one in found.required] == [False, False, False]


def test_choices_alone_have_no_likelihood(model: Captured) -> None:
    found = measure_retention(model, model, Identity(), wanted(user_items=tuple(asked(8))))
    assert isinstance(found.figures["top1"], Refused)
    assert found.verdict.answer == "do not use"
    assert known(found.figures["accuracy"]).n == 8


def test_one_document_has_no_intervals(model: Captured) -> None:
    items = tuple(msgspec.structs.replace(one, document="one") for one in continued(3))
    found = measure_retention(model, model, Identity(), wanted(user_items=items))
    assert isinstance(found.figures["top1"], Refused)
    assert found.arms["wrong"].absent
    assert found.verdict.answer == "do not use"


def test_bundled_tasks_are_measured(model: Captured) -> None:
    found = measure_retention(
        model,
        model,
        Identity(),
        Wanted(
            tasks=("needle", "recall", "cloze", "code"), limit=2, context_tokens=64, continuation_tokens=24
        ),
    )
    assert found.items == {"needle": 2, "recall": 2, "cloze": 2, "code": 2}
    assert known(found.figures["top1"]).value == 1.0
    assert not isinstance(found.turns, Refused)


def test_a_map_without_calibrated_positions_is_not_measured_beyond(model: Captured) -> None:
    class Unknown(Identity):
        positions = None  # type: ignore[assignment]

    found = measure_retention(model, model, Unknown(), wanted())
    assert isinstance(found.beyond, Refused)
    assert found.verdict.answer == "use inside the calibrated positions"


def test_no_room_beyond_is_said(model: Captured) -> None:
    class Wide(Identity):
        positions = 500

    found = measure_retention(model, model, Wide(), wanted())
    assert isinstance(found.beyond, Refused)
    assert "no room" in found.beyond.reason


def test_nothing_to_measure_is_refused(model: Captured, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tasks"):
        measure_retention(model, model, Identity(), Wanted())
