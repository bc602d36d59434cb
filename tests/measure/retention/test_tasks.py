"""Bundled tasks: the same for one seed, answerable from the context alone, and of different documents."""

from __future__ import annotations

from random import Random

import pytest

from kvferry.errors import UsageError
from kvferry.measure.retention.items import Item
from kvferry.measure.retention.tasks import TASKS, Room, make_items
from kvferry.measure.retention.tasks.library import digest_of, library_documents
from kvferry.measure.retention.tasks.needle import needle_items


def cut(text: str, tokens: int) -> int:
    """Four characters a token, back to a space or line."""
    if 4 * tokens >= len(text):
        return len(text)
    return max(text.rfind(" ", 0, 4 * tokens + 1), text.rfind("\n", 0, 4 * tokens + 1))


ROOM = Room(context_tokens=120, continuation_tokens=40, cut=cut)


def made(*names: str, limit: int = 4, seed: int = 0) -> list[Item]:
    return make_items(names or list(TASKS), room=ROOM, limit=limit, seed=seed)


def test_the_same_seed_makes_the_same_items() -> None:
    assert made() == made()


def test_another_seed_makes_others() -> None:
    assert made(seed=1) != made()


def test_no_document_is_in_two_items() -> None:
    found = made(limit=6)
    assert len({item.document for item in found}) == len(found) == 24


@pytest.mark.parametrize("name", TASKS)
def test_contexts_keep_to_their_room(name: str) -> None:
    assert all(100 < len(item.context) <= 4 * 120 + 80 for item in made(name))


def test_a_needle_is_in_its_hay_once_and_the_others_are_not() -> None:
    for item in made("needle"):
        held = [choice in item.context for choice in item.choices]
        assert held == [at == item.answer for at in range(4)]
        assert f"{item.question}{item.choices[item.answer]}." in item.context


def test_every_choice_of_recall_is_in_the_list() -> None:
    for item in made("recall"):
        assert f"{item.question}{item.choices[item.answer]}\n" in item.context
        assert all(f":{choice}\n" in item.context for choice in item.choices)


def test_every_choice_of_cloze_is_in_the_text_before() -> None:
    for item in made("cloze"):
        assert all(choice.strip() in item.context.split() for choice in item.choices)


def test_code_goes_on_where_the_context_ends() -> None:
    texts = dict(library_documents(0))
    for item in made("code"):
        assert item.context + item.continuation in texts[item.document]


def test_texts_that_a_map_was_fitted_on_are_left_out() -> None:
    before = {item.document for item in made("code")}
    texts = dict(library_documents(0))
    without = frozenset(digest_of(texts[name]) for name in before)
    after = {item.document for item in make_items(["code"], room=ROOM, limit=4, seed=0, without=without)}
    assert before.isdisjoint(after)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UsageError, match="no task 'needles'; there are needle, recall"):
        made("needles")


def test_more_items_than_there_are_texts_are_refused() -> None:
    with pytest.raises(UsageError, match="--limit 100000: the task code makes"):
        made("code", limit=100_000)


def test_a_list_without_room_names_the_context() -> None:
    room = Room(context_tokens=8, continuation_tokens=8, cut=cut)
    with pytest.raises(UsageError, match="--context-tokens 8: too short for recall"):
        make_items(["recall"], room=room, limit=2, seed=0)


def test_numbers_that_the_hay_holds_are_no_choices() -> None:
    """The hay holds all numbers of four digits but ten."""
    left = set(range(1234, 1244))
    hay = " ".join(str(number) for number in range(1000, 10_000) if number not in left)
    prose = "A number follows. " * 40 + hay
    room = Room(context_tokens=len(prose), continuation_tokens=8, cut=lambda text, _: len(text) - 1)
    (item,) = needle_items([("m", f'"""{prose} end"""')], room, 1, Random(0))
    assert {int(choice) for choice in item.choices} <= left
