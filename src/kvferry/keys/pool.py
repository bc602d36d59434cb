"""Pool keys: under which name a block lies in a tier that others can reach.

    pool_key = BLAKE2b-256(key = tenant secret, person = "kvferry-key-v1", namespace digest + block hash)

Owns the step from a block hash to a key that nobody can guess without the tenant's secret. It knows nothing
of tiers, and never reads a secret itself. Every part that names blocks (engine, gateway, simulator) comes
here, so that they agree.

Without a root secret there is only the tenant "default" under a published secret: blocks are kept apart by
namespace, but whoever knows a prompt can name its blocks. That is no isolation, and is not called so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ..errors import ConfigError, InputError

__all__ = ["DEFAULT_SECRET", "PoolKeys", "pool_key", "record_key", "secret_of"]

DEFAULT_SECRET = hashlib.blake2b(b"kvferry: no isolation", digest_size=32).digest()
"""The secret of the tenant "default" where none is configured. Published here, so it hides nothing."""

_DIGEST_BYTES = 32
_SHORTEST_SECRET = 16
_LONGEST_SECRET = hashlib.blake2b.MAX_KEY_SIZE
_KEY_PERSON = b"kvferry-key-v1"
_ROOT_PERSON = b"kvferry-root-v1"
_TENANT_PERSON = b"kvferry-tenant"


def secret_of(tenant: str, root_secret: bytes | None = None) -> bytes:
    """The 32-byte secret of one tenant, from the root secret that serves all of them.

    Who holds a tenant's secret learns nothing of the root or of another tenant. Without a root secret the
    tenant "default" has `DEFAULT_SECRET`, and any other tenant raises `ConfigError`, as does a root of
    fewer than 16 bytes.
    """
    if not root_secret:
        if tenant != "default":
            raise ConfigError(
                f"tenant {tenant!r} has no secret: set tenant_secret, or leave tenant as 'default'"
            )
        return DEFAULT_SECRET
    if len(root_secret) < _SHORTEST_SECRET:
        raise ConfigError(
            f"tenant_secret has {len(root_secret)} bytes: write at least {_SHORTEST_SECRET} random ones"
        )
    # A BLAKE2b key ends at 64 bytes and a secret need not, so the root is condensed first.
    root = hashlib.blake2b(root_secret, digest_size=_DIGEST_BYTES, person=_ROOT_PERSON).digest()
    return hashlib.blake2b(
        tenant.encode(), key=root, digest_size=_DIGEST_BYTES, person=_TENANT_PERSON
    ).digest()


def pool_key(secret: bytes, namespace_digest: bytes, block_hash: bytes) -> bytes:
    """The 32-byte key of one block. `secret` has 16 to 64 bytes, both other arguments 32.

    Raises `InputError` for another length.
    """
    hasher = _keyed(secret, namespace_digest)
    hasher.update(_checked(block_hash, "a block hash"))
    return hasher.digest()


class PoolKeys:
    """Makes the keys of one namespace and remembers them, so that a prefix seen again costs a look-up.

    At least the `remember` keys used last are kept, at most twice as many (about 250 bytes each). Safe to
    use from several threads: a race only makes a key twice.
    """

    __slots__ = ("_known", "_remember", "namespace_digest")

    def __init__(
        self, namespace_digest: bytes, secret: bytes = DEFAULT_SECRET, *, remember: int = 32_768
    ) -> None:
        if remember < 1:
            raise InputError(f"remember must be at least 1, not {remember}")
        self.namespace_digest = namespace_digest
        self._remember = remember
        self._known = _Known(_keyed(secret, namespace_digest), {})

    def keys(self, block_hashes: Sequence[bytes]) -> list[bytes]:
        """The pool keys of these blocks, 32 bytes each, in order. Raises `InputError` for a bad hash."""
        known = self._known
        keys = list(map(known.__getitem__, block_hashes))
        if len(known) > self._remember:
            # Two generations: what is used again moves to the young one, the rest goes with the old.
            known.older = {}
            self._known = _Known(known.begun, known)
        return keys


class _Known(dict[bytes, bytes]):
    """Block hash to pool key; a missing one comes from the older generation or is made."""

    __slots__ = ("begun", "older")

    def __init__(self, begun: hashlib.blake2b, older: dict[bytes, bytes]) -> None:
        super().__init__()
        self.begun = begun
        self.older = older

    def __missing__(self, block_hash: bytes) -> bytes:
        key = self.older.get(block_hash)
        if key is None:
            hasher = self.begun.copy()
            hasher.update(_checked(block_hash, "a block hash"))
            key = hasher.digest()
        self[block_hash] = key
        return key


def record_key(key: bytes) -> str:
    """How records show a pool key: the first 16 bytes in hex. Tells blocks apart, opens none."""
    return key[:16].hex()


def _keyed(secret: bytes, namespace_digest: bytes) -> hashlib.blake2b:
    if not _SHORTEST_SECRET <= len(secret) <= _LONGEST_SECRET:
        raise InputError(
            f"a secret has {_SHORTEST_SECRET} to {_LONGEST_SECRET} bytes, not {len(secret)}: "
            "secret_of makes one from a secret of any greater length"
        )
    return hashlib.blake2b(
        _checked(namespace_digest, "a namespace digest"),
        key=secret,
        digest_size=_DIGEST_BYTES,
        person=_KEY_PERSON,
    )


def _checked(value: bytes, what: str) -> bytes:
    if len(value) != _DIGEST_BYTES:
        raise InputError(f"{what} has {_DIGEST_BYTES} bytes, not {len(value)}")
    return value
