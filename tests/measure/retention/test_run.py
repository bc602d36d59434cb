"""The whole measurement on tiny models: what is exact is exact, what is noise is told so."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kvferry.engines.transformers.capture import Captured
from kvferry.errors import UsageError
from kvferry.handoff.mapping.contract import Context
from kvferry.handoff.mapping.shapes import LayerKv, Prefill
from kvferry.measure.retention.asking import Asked
from kvferry.measure.retention.gathering import Wanted
from kvferry.measure.retention.requirements import LESS_IS_BETTER, MORE_IS_BETTER, parse_required
from kvferry.measure.retention.run import measure_retention
from kvferry.measure.retention.tasks.library import digest_of, library_documents
from kvferry.runs.retention_summary import Interval, Longer, Refused, Retention

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
    for name in ("top1@1", "top1@32", "top1@128", "floor_retention"):
        assert known(exact.figures[name]).value == pytest.approx(1.0, abs=1e-3)


def test_the_identity_loses_no_likelihood(exact: Retention) -> None:
    for name in ("kl", "nll_difference", "slope_nll"):
        if name in exact.figures and not isinstance(exact.figures[name], Refused):
            assert known(exact.figures[name]).value == pytest.approx(0.0, abs=1e-4)


def test_the_identity_may_be_used(exact: Retention) -> None:
    assert (exact.verdict.answer, exact.verdict.reasons) == ("use inside the calibrated positions", ())
    assert exact.verdict.longer.startswith("contexts longer than those calibrated: not judged, no item has")


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
    assert known(exact.figures["retention"]).low < 0.9


def test_holding_everything_back_needs_no_map(exact: Retention) -> None:
    (all_of_it,) = [one for one in exact.hold_back if one.tokens == 64]
    assert known(all_of_it.top1["none"]).value == 1.0
    assert known(all_of_it.gain).value == pytest.approx(0.0, abs=1e-4)


def test_the_curve_begins_with_the_first_token_s_agreement(exact: Retention) -> None:
    assert exact.curve[0].top1 == exact.top1["1"]


def test_further_behind_is_no_evidence_where_distance_is_all_that_counts(exact: Retention) -> None:
    assert isinstance(exact.beyond, Refused)
    assert "distances alone" in exact.beyond.reason
    assert exact.figures["beyond_top1"] == exact.beyond


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
            tasks=("needle", "recall", "cloze", "code"), limit=6, context_tokens=64, continuation_tokens=24
        ),
    )
    assert found.items == {"needle": 6, "recall": 6, "cloze": 6, "code": 6}
    assert known(found.figures["top1"]).value == 1.0
    assert not isinstance(found.turns, Refused)


def test_a_map_without_calibrated_positions_is_not_measured_beyond(model: Captured) -> None:
    class Unknown(Identity):
        positions = None  # type: ignore[assignment]

    found = measure_retention(model, model, Unknown(), wanted())
    assert isinstance(found.beyond, Refused)
    assert found.verdict.answer == "use inside the calibrated positions"
    assert isinstance(found.longer, Refused)
    assert "does not say which positions" in found.longer.reason


def test_few_documents_meet_no_requirement(model: Captured) -> None:
    required = tuple(parse_required(["top1>=0.1"]))
    found = measure_retention(
        model, model, Identity(), wanted(user_items=tuple(continued(5)), required=required)
    )
    assert isinstance(found.figures["top1"], Refused)
    assert [one.met for one in found.required] == [False]


def test_documents_that_the_map_names_as_seen_are_left_out(model: Captured) -> None:
    plan: dict[str, Any] = {"tasks": ("code",), "limit": 1, "context_tokens": 64, "continuation_tokens": 8}
    names: list[str] = []
    measure_retention(
        model, model, Identity(), Wanted(**plan), keep=lambda one: names.append(one.item.document)
    )
    seen = frozenset(digest_of(text) for name, text in library_documents(0) if name in names)

    class Named(Identity):
        seen_documents = seen

    found = measure_retention(
        model, model, Named(), Wanted(**plan), keep=lambda one: names.append(one.item.document)
    )
    assert len(set(names)) == 2
    assert not any("is not known" in note for note in found.notes)
    assert any("1 documents that the map names" in note for note in found.notes)


def test_conversations_that_reach_beyond_the_calibrated_positions_are_noted(exact: Retention) -> None:
    said = "conversations reach to about position 192, the map was calibrated on 128"
    assert said in exact.notes


class Forgetful(Identity):
    """Exact where it was calibrated; behind that its KV is noise."""

    positions = 60

    def carry(self, context: Context, source: Prefill, positions: torch.Tensor) -> Prefill:
        noise = Noise().carry(context, source, positions)
        layers = [
            LayerKv(
                torch.cat([own.keys[:, :60], other.keys[:, 60:]], 1),
                torch.cat([own.values[:, :60], other.values[:, 60:]], 1),
            )
            for own, other in zip(source.layers, noise.layers, strict=True)
        ]
        return Prefill(layers, positions)


class Short(Identity):
    positions = 60


BOTH = (*continued(10), *continued(10, first=10, context=90), *asked(8))


@pytest.fixture(scope="module")
def forgetful(model: Captured) -> Retention:
    return measure_retention(model, model, Forgetful(), wanted(user_items=BOTH))


def test_a_map_that_holds_inside_alone_is_known_for_one(forgetful: Retention) -> None:
    assert known(forgetful.figures["top1@32"]).value == 1.0
    assert known(forgetful.figures["longer_top1"]).high < 0.9
    assert forgetful.verdict.answer == "use inside the calibrated positions"
    assert "contexts of 90 to 90 tokens, longer than the 60 calibrated positions: do not use" in (
        forgetful.verdict.longer
    )


def test_longer_items_are_in_no_other_figure(model: Captured, forgetful: Retention) -> None:
    alone = measure_retention(model, model, Forgetful(), wanted(user_items=(*BOTH[:10], *BOTH[20:])))
    ours, theirs = (
        {name: one for name, one in found.figures.items() if not name.startswith(("longer", "slope"))}
        for found in (alone, forgetful)
    )
    assert ours == theirs
    assert (alone.items, alone.documents) == (forgetful.items, forgetful.documents)
    assert isinstance(forgetful.longer, Longer)
    assert (forgetful.longer.items, forgetful.longer.continued_documents) == (10, 10)


def test_a_map_that_holds_behind_what_was_calibrated_may_be_used_there(model: Captured) -> None:
    found = measure_retention(model, model, Short(), wanted(user_items=BOTH))
    assert (found.verdict.answer, found.verdict.reasons) == ("use", ())
    assert found.verdict.longer == (
        "contexts of 90 to 90 tokens, longer than the 60 calibrated positions: use"
    )
    assert any("10 items have contexts of more than the 60 calibrated" in note for note in found.notes)


def test_longer_contexts_alone_lift_no_no(model: Captured) -> None:
    found = measure_retention(model, model, Short(), wanted(user_items=BOTH[10:20]))
    assert known(found.figures["longer_top1"]).value == 1.0
    assert isinstance(found.figures["top1"], Refused)
    assert found.verdict.answer == "do not use"


def test_bundled_items_are_inside_and_longer_ones_are_asked_for(model: Captured) -> None:
    plan = Wanted(tasks=("recall", "code"), limit=6, continuation_tokens=24, longer_tokens=160)
    lengths: dict[str, list[int]] = {}
    documents: list[str] = []

    def keep(one: Asked) -> None:
        lengths.setdefault(one.item.task, []).append(one.context_tokens)
        documents.append(one.item.document)

    found = measure_retention(model, model, Identity(), plan, keep=keep)
    assert isinstance(found.longer, Longer)
    assert found.items == {"recall": 6, "code": 6}
    assert (found.longer.items, found.longer.documents) == (12, 12)
    assert max(lengths["code"][:6]) <= 128 < min(lengths["code"][6:])
    assert len(set(documents)) == 24
    assert (found.settings.context_tokens, found.settings.longer_tokens) == (120, 160)
    answers = found.longer.accuracy["recall"]
    assert answers["mapped"] == answers["target"]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"tasks": ("code",), "longer_tokens": 150}, "write 160 or more"),
        ({"user_items": tuple(continued(6)), "longer_tokens": 200}, "name tasks with --tasks"),
    ],
)
def test_longer_items_that_cannot_be_made_are_refused(model: Captured, plan: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        measure_retention(model, model, Identity(), Wanted(**plan))


def test_vocabularies_of_two_sizes_are_compared_over_what_they_share(model: Captured) -> None:
    other = copy.deepcopy(model.model)
    other.resize_token_embeddings(264, mean_resizing=False)
    padded = Captured(
        other,
        name="padded",
        weights_revision="padded",
        tokenizer_revision=model.kv.tokenizer,
        tokenizer=model.tokenizer,
    )
    found = measure_retention(padded, model, Identity(), wanted())
    assert known(found.kl["source"]).value == pytest.approx(0.0, abs=1e-4)
    assert known(found.top1["32"]["source"]).value == 1.0
    assert any("logits of 264 and 260 tokens" in note for note in found.notes)


def test_nothing_to_measure_is_refused(model: Captured, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tasks"):
        measure_retention(model, model, Identity(), Wanted())
