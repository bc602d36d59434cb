"""Training: the loss falls below the controls', models stay as they are, kills change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kvferry.errors import FormatError, UsageError
from kvferry.handoff.crossing.crossmap import CrossMap
from kvferry.measure.crossing.behind import suffix_nll
from kvferry.measure.crossing.judging import beats_controls, gains_of, suffix_nlls, training_gain
from kvferry.measure.crossing.pieces import Pieces
from kvferry.measure.crossing.train import Recipe, Trained, facts_of, train
from kvferry.runs.retention_summary import Interval, Refused

SIZES: dict[str, int] = {"context_tokens": 24, "suffix_tokens": 6}
RECIPE = Recipe(
    source_layers=2,
    width=64,
    blocks=1,
    heads=2,
    code_width=0,
    calibration_tokens=1200,
    tokens=9000,
    hold_back=(1, 2),
    pieces_a_step=4,
    learning_rate=3e-3,
    **SIZES,
)
SHORT = msgspec.structs.replace(RECIPE, calibration_tokens=400, tokens=1000)


@pytest.fixture(scope="module")
def pieces(documents: Any, source: Any, target: Any) -> Pieces:
    return Pieces(documents, source, target, **SIZES)


@pytest.fixture(scope="module")
def trained(source: Any, target: Any, pieces: Pieces) -> Trained:
    return train(source, target, pieces, RECIPE)


def test_the_map_beats_its_controls_and_its_start(
    source: Any, target: Any, pieces: Pieces, held_out: Any, trained: Trained
) -> None:
    judged = pieces.held_out(held_out, 80)
    nlls = suffix_nlls(
        source, target, CrossMap(trained.network), judged, others={"closed form": CrossMap(trained.started)}
    )
    gains = gains_of(nlls, judged)
    assert beats_controls(gains)
    assert isinstance(start := gains["closed form"], Interval)
    assert start.low > 0
    assert isinstance(native := gains["target"], Interval)
    assert native.high < 0
    facts = facts_of(
        trained,
        RECIPE,
        device="one",
        judging_seconds=1.0,
        training_gain=0.1,
        documents=len(judged),
        nlls=nlls,
        gains=gains,
        beats_controls=True,
    )
    assert (facts.positions, facts.held_out_texts) == (24, 80)
    assert facts.trained_tokens >= 9000
    assert msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts


def test_validation_says_whether_training_helped(
    source: Any, target: Any, pieces: Pieces, held_out: Any, trained: Trained
) -> None:
    begun, ended = CrossMap(trained.started), CrossMap(trained.network)
    asked = pieces.validation(held_out, 20)
    gain = training_gain(source, target, begun, ended, asked)
    assert gain > 0
    assert training_gain(source, target, ended, begun, asked) == pytest.approx(-gain)


def test_an_untrained_map_is_a_failed_one(
    source: Any, target: Any, pieces: Pieces, held_out: Any, trained: Trained
) -> None:
    from kvferry.handoff.crossing.crossmap import random_map

    judged = pieces.held_out(held_out, 20)
    gains = gains_of(
        suffix_nlls(source, target, random_map(CrossMap(trained.network), seed=9), judged), judged
    )
    assert not beats_controls(gains)
    assert not beats_controls({"none": Refused(reason="few"), "random": Refused(reason="few")})


def test_both_models_stay_as_they_were(source: Any, target: Any, pieces: Pieces) -> None:
    before = [one.clone() for model in (source, target) for one in model.model.parameters()]
    train(source, target, pieces, SHORT)
    after = [one for model in (source, target) for one in model.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(one.grad is None for one in after)


def test_a_killed_training_goes_on_to_the_same_end(
    source: Any, target: Any, pieces: Pieces, place: Path
) -> None:
    whole = train(source, target, pieces, SHORT)
    ended = train(source, target, pieces, SHORT, checkpoint=place, seconds=0)
    assert (ended.steps, ended.finished) == (0, False)
    half = msgspec.structs.replace(SHORT, tokens=SHORT.tokens)

    class Killed(Exception):
        pass

    class Fragile:
        def piece(self, number: int) -> Any:
            if number == 20:
                raise Killed
            return pieces.piece(number)

    with pytest.raises(Killed):
        train(source, target, Fragile(), half, checkpoint=place, checkpoint_seconds=0)  # type: ignore[arg-type]
    found = train(source, target, pieces, SHORT, checkpoint=place)
    assert (found.steps, found.tokens, found.losses) == (whole.steps, whole.tokens, whole.losses)
    for ours, theirs in zip(found.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert found.seconds["closed form"] == ended.seconds["closed form"]


def test_a_checkpoint_of_other_settings_is_refused(
    source: Any, target: Any, pieces: Pieces, place: Path
) -> None:
    train(source, target, pieces, SHORT, checkpoint=place, seconds=0)
    with pytest.raises(FormatError, match="a checkpoint with seed 0, not 1"):
        train(source, target, pieces, msgspec.structs.replace(SHORT, seed=1), checkpoint=place)
    place.write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError, match="not a checkpoint"):
        train(source, target, pieces, SHORT, checkpoint=place)


def test_what_is_held_back_is_read_behind_the_kv(target: Any, held_out: Any, pieces: Pieces) -> None:
    (piece,) = pieces.held_out(held_out, 1)
    ids = piece.context.target_ids
    whole = target.prefill(ids)
    with torch.no_grad():
        found = []
        for kept in (len(ids) - 1, len(ids) - 7):
            kv = target.prefill(ids[:kept])
            found.append(float(suffix_nll(target, kv, ids[kept:], piece.suffix, kept)))
        logits = target.model(input_ids=torch.tensor([[*ids, *piece.suffix]])).logits[0, len(ids) - 1 : -1]
        given = float(suffix_nll(target, whole, (), piece.suffix, len(ids)))
    each = torch.nn.functional.cross_entropy(logits, torch.tensor(piece.suffix), reduction="none")
    assert found == pytest.approx([float(each.mean())] * 2, abs=1e-4)
    assert given == pytest.approx(float(each[1:].mean()), abs=1e-4)


def test_a_recipe_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="hold-back is at least 1"):
        Recipe(hold_back=(0,))
    with pytest.raises(UsageError, match="pieces_a_step must be at least 1"):
        Recipe(pieces_a_step=0)
