"""The connector behind the gate: where its class is found, and the configuration that it gets to see.

Owns three ways to a class: by the name that vLLM knows it by (its own connectors, and those that a
`vllm.general_plugins` entry point registered), our own connector, and a module path in the extra config. The
inner connector sees its own name and its own settings, as if no gate stood before it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

from ....errors import ConfigError, MissingExtra
from .settings import INNER_MODULE, inner_extra

__all__ = ["OURS", "Inner", "contract"]

OURS = {"FerryConnector": "kvferry.engines.vllm.connector"}
"""Our own connectors, which vLLM does not know by name, and their modules."""

_PLACE = "vllm.distributed.kv_transfer.kv_connector"


def contract() -> Any:
    """vLLM's module with the connector's base classes. Raises `MissingExtra` without vLLM."""
    try:
        return importlib.import_module(f"{_PLACE}.v1.base")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "vllm":
            raise
        raise MissingExtra("a gate in front of another vLLM connector", "vllm") from None


class Inner:
    """One inner connector by name; `found` is its class, or None until a configuration names its module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Any = _by_name(name)

    def resolve(self, extra: Mapping[str, Any]) -> Any:
        """The class, for this extra config.

        Raises `ConfigError` where it is not to be found, or where `inner_module_path` names another module
        than the one that the name stands for.
        """
        path = extra.get(INNER_MODULE)
        if path is None:
            if self.found is None:
                raise ConfigError(
                    f"kv_connector 'Gated{self.name}': vLLM knows no connector {self.name!r}; write "
                    f"{INNER_MODULE} into kv_connector_extra_config, or register it through a "
                    "vllm.general_plugins entry point"
                )
            return self.found
        if not isinstance(path, str) or not path:
            raise ConfigError(f"kv_connector_extra_config.{INNER_MODULE}: {path!r} is no module's name")
        found = _from_module(path, self.name)
        if self.found is not None and self.found is not found:
            raise ConfigError(
                f"kv_connector_extra_config.{INNER_MODULE}: {self.name!r} already stands for the class in "
                f"{self.found.__module__}, not {path}; remove {INNER_MODULE}, or give that class another name"
            )
        self.found = found
        return found

    def config(self, vllm_config: Any) -> Any:
        """A copy of vLLM's configuration as the inner connector is to see it; ours stays as it is."""
        ours = vllm_config.kv_transfer_config
        theirs = copy.copy(ours)
        path = ours.kv_connector_extra_config.get(INNER_MODULE) or OURS.get(self.name)
        theirs.kv_connector = self.name
        theirs.kv_connector_module_path = path
        theirs.kv_connector_extra_config = inner_extra(ours.kv_connector_extra_config)
        config = copy.copy(vllm_config)
        config.kv_transfer_config = theirs
        return config


def _by_name(name: str) -> Any:
    if name in OURS:
        return _from_module(OURS[name], name)
    factory = importlib.import_module(f"{_PLACE}.factory").KVConnectorFactory
    try:
        return factory.get_connector_class_by_name(name)
    except ValueError:
        return None


def _from_module(path: str, name: str) -> Any:
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"kv_connector 'Gated{name}': no module {path!r} to find it in: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise ConfigError(f"kv_connector 'Gated{name}': module {path!r} has no {name!r}") from error
