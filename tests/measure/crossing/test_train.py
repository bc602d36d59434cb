"""Training: the loss falls below the controls', models stay as they are, kills change nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kvferry.errors import FormatError, UsageError
from kvferry.handoff.crossing.crossmap import CrossFacts, CrossMap
from kvferry.measure.crossing.behind import suffix_nll
from kvferry.measure.crossing.calibrating import calibrate
from kvferry.measure.crossing.judging import beats_controls, gains_of, suffix_nlls, training_gain
from kvferry.measure.crossing.pieces import Pieces
from kvferry.measure.crossing.recipe import Recipe
from kvferry.measure.crossing.train import Trained, facts_of, train
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
def pieces(documents: Any, validation: Any, source: Any, target: Any) -> Pieces:
    return Pieces(documents, validation, source, target, **SIZES)


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


def facts_after(trained: Trained, training_gain: float) -> CrossFacts:
    return facts_of(
        trained,
        RECIPE,
        device="one",
        judging_seconds=1.0,
        training_gain=training_gain,
        seen_documents=["b", "a", "b"],
        documents=80,
        nlls={"mapped": [1.0, 2.0]},
        gains={"none": Refused(reason="few")},
        beats_controls=True,
    )


def test_a_map_says_how_it_came_about(trained: Trained) -> None:
    facts = facts_after(trained, 0.1)
    assert (facts.positions, facts.held_out_texts, facts.nll) == (24, 80, {"mapped": 1.5})
    assert facts.trained_tokens >= 9000
    assert facts.steps == trained.steps > 0
    assert facts.seen_documents == ("a", "b")
    assert msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts


def test_a_training_that_was_thrown_away_is_not_counted(trained: Trained) -> None:
    facts = facts_after(trained, -0.1)
    assert (facts.trained_tokens, facts.steps) == (0, 0)
    assert facts.calibration_tokens == trained.calibration_tokens


def test_the_closed_form_is_held_against_validation_documents(
    source: Any, target: Any, pieces: Pieces
) -> None:
    asked: dict[bool, list[str]] = {False: [], True: []}

    class Watched:
        def piece(self, number: int, *, validation: bool = False) -> Any:
            found = pieces.piece(number, validation=validation)
            asked[validation].append(found.document)
            return found

    calibrate(source, target, Watched(), SHORT)  # type: ignore[arg-type]
    assert len(asked[True]) == (len(asked[True]) + len(asked[False])) // 6 > 0
    assert all(name.startswith("validation-") for name in asked[True])
    assert all(name.startswith("train-") for name in asked[False])


def test_validation_says_whether_training_helped(
    source: Any, target: Any, pieces: Pieces, trained: Trained
) -> None:
    begun, ended = CrossMap(trained.started), CrossMap(trained.network)
    asked = pieces.validation(20)
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


class Killed(Exception):
    """Stands for a process that ends."""


class Mortal:
    """Pieces that end the training after so many."""

    def __init__(self, pieces: Pieces, left: int) -> None:
        self.pieces, self.digests, self.left = pieces, pieces.digests, left

    def piece(self, number: int, *, validation: bool = False) -> Any:
        if not self.left:
            raise Killed
        self.left -= 1
        return self.pieces.piece(number, validation=validation)


def assert_same(found: Trained, whole: Trained) -> None:
    assert (found.steps, found.tokens, found.losses) == (whole.steps, whole.tokens, whole.losses)
    assert (found.calibration_r2, found.kept_share) == (whole.calibration_r2, whole.kept_share)
    assert found.calibration_tokens == whole.calibration_tokens
    for ours, theirs in ((found.network, whole.network), (found.started, whole.started)):
        theirs_by_name = theirs.numbers()
        for name, numbers in ours.numbers().items():
            assert torch.equal(numbers, theirs_by_name[name])


@pytest.mark.parametrize("code_width", [0, 8])
def test_a_closed_form_that_dies_again_and_again_ends_as_one_that_did_not(
    source: Any, target: Any, pieces: Pieces, place: Path, code_width: int
) -> None:
    """It dies before its first piece, and behind every one that follows."""
    recipe = msgspec.structs.replace(SHORT, code_width=code_width, tokens=0)
    whole = train(source, target, pieces, recipe)
    deaths = 0
    for _ in range(60):
        try:
            found = train(
                source,
                target,
                Mortal(pieces, 1),  # type: ignore[arg-type]
                recipe,
                checkpoint=place,
                checkpoint_seconds=0,
            )
        except Killed:
            deaths += 1
            continue
        break
    assert deaths > 10
    assert_same(found, whole)


def test_a_closed_form_loses_no_more_than_its_interval(
    source: Any, target: Any, pieces: Pieces, place: Path
) -> None:
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(Killed):
            train(
                source,
                target,
                Mortal(pieces, 7),
                SHORT,
                checkpoint=place,
                checkpoint_seconds=0,
                say=said.append,
            )  # type: ignore[arg-type]
    assert [line for line in said if "going on with the closed form behind 7 pieces" in line]
    with pytest.raises(Killed):
        train(source, target, Mortal(pieces, 0), SHORT, checkpoint=place, say=said.append)  # type: ignore[arg-type]
    assert "behind 14 pieces" in said[-1]


def test_a_closed_form_of_another_training_is_refused(
    source: Any, target: Any, pieces: Pieces, documents: Any, validation: Any, place: Path
) -> None:
    with pytest.raises(Killed):
        train(source, target, Mortal(pieces, 5), SHORT, checkpoint=place, checkpoint_seconds=0)  # type: ignore[arg-type]
    other = Pieces(documents[1:], validation, source, target, **SIZES)
    with pytest.raises(FormatError, match="a checkpoint with text '"):
        train(source, target, other, SHORT, checkpoint=place)
    wider = msgspec.structs.replace(SHORT, width=32)
    with pytest.raises(FormatError, match="a checkpoint with width 64, not 32"):
        train(source, target, pieces, wider, checkpoint=place)


def test_a_killed_training_goes_on_to_the_same_end(
    source: Any, target: Any, pieces: Pieces, place: Path
) -> None:
    whole = train(source, target, pieces, SHORT)
    ended = train(source, target, pieces, SHORT, checkpoint=place, seconds=0)
    assert (ended.steps, ended.finished) == (0, False)
    with pytest.raises(Killed):
        train(source, target, Mortal(pieces, 20), SHORT, checkpoint=place, checkpoint_seconds=0)  # type: ignore[arg-type]
    found = train(source, target, pieces, SHORT, checkpoint=place)
    assert_same(found, whole)
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


def test_a_checkpoint_of_another_text_is_refused(
    source: Any, target: Any, pieces: Pieces, documents: Any, validation: Any, place: Path
) -> None:
    train(source, target, pieces, SHORT, checkpoint=place, seconds=0)
    less = Pieces(documents[1:], validation, source, target, **SIZES)
    with pytest.raises(FormatError, match="a checkpoint with text '"):
        train(source, target, less, SHORT, checkpoint=place)


def test_a_checkpoint_of_another_tokenizer_or_dtype_is_refused(
    source: Any, target: Any, pieces: Pieces, place: Path
) -> None:
    train(source, target, pieces, SHORT, checkpoint=place, seconds=0)
    recut = copy.copy(source)
    recut.kv = msgspec.structs.replace(source.kv, tokenizer="another")
    with pytest.raises(FormatError, match="source tokenizer 'pieces', not 'another'"):
        train(recut, target, pieces, SHORT, checkpoint=place)
    short = copy.copy(target)
    short.model = copy.deepcopy(target.model).to(torch.bfloat16)
    with pytest.raises(FormatError, match="target dtype 'float32', not 'bfloat16'"):
        train(source, short, pieces, SHORT, checkpoint=place)


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
    with pytest.raises(UsageError, match="pieces-a-step must be at least 1"):
        Recipe(pieces_a_step=0)
    with pytest.raises(UsageError, match="width 100: write a multiple of 16"):
        Recipe(width=100)
    with pytest.raises(UsageError, match="source-layers must be at least 1"):
        Recipe(source_layers=0)
    with pytest.raises(UsageError, match="a suffix at least 2"):
        Recipe(suffix_tokens=1)
