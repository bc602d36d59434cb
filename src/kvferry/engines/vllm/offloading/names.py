"""What makes this engine's host chunks interchangeable with another's: a namespace per KV cache group.

A chunk in host memory is one row: the pages of every worker, one after the other. Owns the reading of
vLLM's offloading configuration, which is all that a tier is given, into the table of `keys/namespace`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping import canonical_format_id
from vllm.v1.kv_offload.base import OffloadKey, get_offload_block_hash, get_offload_group_idx

from ....config import Config
from ....errors import EngineError, FormatError, ModelError
from ....executors.membership import Membership, Standing
from ....keys.namespace import Namespace, canonical_text
from ....keys.pool import PoolKeys
from ....outcomes import Outcome
from ...cacheside import Adapter
from ...digests import tokenizer_digest, weights_digest
from ...spaces import Space

__all__ = ["ChunkSpaces", "member_name", "namespaces"]

log = logging.getLogger(__name__)

_VOLATILE = ("_name_or_path", "transformers_version")
_HASH_BYTES = 32


def namespaces(spec: Any, config: Config, data_class: str, row_bytes: int) -> dict[int, Namespace]:
    """The namespace of each KV cache group. Raises EngineError where the weights cannot be told apart."""
    engine = spec.config
    folder = Path(engine.model.name)
    per_chunk = int(engine.cache.blocks_per_chunk)
    layout = _layout(spec, row_bytes)
    return {
        int(group.group_id): Namespace(
            model=folder.name if folder.is_dir() else str(engine.model.name),
            weights_revision=_weights(folder, config),
            tokenizer=_tokenizer(folder),
            attention=canonical_text({"config": _config_digest(folder)}),
            position="",
            implementation="vllm-offloading",
            kv_dtype=str(engine.model.dtype),
            layout=f"{layout}/group-{int(group.group_id)}-of-{len(engine.groups)}",
            block_tokens=int(group.tokens_per_block) * per_chunk,
            tenant=config.tenant,
            data_class=data_class,
        )
        for group in engine.groups
    }


def member_name(data_class: str, group: int) -> str:
    """What a namespace is called among the members of a pool."""
    return data_class if group == 0 else f"{data_class}/{group}"


class ChunkSpaces:
    """See `engines.spaces.Spaces`; block hashes are vLLM's offload keys, which end in their group."""

    def __init__(
        self,
        namespaces: Mapping[str, Mapping[int, Namespace]],
        data_class: str,
        secret: bytes,
        membership: Membership | None,
    ) -> None:
        self.data_class = data_class
        self._keys = {
            (name, group): PoolKeys(namespace.digest(), secret)
            for name, groups in namespaces.items()
            for group, namespace in groups.items()
        }
        self._names = {
            name: [member_name(name, group) for group in groups] for name, groups in namespaces.items()
        }
        self._membership = membership

    def of(self, data_class: str, adapter: Adapter | None, hashes: Sequence[bytes]) -> Space:
        """The space of a request; all of its hashes are of one group."""
        if data_class not in self._names:
            why = f"data class {data_class!r} is not in shareable_data_classes"
            return Space(barred=Outcome.NOT_CACHEABLE, why=why)
        if not hashes:
            return Space()
        if len(get_offload_block_hash(OffloadKey(hashes[0]))) != _HASH_BYTES:
            why = "its block hashes are not of 32 bytes: write --prefix-caching-hash-algo sha256_cbor"
            return Space(barred=Outcome.NOT_CACHEABLE, why=why)
        group = get_offload_group_idx(OffloadKey(hashes[0]))
        digest = self.digest(data_class, group)
        if self._membership is not None:
            for name in self._names[data_class]:
                member = self._membership.members[name]
                if member.standing is Standing.REFUSED:
                    return Space((), digest, Outcome.INCOMPATIBLE, f"numerics: {member.why}")
                if member.standing is Standing.PENDING:
                    return Space((), digest, Outcome.FAILED, member.why)
        return Space(self.keys(data_class, group, hashes), digest)

    def digest(self, data_class: str, group: int) -> bytes:
        """The namespace of a group."""
        return self._keys[data_class, group].namespace_digest

    def keys(self, data_class: str, group: int, hashes: Sequence[bytes]) -> list[bytes]:
        """Pool keys of offload keys of one group."""
        return self._keys[data_class, group].keys([bytes(h[:-4]) for h in hashes])

    def standing(self) -> Mapping[str, Mapping[str, str]]:
        """How each namespace stands with the pool."""
        members = self._membership.members if self._membership is not None else {}
        return {name: {"standing": m.standing.value, "why": m.why} for name, m in members.items()}

    def close(self) -> None:
        """Stop joining."""
        if self._membership is not None:
            self._membership.close()


def _layout(spec: Any, row_bytes: int) -> str:
    """Everything that decides which byte of a row means what."""
    engine = spec.config
    parallel = engine.parallel
    shares = {
        name: int(getattr(parallel, name))
        for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    }
    replicated = bool(spec.replicated_layout)
    if parallel.is_parallelism_agnostic or replicated:
        # vLLM says that a row has the same bytes under any of these.
        shares = {}
    form = "direct"
    if engine.canonical_layout:
        form = canonical_format_id(str(engine.kv_cache_layout))
    table = {
        "form": form,
        "cache_layout": str(engine.kv_cache_layout or ""),
        "shares": shares,
        "replicated": replicated,
        "tokens_per_hash": int(engine.cache.tokens_per_hash),
        "blocks_per_chunk": int(engine.cache.blocks_per_chunk),
        "row_bytes": row_bytes,
        "groups": [[int(g.tokens_per_block), list(g.layer_names)] for g in engine.groups],
    }
    return "vllm-rows-1/" + hashlib.sha256(canonical_text(table).encode()).hexdigest()[:32]


def _weights(folder: Path, config: Config) -> str:
    if config.revision:
        return config.revision
    why = f"nothing tells which weights of {folder} these are"
    if folder.is_dir():
        try:
            return weights_digest(folder)
        except (ModelError, OSError) as error:
            why = str(error)
    raise EngineError(f"{why}; set revision in the tier's settings to the commit or a name of your own")


def _tokenizer(folder: Path) -> str:
    if folder.is_dir():
        try:
            return tokenizer_digest(folder)
        except (ModelError, OSError):
            log.info("%s has no tokenizer", folder)
    return "none"


def _config_digest(folder: Path) -> str:
    """Of the model's config.json where it is at hand; a revision names it too."""
    file = folder / "config.json"
    try:
        found = msgspec.json.decode(file.read_bytes())
        text = canonical_text({k: v for k, v in found.items() if k not in _VOLATILE})
    except (OSError, msgspec.DecodeError, FormatError, AttributeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
