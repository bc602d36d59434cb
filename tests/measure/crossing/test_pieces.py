"""Pieces: the same for a number, whole characters, the context read by both."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry.errors import UsageError
from kvferry.handoff.mapping.texts import Document
from kvferry.measure.crossing.pieces import Pieces
from kvferry.measure.retention.reader import Reader, leading_marks, read_context
from kvferry.measure.retention.tasks.library import digest_of

OTHERS = [Document("other", "no window is cut from this")]


def pieces(documents: Any, source: Any, target: Any, **options: Any) -> Pieces:
    sizes = {"validation": OTHERS, "context_tokens": 20, "suffix_tokens": 5}
    return Pieces(documents, source=source, target=target, **{**sizes, **options})


def test_a_piece_is_the_same_for_its_number(documents: Any, source: Any, target: Any) -> None:
    one, other = (pieces(documents, source, target) for _ in range(2))
    assert one.piece(7) == other.piece(7)
    assert one.piece(7) != one.piece(8)
    assert one.piece(7) != pieces(documents, source, target, seed=1).piece(7)


def test_both_read_the_context_and_the_target_goes_on(documents: Any, source: Any, target: Any) -> None:
    piece = pieces(documents, source, target).piece(0)
    context = piece.context
    assert len(context.target_ids) == 20
    assert len(piece.suffix) == 5
    assert source.tokenizer.decode(context.source_ids, skip_special_tokens=True) == context.text
    whole = context.text + target.tokenizer.decode(piece.suffix)
    (document,) = [one for one in documents if one.name == piece.document]
    assert whole in document.text


def test_facts_are_pieces_too(source: Any, target: Any) -> None:
    piece = pieces([], source, target, facts_share=1.0).piece(3)
    assert piece.document.startswith("facts-train")
    assert len(piece.suffix) == 5


def test_held_out_pieces_are_of_one_document_each(held_out: Any, source: Any, target: Any) -> None:
    made = pieces(held_out, source, target)
    found = made.held_out(held_out, 5)
    assert [one.document for one in found] == [one.name for one in held_out[:5]]
    assert found == made.held_out(held_out, 5)
    assert made.held_out([Document("short", "bake")], 5) == []


def test_validation_has_facts_in_their_share(
    documents: Any, validation: Any, source: Any, target: Any
) -> None:
    made = pieces(documents, source, target, validation=validation, facts_share=0.5)
    found = [one.document for one in made.validation(6)]
    assert found[:3] == [one.name for one in validation[:3]]
    assert all(name.startswith("facts-train") for name in found[3:])
    assert not {*found[3:]} & {made.piece(number).document for number in range(50)}


def test_each_side_is_cut_from_its_own_documents(
    documents: Any, validation: Any, source: Any, target: Any
) -> None:
    made = pieces(documents, source, target, validation=validation)
    for side, own in ((False, documents), (True, validation)):
        assert {made.piece(n, validation=side).document for n in range(12)} <= {one.name for one in own}


def test_digests_are_those_that_an_evaluation_knows(
    documents: Any, validation: Any, source: Any, target: Any
) -> None:
    found = pieces(documents, source, target, validation=validation).digests
    assert found == tuple(digest_of(one.text) for one in (*documents, *validation))


def test_a_mark_before_the_text_is_known(source: Any, target: Any) -> None:
    context = read_context("bakeba", Reader(source), Reader(target))
    assert leading_marks(context.source_spans) == 1
    assert leading_marks(context.target_spans) == 0


def test_what_cannot_be_cut_is_refused(source: Any, target: Any) -> None:
    with pytest.raises(UsageError, match="at least 8 tokens"):
        pieces([], source, target, context_tokens=4, facts_share=1.0)
    with pytest.raises(UsageError, match="no documents"):
        pieces([], source, target)
    with pytest.raises(UsageError, match="facts share 2"):
        pieces([], source, target, facts_share=2)
    short = pieces([Document("short", "bake")], source, target)
    with pytest.raises(UsageError, match="training documents are too short for 20 tokens of context"):
        short.piece(0)
    with pytest.raises(UsageError, match="validation documents are too short"):
        short.piece(0, validation=True)
