from __future__ import annotations

from typing import Any

import msgspec
import pytest
from crossing import SECRET, failing, ids, manifest_of, namespace
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import ConfigError, FormatError
from kvferry.handoff.wire.manifest import Manifest, prompt_digest, require_same, seal, unseal
from kvferry.outcomes import Outcome


def test_a_sealed_manifest_comes_back() -> None:
    manifest = manifest_of(codec="int4")
    assert unseal(seal(manifest, SECRET), SECRET) == manifest


def test_another_tenants_seal_is_refused() -> None:
    failure = failing(lambda: unseal(seal(manifest_of(), SECRET), b"\1" * 32))
    assert failure.cause is Outcome.INCOMPATIBLE


@given(st.integers(32, 400), st.integers(0, 7))
def test_no_changed_bit_passes_the_seal(at: int, bit: int) -> None:
    data = bytearray(seal(manifest_of(), SECRET))
    data[at] ^= 1 << bit
    with pytest.raises(Exception, match="seal"):
        unseal(bytes(data), SECRET)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"handoff_id": "a/b"},
        {"handoff_id": ""},
        {"tokens": 0},
        {"tokens": 99},
        {"layers": 1 << 20},
        {"positions": ((5, 5),)},
        {"positions": ((0, 50), (40, 90))},
        {"positions": ((1, 101),)},
        {"chunk_tokens": 0},
        {"chunk_tokens": 33},
        {"token_ids": (1, 2, 3)},
        {"prefill_seconds": float("inf")},
        {"groups": "whole rows"},
        {"namespace": "00" * 32},
        {"head_dim": 0},
    ],
)
def test_nonsense_is_refused_on_either_side(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        msgspec.structs.replace(manifest_of(), **changes)


@pytest.mark.parametrize("word", [None, True, False])
def test_the_requests_word_on_mapped_kv_crosses(word: bool | None) -> None:
    """Left out where nothing is said, as in manifests from before there was such a word."""
    manifest = msgspec.structs.replace(manifest_of(), accept_mapped=word)
    data = seal(manifest, SECRET)
    assert unseal(data, SECRET).accept_mapped is word
    assert (b"accept_mapped" in data) is (word is not None)


def test_an_unknown_field_is_refused() -> None:
    document = msgspec.to_builtins(manifest_of()) | {"more": 1}
    with pytest.raises(msgspec.ValidationError, match="more"):
        msgspec.convert(document, Manifest)


def test_positions_of_a_compacted_prefill_are_runs() -> None:
    manifest = msgspec.structs.replace(
        manifest_of(), positions=((0, 10), (70, 100)), tokens=40, prompt_digest=prompt_digest(ids()[:100])
    )
    require_same(manifest, namespace(), codec="raw")


def test_a_lossy_codec_is_part_of_the_namespace() -> None:
    manifest = manifest_of(codec="int8")
    assert manifest.fields["kv_dtype"] == "float32+int8"
    assert "kv_dtype" in str(failing(lambda: require_same(manifest, namespace(), codec="raw")))
    require_same(manifest, namespace(), codec="int8")


@pytest.mark.parametrize("field", ["model", "weights_revision", "tenant", "position", "layout"])
def test_the_field_that_differs_is_named(field: str) -> None:
    manifest = manifest_of(space=namespace(**{field: "other"}))
    failure = failing(lambda: require_same(manifest, namespace(), codec="raw"))
    assert failure.cause is Outcome.INCOMPATIBLE
    assert f"{field} is other there" in str(failure)


def test_kv_of_another_prompt_is_refused() -> None:
    other = [1, *ids()[1:]]
    failure = failing(lambda: require_same(manifest_of(), namespace(), codec="raw", token_ids=other))
    assert "another prompt" in str(failure)


def test_ids_that_do_not_fit_the_digest_are_refused() -> None:
    lying = msgspec.structs.replace(manifest_of(), token_ids=(9, *ids()[1:]))
    assert "another prompt" in str(failing(lambda: require_same(lying, namespace(), codec="raw")))


def test_a_hand_off_without_ids_needs_the_requests_own() -> None:
    manifest = manifest_of(with_ids=False)
    require_same(manifest, namespace(), codec="raw", token_ids=ids())
    assert failing(lambda: require_same(manifest, namespace(), codec="raw")).cause is Outcome.INCOMPATIBLE


def test_an_engines_own_16_bit_type_is_raw() -> None:
    manifest = manifest_of(space=namespace(kv_dtype="bfloat16"), dtype="bfloat16", codec="bf16")
    assert (manifest.codec, manifest.fields["kv_dtype"], manifest.lossy) == ("raw", "bfloat16", False)
    with pytest.raises(ConfigError, match="write raw"):
        manifest_of(space=namespace(kv_dtype="bfloat16"), dtype="bfloat16", codec="fp16")
