"""`kvferry doctor --vllm`: what a kv-transfer-config will do, what is unsafe in it, what a block weighs.

Reads the JSON alone: it runs on a machine without vLLM. Owns the words; the rules are `engines/vllm/checks`,
which the connector asks as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..config import Config
from ..config.urls import hide_password
from ..engines.vllm.checks import MODULE, check_transfer, read_extra
from ..engines.vllm.checks import Finding as Problem
from ..engines.vllm.checks_tier import CONNECTOR, check_offloading, our_tiers, read_tier
from ..errors import UsageError
from ..units import format_bytes
from .findings import Finding
from .trace_sizes import weight_of

__all__ = ["examine_transfer", "read_transfer"]

_PUBLISHES = {
    "never": "nothing is published",
    "declared": "requests that declare a boundary are published up to it",
    "second-touch": "a block is published when it is asked for a second time",
    "all": "every computed block is published",
}


def read_transfer(text: str) -> Mapping[str, Any]:
    """A kv-transfer-config: a file of JSON, or the JSON itself. Raises UsageError."""
    where = "--vllm"
    if not text.lstrip().startswith("{"):
        path = Path(text)
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--vllm: cannot read {path}: {error}") from error
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: not JSON: {error}; write what follows --kv-transfer-config") from error
    if isinstance(document, dict) and isinstance(document.get("kv_transfer_config"), dict):
        document = document["kv_transfer_config"]
    if not isinstance(document, dict):
        raise UsageError(f'{where}: not an object; write {{"kv_connector": "FerryConnector", ...}}')
    return document


def examine_transfer(
    document: Mapping[str, Any], *, model: str | None, kv_dtype: str, block_tokens: int
) -> Iterator[Finding]:
    """Every finding of one kv-transfer-config."""
    name, module = document.get("kv_connector"), document.get("kv_connector_module_path")
    if isinstance(name, str) and name.startswith("Gated"):
        yield from _gated(name, module, document)
        return
    if name == CONNECTOR:
        yield from _offloading(document, model)
    else:
        yield from map(_finding, check_transfer(document))
        if module != MODULE:
            return
        config, _ = read_extra(document.get("kv_connector_extra_config") or {}, env={})
        yield Finding("role", "ok", _role(document.get("kv_role"), config))
        yield Finding("tiers", "ok", _tiers(config))
        yield _gate(config)
    yield Finding(
        "engine",
        "note",
        "blocks are named alike everywhere only with sha256_cbor",
        "start vLLM with --prefix-caching-hash-algo sha256_cbor",
    )
    if model is not None:
        weight, source = weight_of(model, kv_dtype, None)
        size = round((weight or 0.0) * block_tokens)
        yield Finding(
            "block",
            "ok",
            f"{block_tokens} tokens of {source} are {size} bytes ({format_bytes(size)}), all ranks together",
        )


def _offloading(document: Mapping[str, Any], model: str | None) -> Iterator[Finding]:
    yield from map(_finding, check_offloading(document))
    extra = document.get("kv_connector_extra_config") or {}
    for place, entry in our_tiers(document):
        config = read_tier(entry, place, env={})
        if not config.revision and not (model is not None and Path(model).is_dir()):
            yield Finding(
                "weights",
                "note" if model is None else "broken",
                "the tier is off unless it can tell the weights apart, which it does by revision, or by the "
                "files where vLLM's MODEL is a local folder",
                f'write "revision": "COMMIT-OF-THE-WEIGHTS" in secondary_tiers[{place}]',
            )
        host = extra.get("cpu_bytes_to_use")
        first = f"{format_bytes(host)} of vLLM's host memory, then " if isinstance(host, int) else ""
        yield Finding("role", "ok", f"a tier under vLLM's own offloading; {_PUBLISHES[config.publish]}")
        yield Finding("tiers", "ok", first + _tiers(msgspec.structs.replace(config, host_memory=0)))
        yield _gate(config)


def _finding(problem: Problem) -> Finding:
    return Finding(
        "kv-transfer-config", "broken" if problem.disables else "note", problem.what, problem.write
    )


def _gate(config: Config) -> Finding:
    return Finding(
        "gate",
        "ok",
        f"mode {config.gate.mode}, policy {config.gate.policy}: a load has to win by "
        f"{config.gate.margin * 1e3:g} ms and {config.gate.margin_share:.0%} of the recompute; "
        f"{config.gate.holdout_share:.0%} of requests never load, as the comparison",
    )


def _gated(name: str, module: Any, document: Mapping[str, Any]) -> Iterator[Finding]:
    wanted = "kvferry.engines.vllm.gated"
    if module != wanted:
        yield Finding(
            "kv-transfer-config",
            "broken",
            f"{name} is looked for in {module!r}",
            f'write "kv_connector_module_path": "{wanted}"',
        )
    inner = name.removeprefix("Gated")
    if inner == CONNECTOR and our_tiers(document):
        yield Finding(
            "kv-transfer-config",
            "note",
            "kvferry's tier under it has a gate of its own, and its metrics would stand on the page twice",
            f'write "kv_connector": "{CONNECTOR}", and no kv_connector_module_path',
        )
    if document.get("kv_load_failure_policy", "fail") != "recompute":
        yield Finding(
            "kv-transfer-config",
            "broken",
            'kv_load_failure_policy is "fail", so that a request dies when its load does',
            'write "kv_load_failure_policy": "recompute"',
        )
    yield Finding("gate", "ok", f"decides for {inner}: a request loads all that {inner} offers, or nothing")


def _role(role: Any, config: Config) -> str:
    publishes = _PUBLISHES[config.publish]
    if role == "kv_producer":
        return f"publishes and never loads; {publishes}"
    if role == "kv_consumer":
        return "loads and never publishes: a read-only pool"
    return f"loads and publishes; {publishes}"


def _tiers(config: Config) -> str:
    tiers = []
    if config.host_memory:
        tiers.append(f"{format_bytes(config.host_memory)} of host memory")
    if config.disk:
        tiers.append(config.disk)
    if config.pool:
        tiers.append(hide_password(config.pool))
    return ", then ".join(tiers) or "none: requests are served as by plain vLLM"
