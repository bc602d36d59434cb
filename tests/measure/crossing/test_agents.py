"""The agents' task: every way answers the same questions, and gains are told apart."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvferry.errors import UsageError
from kvferry.handoff.crossing.crossmap import CrossMap
from kvferry.measure.crossing.agents import WAYS, AgentsFound, Task, run_agents
from kvferry.measure.crossing.pieces import Pieces
from kvferry.measure.crossing.recipe import Recipe
from kvferry.measure.crossing.train import train
from kvferry.runs.retention_summary import Interval


@pytest.fixture(scope="module")
def made(source: Any, target: Any) -> CrossMap:
    sizes: dict[str, int] = {"context_tokens": 40, "suffix_tokens": 4}
    recipe = Recipe(
        source_layers=1,
        width=16,
        blocks=1,
        heads=2,
        code_width=0,
        calibration_tokens=600,
        tokens=100,
        **sizes,
    )
    pieces = Pieces([], [], source, target, facts_share=1.0, **sizes)
    return CrossMap(train(source, target, pieces, recipe).network)


@pytest.fixture(scope="module")
def found(source: Any, target: Any, made: CrossMap) -> AgentsFound:
    return run_agents(source, target, made, Task(limit=6, keep=0.5, summary_tokens=3))


def test_every_way_is_there(found: AgentsFound) -> None:
    assert [way.name for way in found.arms] == list(WAYS)
    assert found.documents == found.questions == 6
    for way in found.arms:
        assert isinstance(way.accuracy, Interval)
        assert way.accuracy.n == 6
        assert way.handover_seconds >= 0
        assert way.answer_seconds > 0
        assert 0 < way.answer_nll < 10 * math.log(4)


def test_ways_keep_as_many_tokens_as_they_say(found: AgentsFound) -> None:
    kept = {way.name: way.kept_tokens for way in found.arms}
    assert kept["text"] == kept["mapped"] == kept["random"] == found.mean_tokens
    assert kept["compacted"] == kept["mapped, compacted"]
    assert kept["compacted"] - found.hold_back == pytest.approx((kept["text"] - found.hold_back) / 2, abs=0.5)


def test_nothing_handed_over_still_leaves_what_is_reread(found: AgentsFound) -> None:
    # This target puts no mark before a text.
    assert {way.name: way.kept_tokens for way in found.arms}["none"] == found.hold_back == 8


def test_gains_are_told_apart_and_together(found: AgentsFound) -> None:
    named = {way.name: way for way in found.arms}
    for name, ours, theirs in (
        ("mapping: mapped - text", "mapped", "text"),
        ("compaction: compacted - text", "compacted", "text"),
        ("both: mapped, compacted - text", "mapped, compacted", "text"),
    ):
        figure = found.differences[f"{name} (NLL)"]
        assert isinstance(figure, Interval)
        assert figure.value == pytest.approx(named[ours].answer_nll - named[theirs].answer_nll)
        assert name in found.differences


def test_a_whole_cache_compacted_is_the_text(source: Any, target: Any, made: CrossMap) -> None:
    found = run_agents(source, target, made, Task(limit=6, keep=1.0))
    named = {way.name: way for way in found.arms}
    assert "summary" not in named
    assert named["compacted"].answer_nll == pytest.approx(named["text"].answer_nll, abs=1e-4)
    assert named["mapped, compacted"].answer_nll == pytest.approx(named["mapped"].answer_nll, abs=1e-4)


def test_an_untrained_map_is_said_to_have_failed(found: AgentsFound) -> None:
    assert not found.beats_controls


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 5}, "6 documents at least"),
        ({"keep": 0.0}, "keep 0"),
        ({"hold_back": -1}, "at least 0"),
        ({"seed": -1}, "seed are at least 0"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Task(**options)
