"""What makes this engine's blocks interchangeable with another's: its namespaces, from vLLM's own config.

Owns the reading of vLLM's configuration into the table of `keys/namespace`. Every rank and every KV cache
group has a namespace of its own; ranks that hold the same bytes (MLA's latent) share one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...config import Config
from ...errors import EngineError, ModelError
from ...keys.namespace import Namespace, canonical_text
from ..digests import tokenizer_digest, weights_digest
from .orders import GroupShape

__all__ = ["Engine", "adapter_version", "engine_of", "kv_dtype_of", "namespaces"]

log = logging.getLogger(__name__)

_VOLATILE = ("_name_or_path", "transformers_version")
"""Of a config.json: what says nothing of the model's numbers."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What of an engine's configuration names its blocks."""

    model: str
    weights: str
    tokenizer: str
    attention: str
    position: str
    quantization: str
    kv_dtype: str
    block_tokens: int


def engine_of(vllm_config: Any, config: Config, block_tokens: int) -> Engine:
    """Read vLLM's configuration. Raises EngineError where the weights cannot be told apart."""
    model = vllm_config.model_config
    text = model.hf_text_config
    folder = Path(model.model)
    return Engine(
        model=folder.name if folder.is_dir() else str(model.model),
        weights=_weights(model, folder, config),
        tokenizer=_tokenizer(model),
        attention=canonical_text(
            {
                "layers": int(getattr(text, "num_hidden_layers", 0) or 0),
                "heads": int(getattr(text, "num_attention_heads", 0) or 0),
                "kv_heads": int(model.get_total_num_kv_heads()),
                "width": int(model.get_head_size()),
                "config": _config_digest(model, folder),
            }
        ),
        position=canonical_text(_plain(getattr(text, "rope_parameters", None) or {"rope_type": "none"})),
        quantization=str(model.quantization or ""),
        kv_dtype=kv_dtype_of(vllm_config),
        block_tokens=block_tokens,
    )


def kv_dtype_of(vllm_config: Any) -> str:
    """Type of the cache's elements, as vLLM names it."""
    cache_dtype = vllm_config.cache_config.cache_dtype
    dtype = vllm_config.model_config.dtype
    return str(dtype).removeprefix("torch.") if cache_dtype == "auto" else str(cache_dtype)


def namespaces(
    engine: Engine,
    config: Config,
    data_class: str,
    shapes: Sequence[Sequence[GroupShape]],
    replicas: Sequence[int],
) -> tuple[tuple[Namespace, ...], ...]:
    """One namespace for each rank and group. `shapes[rank][group]`; `replicas[group]` ranks are alike."""
    size = len(shapes)
    return tuple(
        tuple(
            Namespace(
                model=engine.model,
                weights_revision=engine.weights,
                tokenizer=engine.tokenizer,
                attention=engine.attention,
                position=engine.position,
                implementation=_implementation(shape, engine),
                kv_dtype=engine.kv_dtype,
                layout=f"{shape.fingerprint}/group-{group}-of-{len(groups)}",
                block_tokens=engine.block_tokens,
                parallel_rank=rank // replicas[group],
                parallel_size=max(1, size // replicas[group]),
                tenant=config.tenant,
                data_class=data_class,
            )
            for group, shape in enumerate(groups)
        )
        for rank, groups in enumerate(shapes)
    )


def adapter_version(path: str) -> str:
    """Digest of an adapter's weights; of its name where it is no local folder."""
    folder = Path(path)
    try:
        return weights_digest(folder)[:32]
    except (ModelError, OSError):
        return "path:" + hashlib.sha256(path.encode()).hexdigest()[:32]


def _implementation(shape: GroupShape, engine: Engine) -> str:
    quantized = f"+{engine.quantization}" if engine.quantization else ""
    return f"vllm-{shape.implementation}{quantized}"


def _weights(model: Any, folder: Path, config: Config) -> str:
    if config.revision:
        return config.revision
    if folder.is_dir():
        try:
            return weights_digest(folder)
        except ModelError as error:
            raise EngineError(f"{error}; or set revision in kv_connector_extra_config") from error
    commit = getattr(model.hf_config, "_commit_hash", None)
    if commit:
        return str(commit)
    raise EngineError(
        f"nothing tells which weights of {model.model} these are; "
        "set revision in kv_connector_extra_config to the commit or a name of your own"
    )


def _tokenizer(model: Any) -> str:
    folder = Path(str(model.tokenizer))
    if folder.is_dir():
        try:
            return tokenizer_digest(folder)
        except ModelError:
            log.info("%s has no tokenizer: its name stands for it", folder)
            return "none"
    return f"{model.tokenizer}@{model.tokenizer_revision or getattr(model.hf_config, '_commit_hash', '')}"


def _config_digest(model: Any, folder: Path) -> str:
    """Of the file, not of what a library makes of it: another release must not empty the pool.

    A model from a hub needs none: its revision names its config too.
    """
    file = folder / "config.json"
    table: dict[str, Any] = {"overrides": getattr(model, "hf_overrides", None) or {}}
    if file.is_file():
        found = msgspec.json.decode(file.read_bytes())
        table["file"] = {name: value for name, value in found.items() if name not in _VOLATILE}
    return hashlib.sha256(canonical_text(_plain(table)).encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """Only what JSON has, so that two releases of a library write the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value if value is not None else ""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return str(value)
