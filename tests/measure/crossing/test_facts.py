"""Made-up facts: the same for a seed, each answer stated once, nobody on two sides."""

from __future__ import annotations

import pytest

from kvferry.measure.crossing.facts import fact_documents


def names(text: str) -> set[str]:
    return {word.removesuffix("'s") for word in text.replace(".", " ").split() if word[0].isupper()}


def test_a_document_is_the_same_however_many_there_are() -> None:
    assert fact_documents(3, seed=4, side="test") == fact_documents(8, seed=4, side="test")[:3]
    assert fact_documents(3, seed=4, side="test") != fact_documents(3, seed=5, side="test")


def test_the_answer_stands_in_the_text() -> None:
    for document in fact_documents(20, seed=0, side="test"):
        for question in document.questions:
            stated = question.prompt.removeprefix("\nAs we know from above, ")
            said = [one for one in question.choices if stated + one + "." in document.text]
            assert said == [question.choices[question.answer]]
            assert len(set(question.choices)) == 4


@pytest.mark.parametrize("seed", [0, 1])
def test_people_are_on_one_side(seed: int) -> None:
    def people(side: str) -> set[str]:
        documents = fact_documents(60, seed=seed, side=side)  # type: ignore[arg-type]
        return {line.split("above, ")[1].split()[0].removesuffix("'s") for one in documents
                for line in one.restated.strip().split("\n")}  # fmt: skip

    assert people("train")
    assert people("test")
    assert not people("train") & people("test")


def test_training_says_every_fact_again() -> None:
    for document in fact_documents(5, seed=2, side="train"):
        for line in document.restated.strip().split("\n"):
            assert line.removeprefix("As we know from above, ") in document.text
