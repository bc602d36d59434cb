"""Mapped KV is never taken for the real thing, nor used without a request's word."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvferry.errors import FormatError
from kvferry.handoff.mapping.namespace import check_models, mapped_from, mapped_namespace, refusal
from kvferry.keys import Namespace, PoolKeys, differences

from .planted import model_kv

DIGEST = "ab" * 32


def namespace(model: str, **changes: Any) -> Namespace:
    fields: dict[str, Any] = {
        "model": model,
        "weights_revision": f"{model}-1",
        "tokenizer": "t",
        "attention": "{}",
        "position": "p",
        "implementation": "transformers-sdpa",
        "kv_dtype": "float32",
        "layout": "l",
        "block_tokens": 16,
    }
    return Namespace(**{**fields, **changes})


SOURCE, TARGET = namespace("s"), namespace("t")
MAPPED = mapped_namespace(SOURCE, TARGET, DIGEST)


def test_it_differs_from_the_native_one_in_the_implementation_alone() -> None:
    assert differences(MAPPED, TARGET) == ("implementation",)


def test_it_says_where_it_comes_from() -> None:
    found = mapped_from(MAPPED)
    assert found is not None
    assert (found.map, found.source, found.target) == (
        DIGEST,
        SOURCE.digest().hex(),
        TARGET.digest().hex(),
    )


@pytest.mark.parametrize(
    "other",
    [
        mapped_namespace(namespace("u"), TARGET, DIGEST),
        mapped_namespace(SOURCE, namespace("u"), DIGEST),
        mapped_namespace(SOURCE, TARGET, "cd" * 32),
    ],
    ids=["source", "target", "map"],
)
def test_each_of_its_origins_makes_it_another(other: Namespace) -> None:
    assert other.digest() != MAPPED.digest()


def test_no_key_of_the_native_namespace_leads_to_it() -> None:
    blocks = [bytes([at]) * 32 for at in range(8)]
    native, mapped = (PoolKeys(one.digest()) for one in (TARGET, MAPPED))
    assert not set(native.keys(blocks)) & set(mapped.keys(blocks))


@pytest.mark.parametrize(
    ("wanted", "found", "permitted", "accepted", "words"),
    [
        (TARGET, TARGET, False, False, None),
        (TARGET, MAPPED, True, True, None),
        (TARGET, MAPPED, True, None, None),
        (TARGET, MAPPED, True, False, "the request does not accept it"),
        (TARGET, MAPPED, False, True, "this node does not permit it"),
        (TARGET, MAPPED, False, None, "this node does not permit it"),
        (SOURCE, MAPPED, True, True, "another namespace"),
        (TARGET, SOURCE, True, True, "another namespace"),
        (MAPPED, MAPPED, True, True, "never what is looked up"),
        (MAPPED, TARGET, True, True, "never what is looked up"),
    ],
)
def test_who_may_use_what(
    wanted: Namespace, found: Namespace, permitted: bool, accepted: bool | None, words: str | None
) -> None:
    answer = refusal(wanted, found, permitted=permitted, accepted=accepted)
    assert answer is None if words is None else answer is not None and words in answer


@pytest.mark.parametrize("field", ["tenant", "data_class"])
def test_a_map_crosses_no_boundary_of_trust(field: str) -> None:
    with pytest.raises(FormatError, match=field):
        mapped_namespace(namespace("s", **{field: "other"}), TARGET, DIGEST)


@pytest.mark.parametrize("pair", [(MAPPED, TARGET), (SOURCE, MAPPED)])
def test_maps_are_not_piled_up(pair: tuple[Namespace, Namespace]) -> None:
    with pytest.raises(FormatError, match="itself mapped"):
        mapped_namespace(*pair, DIGEST)


def test_a_digest_that_is_none_is_refused() -> None:
    with pytest.raises(FormatError, match="SHA-256"):
        mapped_namespace(SOURCE, TARGET, "abc")


def test_a_mark_that_does_not_parse_is_refused() -> None:
    with pytest.raises(FormatError, match="mark"):
        mapped_from(msgspec.structs.replace(TARGET, implementation="mapped by hand"))


@pytest.mark.parametrize("field", ["weights_revision", "tokenizer", "position"])
def test_another_model_than_the_map_s_is_named(field: str) -> None:
    model = model_kv("s", 1, 1, 4)
    check_models(model, SOURCE, "source")
    with pytest.raises(FormatError, match=field):
        check_models(model, namespace("s", **{field: "other"}), "source")
