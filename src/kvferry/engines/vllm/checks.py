"""Whether a `--kv-transfer-config` is safe to run, and what to write where it is not.

Reads the settings alone, so that `kvferry doctor` can explain a file on a machine without vLLM; the connector
asks the same questions of the running engine. A finding that could give wrong tokens or dead requests
disables the connector, which then serves as plain vLLM; the others are said once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...config import Config, load
from ...errors import ConfigError

__all__ = ["ALLOW_FAIL", "HASHES", "Finding", "Role", "check_engine", "check_transfer", "read_extra"]

ALLOW_FAIL = "allow_fail"
"""Ours, beside the schema: the user accepts requests that die with their loads."""
HASHES = ("sha256_cbor",)
"""Values of --prefix-caching-hash-algo under which two processes name a block alike."""
MODULE = "kvferry.engines.vllm.connector"
_ROLES = ("kv_producer", "kv_consumer", "kv_both")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a setting."""

    what: str
    write: str
    """What to write instead."""
    disables: bool = True
    """Whether the connector must not be used with it."""

    def __str__(self) -> str:
        return f"{self.what}; {self.write}"


@dataclass(frozen=True, slots=True)
class Role:
    """What a kv_role lets this engine do."""

    loads: bool
    stores: bool

    @classmethod
    def of(cls, kv_role: str | None) -> Role:
        """kv_producer publishes and never loads; kv_consumer loads and never publishes."""
        return cls(loads=kv_role != "kv_producer", stores=kv_role != "kv_consumer")


def read_extra(extra: Mapping[str, Any], env: Mapping[str, str] | None = None) -> tuple[Config, bool]:
    """The settings in `kv_connector_extra_config`, and whether `allow_fail` is set. Raises ConfigError."""
    own = dict(extra)
    allow_fail = own.pop(ALLOW_FAIL, False)
    if not isinstance(allow_fail, bool):
        raise ConfigError(f"{ALLOW_FAIL}: {allow_fail!r} is neither true nor false")
    return load(json=own, env=env).config, allow_fail


def check_transfer(document: Mapping[str, Any]) -> list[Finding]:
    """What is to be said of a kv-transfer-config, as JSON. Raises ConfigError for our own settings."""
    findings = []
    name, module = document.get("kv_connector"), document.get("kv_connector_module_path")
    if name != "FerryConnector" or module != MODULE:
        findings.append(
            Finding(
                f"kv_connector is {name!r} from {module!r}, so that kvferry's connector is not used",
                f'write "kv_connector": "FerryConnector", "kv_connector_module_path": "{MODULE}"',
            )
        )
    if document.get("kv_role") not in _ROLES:
        findings.append(
            Finding(
                f"kv_role is {document.get('kv_role')!r}",
                f"write one of {', '.join(_ROLES)}: the producer only publishes, the consumer only loads",
            )
        )
    config, allow_fail = read_extra(document.get("kv_connector_extra_config") or {}, env={})
    if document.get("kv_load_failure_policy", "fail") != "recompute" and not allow_fail:
        findings.append(
            Finding(
                'kv_load_failure_policy is "fail", so that a request dies when its load does',
                'write "kv_load_failure_policy": "recompute" in --kv-transfer-config '
                '(or "allow_fail": true in kv_connector_extra_config to accept it)',
            )
        )
    if not config.pool and not config.disk and not config.host_memory:
        findings.append(
            Finding(
                "neither pool, disk nor host_memory is set, so that there is nothing to share with",
                'write "pool": "valkey://HOST:6379" or "host_memory": "16GiB" in kv_connector_extra_config',
                disables=False,
            )
        )
    if config.codec != "raw":
        findings.append(
            Finding(
                f"codec is {config.codec}: the connector moves pages as they are",
                'write "codec": "raw", or leave it out; for smaller blocks use --kv-cache-dtype fp8',
            )
        )
    if config.strict:
        findings.append(
            Finding(
                "strict is set: vLLM does not start when the connector cannot be used",
                "leave strict out to serve as plain vLLM then",
                disables=False,
            )
        )
    return findings


def check_engine(
    *, hash_algorithm: str, prefix_caching: bool, speculative: bool, context_parallel: int
) -> list[Finding]:
    """What is to be said of the engine beside the connector."""
    findings = []
    if hash_algorithm not in HASHES:
        findings.append(
            Finding(
                f"--prefix-caching-hash-algo is {hash_algorithm}, whose hashes are not the same everywhere",
                "write --prefix-caching-hash-algo sha256_cbor",
            )
        )
    if not prefix_caching:
        findings.append(
            Finding(
                "prefix caching is off, so that the engine cannot take up loaded blocks",
                "write --enable-prefix-caching (vLLM turns it off for MLA models on a CPU)",
            )
        )
    if speculative:
        findings.append(
            Finding(
                "speculative decoding keeps KV of a draft model, which kvferry does not carry",
                "leave --speculative-config out",
            )
        )
    if context_parallel > 1:
        findings.append(
            Finding(
                f"context parallelism ({context_parallel}) deals the tokens of a block out to ranks",
                "write --decode-context-parallel-size 1 --prefill-context-parallel-size 1",
            )
        )
    return findings
