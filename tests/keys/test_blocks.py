"""Block hashes equal vLLM's, however the tokens arrive, and refuse what is not a token."""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import InputError
from kvferry.keys import ChainHasher, block_hashes

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm-block-hashes.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["cases"]

# Every width of the encoding, and both sides of each boundary between them.
EDGES = [0, 23, 24, 255, 256, 65_535, 65_536, 2**31, 2**32 - 1]
tokens = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**32 - 1), st.integers(0, 50_000))
adapters = st.none() | st.tuples(st.text(), st.text())


def reference(
    token_ids: list[int], block_tokens: int, salt: str | None, lora: tuple[str, str] | None, seed: str
) -> list[bytes]:
    """The rule, spelled out with cbor2."""

    def h(value: object) -> bytes:
        return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()

    parent, hashes = h(seed), []
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        extra: list[tuple[str, ...]] = [("lora", *lora)] if lora else []
        if salt and start == 0:
            extra.append(("cache_salt", salt))
        parent = h((parent, tuple(token_ids[start : start + block_tokens]), tuple(extra) or None))
        hashes.append(parent)
    return hashes


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_equals_the_hashes_of_vllm(case: dict[str, Any]) -> None:
    lora = tuple(case["lora"]) if case["lora"] else None
    made = block_hashes(case["token_ids"], case["block_size"], salt=case["cache_salt"], lora=lora)
    assert [block.hex() for block in made] == case["block_hashes"]


@given(
    st.lists(tokens, max_size=200),
    st.integers(1, 70),
    st.none() | st.text(min_size=1),
    adapters,
    st.text(),
)
def test_equals_the_rule_spelled_out(
    ids: list[int], block_tokens: int, salt: str | None, lora: tuple[str, str] | None, seed: str
) -> None:
    made = block_hashes(ids, block_tokens, salt=salt, lora=lora, seed=seed)
    assert made == reference(ids, block_tokens, salt, lora, seed)


@pytest.mark.parametrize("block_tokens", [23, 24, 256, 5000])
def test_long_prompts_are_encoded_in_pieces(block_tokens: int) -> None:
    ids = [(i * 2654435761) % 2**32 for i in range(20_000)]
    made = block_hashes(ids, block_tokens, salt="s")
    assert made == reference(ids, block_tokens, "s", None, "vllm-none-hash")


@given(st.lists(st.lists(tokens, max_size=40), max_size=12), st.integers(1, 20), adapters)
def test_appending_in_pieces_gives_the_same_chain(
    pieces: list[list[int]], block_tokens: int, lora: tuple[str, str] | None
) -> None:
    hasher = ChainHasher(block_tokens, salt="salt", lora=lora)
    new = [block for piece in pieces for block in hasher.append(piece)]
    everything = [token for piece in pieces for token in piece]
    assert new == block_hashes(everything, block_tokens, salt="salt", lora=lora)


def test_append_reports_only_what_it_completed() -> None:
    hasher = ChainHasher(4)
    hasher.append([1, 2, 3, 4, 5])
    assert hasher.append([6, 7, 8]) == hasher.hashes[1:]


def test_the_chain_counts_its_tokens() -> None:
    hasher = ChainHasher(4)
    hasher.append([1, 2, 3, 4, 5])
    assert hasher.tokens == 5


@pytest.mark.parametrize("length", [0, 1, 31])
def test_less_than_a_block_has_no_hash(length: int) -> None:
    assert block_hashes([7] * length, 32) == []


@pytest.mark.parametrize(
    "ids", [(1, 2, 3), array("I", [1, 2, 3]), np.array([1, 2, 3]), [np.int64(1), np.int32(2), 3]]
)
def test_any_sequence_of_integers_will_do(ids: Any) -> None:
    assert block_hashes(ids, 3) == block_hashes([1, 2, 3], 3)


@pytest.mark.parametrize("bad", [-1, 2**32, 1.0, "1", None], ids=repr)
def test_a_bad_token_is_named(bad: Any) -> None:
    with pytest.raises(InputError, match=r"token 2 is "):
        block_hashes([1, 2, bad, 4], 2)


def test_a_bad_token_is_counted_from_the_start_of_the_chain() -> None:
    hasher = ChainHasher(4)
    hasher.append([1, 2, 3])
    with pytest.raises(InputError, match=r"token 4 is -7"):
        hasher.append([4, -7])


def test_a_refused_append_adds_nothing() -> None:
    hasher = ChainHasher(2)
    with pytest.raises(InputError):
        hasher.append([1, 2, 3, -4])
    assert hasher.append([1, 2]) == block_hashes([1, 2], 2)


@pytest.mark.parametrize("text", [b"abcd", "abcd"])
def test_text_is_not_a_list_of_tokens(text: Any) -> None:
    with pytest.raises(InputError, match="list of integers"):
        block_hashes(text, 2)


@pytest.mark.parametrize("block_tokens", [0, -1, True, 1.5, "16"], ids=repr)
def test_a_bad_block_size_is_refused(block_tokens: Any) -> None:
    with pytest.raises(InputError, match="block_tokens"):
        ChainHasher(block_tokens)


def test_an_empty_salt_is_refused() -> None:
    with pytest.raises(InputError, match="cache salt is empty"):
        ChainHasher(16, salt="")


def test_a_salt_that_is_not_text_is_refused() -> None:
    with pytest.raises(InputError, match="salt"):
        ChainHasher(16, salt="\ud800")
