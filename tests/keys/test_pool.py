"""Pool keys: the documented function, remembered within a bound, apart by secret and by namespace."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import ConfigError, InputError
from kvferry.keys import DEFAULT_SECRET, PoolKeys, pool_key, record_key, secret_of

SECRET = b"a secret of the tenant, 32 bytes"
DIGEST = hashlib.sha256(b"namespace").digest()
ROOT = b"root secret of sixteen or more bytes"


def block(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


def test_the_key_is_the_documented_function() -> None:
    expected = hashlib.blake2b(DIGEST + block(1), key=SECRET, digest_size=32, person=b"kvferry-key-v1")
    assert pool_key(SECRET, DIGEST, block(1)) == expected.digest()


@pytest.mark.parametrize(
    "other",
    [
        pool_key(SECRET[::-1], DIGEST, block(1)),
        pool_key(SECRET, DIGEST[::-1], block(1)),
        pool_key(SECRET, DIGEST, block(2)),
    ],
    ids=["secret", "namespace", "block"],
)
def test_every_part_changes_the_key(other: bytes) -> None:
    assert other != pool_key(SECRET, DIGEST, block(1))


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_secret_of_the_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(InputError, match=f"16 to 64 bytes, not {length}"):
        pool_key(bytes(length), DIGEST, block(1))


def test_a_digest_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match="a namespace digest has 32 bytes, not 31"):
        PoolKeys(DIGEST[:31], SECRET)


def test_a_block_hash_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match="a block hash has 32 bytes, not 8"):
        PoolKeys(DIGEST, SECRET).keys([bytes(8)])


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=10), st.integers(1, 20))
def test_remembered_keys_are_the_keys(batches: list[list[int]], remember: int) -> None:
    maker = PoolKeys(DIGEST, SECRET, remember=remember)
    made = [maker.keys([block(number) for number in batch]) for batch in batches]
    assert made == [[pool_key(SECRET, DIGEST, block(number)) for number in batch] for batch in batches]


def test_what_is_remembered_is_bounded() -> None:
    maker = PoolKeys(DIGEST, SECRET, remember=100)
    for start in range(0, 5000, 10):
        maker.keys([block(number) for number in range(start, start + 10)])
    held = len(maker._known) + len(maker._known.older)
    assert held <= 220


def test_what_is_used_stays_remembered() -> None:
    maker = PoolKeys(DIGEST, SECRET, remember=100)
    (first,) = maker.keys([block(0)])
    for start in range(10, 1000, 10):
        maker.keys([block(number) for number in range(start, start + 10)])
        (again,) = maker.keys([block(0)])
        assert again is first


def test_a_memory_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="remember must be at least 1"):
        PoolKeys(DIGEST, SECRET, remember=0)


def test_the_default_tenant_needs_no_secret() -> None:
    assert secret_of("default") == DEFAULT_SECRET


@pytest.mark.parametrize("root", [None, b""])
def test_any_other_tenant_needs_one(root: bytes | None) -> None:
    with pytest.raises(ConfigError, match="tenant 'a' has no secret: set tenant_secret"):
        secret_of("a", root)


def test_a_root_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigError, match="tenant_secret has 6 bytes"):
        secret_of("a", b"secret")


def test_a_root_of_any_length_serves() -> None:
    assert len(secret_of("a", ROOT * 100)) == 32


def test_tenants_of_one_root_have_secrets_of_their_own() -> None:
    assert len({secret_of(tenant, ROOT) for tenant in ("default", "a", "b")} | {DEFAULT_SECRET}) == 4


def test_a_record_shows_half_of_the_key() -> None:
    assert record_key(bytes(range(32))) == "000102030405060708090a0b0c0d0e0f"
