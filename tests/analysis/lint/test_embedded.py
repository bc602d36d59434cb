"""JSON inside texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.analysis.lint.embedded import canonical, enclosing, key_order_path, style

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab{}[]\\" é', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("xyz", max_size=2), VALUES, max_size=3), st.integers(0, 200), st.booleans())
def test_the_outermost_value_around_a_character_is_found(value: object, at: int, indented: bool) -> None:
    written = json.dumps(value, indent=2 if indented else None)
    text = f"see {'{'} here: {written} and more"
    start = text.index(written)
    at = start + at % len(written)
    found = enclosing(text, at, 0, len(text))
    assert found is not None
    assert (found.start, found.end, found.value) == (start, start + len(written), value)


def test_nothing_is_found_outside_of_json() -> None:
    assert enclosing('see {"a": 1} here', 14, 0, 17) is None


def test_the_path_names_the_object_whose_keys_moved() -> None:
    left = {"a": 1, "b": [{"x": 1, "y": 2}]}
    right = {"a": 1, "b": [{"y": 2, "x": 1}]}
    assert key_order_path(left, right) == "$.b[0]"
    assert key_order_path(left, right, named=False) == "$.*[0]"


@given(VALUES)
def test_a_value_is_ordered_as_itself(value: object) -> None:
    assert key_order_path(value, json.loads(json.dumps(value))) is None


@given(VALUES)
def test_sorted_keys_are_one_canonical_text(value: object) -> None:
    assert canonical(json.loads(json.dumps(value, sort_keys=True))) == canonical(value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"a":1}', "compact"),
        ('{"a": 1}', "spaced"),
        ('{\n  "a": 1\n}', "indented 2"),
        ('{ "a" : 1 }', "mixed"),
        ('{"a": "\\u00e9"}', "spaced, escaped"),
    ],
)
def test_styles(text: str, name: str) -> None:
    assert style(text, json.loads(text)) == name
