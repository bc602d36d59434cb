"""Every setting of kvferry: one frozen schema for a YAML file, the environment, vLLM's JSON and flags.

The only room that reads the environment. `load` gives the settings and where each came from; nothing else
in the package looks for settings by itself.
"""

from __future__ import annotations

from .children import child_environment
from .load import Loaded, load
from .origins import DEFAULT, Origin
from .places import cache_dir
from .requests import RequestFields, parse_request_fields
from .schema import Config, GateSettings, LimitSettings, TimeoutSettings
from .secrets import public_command, public_values, resolve_secret
from .urls import split_address

__all__ = [
    "DEFAULT",
    "Config",
    "GateSettings",
    "LimitSettings",
    "Loaded",
    "Origin",
    "RequestFields",
    "TimeoutSettings",
    "cache_dir",
    "child_environment",
    "load",
    "parse_request_fields",
    "public_command",
    "public_values",
    "resolve_secret",
    "split_address",
]
