"""The index of prefixes against a loop over all earlier prompts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.analysis.lint.prefixes import Prefixes
from kvferry.analysis.lint.prompt import Piece, Prompt, common_length


def prompt(text: str, model: str = "") -> Prompt:
    return Prompt(1, text, [Piece(0, len(text), "prompt")], model=model)


TEXTS = st.lists(
    st.builds(lambda a, b, c: "x" * a + "y" * b + "z" * c, *[st.integers(0, 150)] * 3).filter(bool),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(TEXTS)
def test_the_longest_prefix_is_that_of_a_loop(texts: list[str]) -> None:
    index = Prefixes()
    for number, text in enumerate(texts):
        slow = max([common_length(text, 0, other, 0) for other in texts[:number]], default=0)
        assert index.longest(prompt(text))[0] == slow
        index.add(prompt(text))


def test_another_model_shares_nothing() -> None:
    index = Prefixes()
    index.add(prompt("x" * 500, "one"))
    assert index.longest(prompt("x" * 500, "two")) == (0, None)


def test_what_is_forgotten_is_counted() -> None:
    index = Prefixes(most_nodes=10)
    for letter in "abc":
        index.add(prompt(letter * 640))
    assert index.forgotten > 0


def test_kept_prompts_are_bounded() -> None:
    index = Prefixes(most_characters=1000)
    numbers = [index.add(prompt(letter * 400)) for letter in "abcd"]
    assert [index.get(number) is not None for number in numbers] == [False, False, True, True]
