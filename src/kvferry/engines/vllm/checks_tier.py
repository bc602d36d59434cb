"""Whether vLLM's OffloadingConnector, with our tier under it, is safe to run, and what to write where not.

The counterpart of `checks` for a tier: it reads the settings alone, on a machine without vLLM. What vLLM
would refuse is said as well, since a tier that is never made cannot say anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...config import Config, load
from ...errors import ConfigError
from ...keys.pool import secret_of
from .checks import Finding

__all__ = ["CONNECTOR", "SPEC", "TIER", "TIER_MODULE", "check_offloading", "our_tiers", "read_tier"]

CONNECTOR = "OffloadingConnector"
SPEC = "TieringOffloadingSpec"
TIER = "FerryTier"
TIER_MODULE = "kvferry.engines.vllm.tier"
_ENTRY = f'{{"type": "{TIER}", "module_path": "{TIER_MODULE}", "pool": "valkey://HOST:6379"}}'
_FLAT_SPEC = "CPUOffloadingSpec"
"""What vLLM takes without spec_name; it has no secondary tiers."""
_VLLMS = frozenset({"type", "module_path", "locality", "backpressure"})
"""Keys of an entry that vLLM reads itself."""
_LOCALITIES = ("LOCAL", "REMOTE")


def our_tiers(document: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """The entries of a kv-transfer-config that are meant for our tier, with their places in the list."""
    entries = _extra(document).get("secondary_tiers")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return []
    return [
        (place, entry)
        for place, entry in enumerate(entries)
        if isinstance(entry, Mapping)
        and (entry.get("type") == TIER or str(entry.get("module_path", "")).startswith("kvferry."))
    ]


def read_tier(entry: Mapping[str, Any], place: int, env: Mapping[str, str] | None = None) -> Config:
    """Our settings in one entry of `secondary_tiers`. Raises ConfigError, which names the entry."""
    given = {name: value for name, value in entry.items() if name not in _VLLMS}
    try:
        return load(json=given, env=env).config
    except ConfigError as error:
        said = str(error).replace("kv_connector_extra_config.", f"secondary_tiers[{place}].")
        raise ConfigError(said) from error


def check_offloading(document: Mapping[str, Any]) -> list[Finding]:
    """What is to be said of an OffloadingConnector's configuration. Raises ConfigError for our settings."""
    findings = _frame(document)
    for place, entry in our_tiers(document):
        findings += _entry(entry, place)
        findings += _settings(read_tier(entry, place, env={}), entry, place)
    return findings


def _extra(document: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = document.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def _frame(document: Mapping[str, Any]) -> list[Finding]:
    """What vLLM has to be told for there to be a tier at all."""
    extra, findings = _extra(document), []
    if not our_tiers(document):
        findings.append(
            Finding(
                "no entry of secondary_tiers is kvferry's, so that host memory is all there is",
                f'write "secondary_tiers": [{_ENTRY}] in kv_connector_extra_config',
            )
        )
    spec = extra.get("spec_name", _FLAT_SPEC)
    if spec == _FLAT_SPEC:
        findings.append(
            Finding(
                f"spec_name is {spec}, which knows no secondary tiers",
                f'write "spec_name": "{SPEC}" in kv_connector_extra_config',
            )
        )
    size = extra.get("cpu_bytes_to_use")
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        findings.append(
            Finding(
                f"cpu_bytes_to_use is {size!r}: vLLM wants the bytes of its host memory, and does not start",
                'write "cpu_bytes_to_use": 34359738368 in kv_connector_extra_config, for 32 GiB',
            )
        )
    role = document.get("kv_role")
    if role != "kv_both":
        findings.append(
            Finding(
                f"kv_role is {role!r}, which neither vLLM's offloading nor a tier looks at",
                'write "kv_role": "kv_both", and in the tier "publish": "never" to read alone, or '
                '"gate": {"policy": "never"} to publish alone',
                disables=role not in ("kv_producer", "kv_consumer"),
            )
        )
    return findings


def _entry(entry: Mapping[str, Any], place: int) -> list[Finding]:
    """What vLLM reads of our entry."""
    findings = []
    kind, module = entry.get("type"), entry.get("module_path")
    if kind != TIER or module != TIER_MODULE:
        findings.append(
            Finding(
                f"secondary_tiers[{place}] is {kind!r} from {module!r}, where there is no tier of kvferry's",
                f'write "type": "{TIER}", "module_path": "{TIER_MODULE}"',
            )
        )
    locality = entry.get("locality")
    if locality is not None and locality not in _LOCALITIES:
        findings.append(
            Finding(
                f"secondary_tiers[{place}].locality is {locality!r}, and vLLM does not start",
                'write "locality": "REMOTE" for a pool, "LOCAL" for a disk, or leave it out',
            )
        )
    return findings


def _settings(config: Config, entry: Mapping[str, Any], place: int) -> list[Finding]:
    """What the tier would refuse or leave out."""
    findings, here = [], f"secondary_tiers[{place}]"
    if not config.pool and not config.disk:
        findings.append(
            Finding(
                "neither pool nor disk is set, so that there is nothing to share with",
                f'write "pool": "valkey://HOST:6379" in {here}',
                disables=False,
            )
        )
    if config.codec != "raw":
        findings.append(
            Finding(
                f"codec is {config.codec}: the tier moves chunks as they are",
                f'write "codec": "raw" in {here}, or leave it out; for smaller ones use --kv-cache-dtype fp8',
            )
        )
    if config.host_memory:
        findings.append(
            Finding(
                "host_memory is left out: vLLM's own host memory lies before the tier",
                f"write cpu_bytes_to_use in kv_connector_extra_config, and no host_memory in {here}",
                disables=False,
            )
        )
    if "block_tokens" in entry:
        findings.append(
            Finding(
                f"block_tokens is {config.block_tokens}: the tier is off where vLLM's chunks have others",
                f"leave block_tokens out of {here}",
                disables=False,
            )
        )
    if config.tenant_secret is None:
        try:
            secret_of(config.tenant)
        except ConfigError as error:
            findings.append(Finding(str(error), f'write "tenant_secret": "file:PATH" in {here}'))
    if config.strict:
        findings.append(
            Finding(
                "strict is set: vLLM does not start when the tier cannot be used",
                "leave strict out to offload without it then",
                disables=False,
            )
        )
    return findings
