"""What the gate in front of another connector is told: the object `kvferry` inside its extra config.

Owns the reading of that object with the schema that is used everywhere, the settings that mean nothing here
(the other connector moves the bytes, so a pool or a codec of ours would be a mistake), and the extra config
that is left for the other connector. Knows nothing of vLLM's classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....cache.settings import CacheSettings
from ....config import Config, Loaded, load
from ....errors import ConfigError
from ....outcomes import Outcome
from ....store.tier import Kind
from ... import assembly

__all__ = ["HANDOFF_TIER", "INNER_MODULE", "KEY", "KINDS", "cache_settings", "inner_extra", "read_settings"]

_EXTRA = "kv_connector_extra_config"
KEY = "kvferry"
"""Under which name our settings stand in kv_connector_extra_config."""
INNER_MODULE = "inner_module_path"
"""Where the class of an inner connector is found that vLLM does not know by name."""

KINDS = (Kind.HOST, Kind.DISK, Kind.P2P, Kind.POOL, Kind.P2P)
"""Where blocks may come from, nearest first; the last place stands for a hand-off."""
_OUTCOMES = (Outcome.HOST_HIT, Outcome.DISK_HIT, Outcome.POOL_HIT, Outcome.POOL_HIT, Outcome.HANDOFF)
HANDOFF_TIER = len(KINDS) - 1

_USED = frozenset(
    {
        "limits.replica_loads",
        "limits.new_replica_loads",
        "limits.growth_per_load",
        "timeouts.load",
        "control",
        "record",
        "replica",
        "profile",
        "data_class",
        "tenant",
        "tenant_secret",
        "strict",
    }
)


def read_settings(extra: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Loaded:
    """The settings under `kvferry` of a connector's extra config, beside the file and the environment.

    Raises `ConfigError` for an unknown key, a bad value, and for a setting of ours that moves or keeps
    blocks: in front of another connector it would be silently without effect.
    """
    given = extra.get(KEY, {})
    if not isinstance(given, Mapping):
        raise ConfigError(f'{_EXTRA}.{KEY}: {given!r} is not an object; write {{"gate": {{"mode": "on"}}}}')
    try:
        loaded = load(env=env, json=dict(given))
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{_EXTRA}.", f"{_EXTRA}.{KEY}.")) from error
    for path, origin in loaded.origins.items():
        if origin.kind == "json" and path not in _USED and not path.startswith("gate."):
            raise ConfigError(
                f"{path} ({_EXTRA}.{KEY}.{path}): has no effect in front of another connector, which "
                "keeps and moves the blocks itself; remove it, or set it in that connector's own settings"
            )
    return loaded


def inner_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What is left for the inner connector: its own settings, untouched."""
    return {name: value for name, value in extra.items() if name not in (KEY, INNER_MODULE)}


def cache_settings(config: Config, *, block_tokens: int, bytes_per_token: int) -> CacheSettings:
    """The gate's and the ledger's settings, for the places where another connector's blocks may come from."""
    return assembly.cache_settings(
        config, _OUTCOMES, block_tokens=block_tokens, bytes_per_token=bytes_per_token
    )
