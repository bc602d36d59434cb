"""Where kvferry keeps things on this machine, and the variables that are not settings of a replica.

Owns the names of those variables and the cache folder. It makes no folder: who writes there does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError

__all__ = ["CACHE_VARIABLE", "FILE_VARIABLE", "OTHER_VARIABLES", "PREFIX", "cache_dir"]

PREFIX = "KVFERRY_"
FILE_VARIABLE = "KVFERRY_CONFIG"
"""Names the file of settings where no flag does."""
CACHE_VARIABLE = "KVFERRY_CACHE_DIR"
"""Names the folder for models and other things that can be made again."""
OTHER_VARIABLES = (FILE_VARIABLE, CACHE_VARIABLE)


def cache_dir(env: Mapping[str, str] | None = None) -> Path:
    """KVFERRY_CACHE_DIR, else XDG_CACHE_HOME/kvferry, else ~/.cache/kvferry. Raises `ConfigError`."""
    environment = os.environ if env is None else env
    if chosen := environment.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    # The XDG specification says to ignore a relative path.
    base = environment.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "kvferry"
    try:
        return Path.home() / ".cache" / "kvferry"
    except RuntimeError as error:
        raise ConfigError(f"no home folder is known; set {CACHE_VARIABLE} to a folder") from error
