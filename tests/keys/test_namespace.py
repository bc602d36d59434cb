"""Namespaces: one digest for equal fields, another for any difference, and words for which."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import FormatError
from kvferry.keys import Namespace, canonical_text, differences
from kvferry.keys.namespace import FIELDS

OURS = Namespace(
    model="smollm2-135m",
    weights_revision="sha256:12ab",
    tokenizer="sha256:34cd",
    attention=canonical_text({"heads": 9, "kv_heads": 3, "head_dim": 64}),
    position=canonical_text({"kind": "rope", "theta": 100000.0}),
    implementation="transformers-sdpa",
    kv_dtype="float32",
    layout="l2htd/avx512",
    block_tokens=32,
    parallel_size=2,
)
OTHER: dict[str, Any] = {
    "format_version": 2,
    "model": "other",
    "weights_revision": "other",
    "tokenizer": "other",
    "attention": "other",
    "position": "other",
    "implementation": "other",
    "kv_dtype": "bfloat16",
    "layout": "other",
    "block_tokens": 16,
    "parallel_rank": 1,
    "parallel_size": 4,
    "adapter": "other",
    "adapter_version": "other",
    "tenant": "other",
    "data_class": "other",
}


def test_the_digest_is_the_documented_one() -> None:
    table = [[name, getattr(OURS, name)] for name in FIELDS]
    expected = cbor2.dumps(["kvferry-namespace", 1, table], canonical=True)
    assert OURS.digest() == hashlib.sha256(expected).digest()


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_changes_the_digest(name: str) -> None:
    assert msgspec.structs.replace(OURS, **{name: OTHER[name]}).digest() != OURS.digest()


@pytest.mark.parametrize("name", FIELDS)
def test_a_difference_is_named(name: str) -> None:
    assert differences(OURS, msgspec.structs.replace(OURS, **{name: OTHER[name]})) == (name,)


def test_differences_come_in_the_order_of_the_table() -> None:
    theirs = msgspec.structs.replace(OURS, tenant="b", model="m", adapter="a")
    assert differences(OURS, theirs) == ("model", "adapter", "tenant")


def test_equal_namespaces_do_not_differ() -> None:
    assert differences(OURS, Namespace.from_fields(OURS.fields())) == ()


def test_fields_of_a_later_format_are_compared_by_name() -> None:
    assert differences(OURS, {**OURS.fields(), "sparsity": "none"}) == ("sparsity",)


def test_fields_read_back_as_the_same_namespace() -> None:
    assert Namespace.from_fields(OURS.fields()) == OURS


def test_values_cannot_run_into_each_other() -> None:
    left = msgspec.structs.replace(OURS, adapter="ab", adapter_version="c")
    right = msgspec.structs.replace(OURS, adapter="a", adapter_version="bc")
    assert left.digest() != right.digest()


def test_with_rank_changes_the_rank_alone() -> None:
    assert differences(OURS, OURS.with_rank(1)) == ("parallel_rank",)


def test_a_rank_outside_its_group_is_refused() -> None:
    with pytest.raises(FormatError, match="parallel_rank must be from 0 to 1"):
        OURS.with_rank(2)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("bad", [None, True, 1.5, b"x"], ids=repr)
def test_a_value_of_the_wrong_type_is_refused(name: str, bad: object) -> None:
    with pytest.raises(FormatError, match=f"namespace field {name} must be"):
        Namespace.from_fields({**OURS.fields(), name: bad})


@pytest.mark.parametrize("name", ["model", "weights_revision", "kv_dtype", "layout", "tenant", "data_class"])
def test_what_tells_blocks_apart_must_be_given(name: str) -> None:
    with pytest.raises(FormatError, match=f"namespace field {name} is empty"):
        msgspec.structs.replace(OURS, **{name: ""})


@pytest.mark.parametrize("name", ["format_version", "block_tokens", "parallel_size"])
def test_counts_begin_at_one(name: str) -> None:
    with pytest.raises(FormatError, match=f"{name} must be at least 1"):
        msgspec.structs.replace(OURS, **{name: 0})


def test_text_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(FormatError, match="namespace field adapter is not valid text"):
        msgspec.structs.replace(OURS, adapter="\ud800")


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(FormatError, match=r"'tokeniser'; did you mean tokenizer\?"):
        Namespace.from_fields({**OURS.fields(), "tokeniser": "x"})


def test_missing_fields_are_named() -> None:
    fields = OURS.fields()
    del fields["tenant"], fields["layout"]
    with pytest.raises(FormatError, match="lacks layout, tenant"):
        Namespace.from_fields(fields)


def test_describe_shows_what_is_set() -> None:
    assert "adapter" not in OURS.describe()


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({"theta": 100000.0}, '{"theta":100000}'),
        ({"eps": 1e-05}, '{"eps":1e-05}'),
        ({"n": -0.0}, '{"n":0}'),
        ({"x": None, "y": True}, '{"x":null,"y":true}'),
        ({"f": (1, [2.5, "é"])}, '{"f":[1,[2.5,"é"]]}'),
        ({"rope": {"z": 1, "y": {"q": 'a"b'}}}, '{"rope":{"y":{"q":"a\\"b"},"z":1}}'),
        ({}, "{}"),
    ],
)
def test_canonical_text(parameters: dict[str, Any], text: str) -> None:
    assert canonical_text(parameters) == text


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), values, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(parameters: dict[str, Any], random: Any) -> None:
    names = list(parameters)
    random.shuffle(names)
    assert canonical_text({name: parameters[name] for name in names}) == canonical_text(parameters)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_canonical_text_reads_back_as_the_same_values(parameters: dict[str, Any]) -> None:
    assert json.loads(canonical_text(parameters)) == parameters


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"a": float("nan")}, "parameters.a is nan"),
        ({"a": [1, {"b": object()}]}, r"parameters.a\[1\].b is a object"),
        ({"a": {1: 2}}, "parameters.a has the key 1"),
    ],
)
def test_what_cannot_name_a_namespace_is_refused(parameters: dict[str, Any], path: str) -> None:
    with pytest.raises(FormatError, match=path):
        canonical_text(parameters)
