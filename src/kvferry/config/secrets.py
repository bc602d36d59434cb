"""The tenant's secret: where it is read, and where it must not be shown.

Owns both ends, so that no other room reads `tenant_secret` by itself. A secret is bytes; its use is in the
keys room.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .fields import fields_of
from .schema import Config
from .urls import hide_password

__all__ = ["HIDDEN", "public_command", "public_values", "resolve_secret"]

HIDDEN = "***"


def resolve_secret(config: Config, env: Mapping[str, str] | None = None) -> bytes | None:
    """The secret's bytes, from a file ("file:PATH"), a variable ("env:NAME") or the setting itself.

    One line break at the end of a file is not part of the secret. None when none is set. Raises
    `ConfigError` when the file or the variable is missing or empty; the message never holds the secret.
    """
    text = config.tenant_secret
    if text is None:
        return None
    scheme, _, rest = text.partition(":")
    if scheme == "env":
        secret = (os.environ if env is None else env).get(rest, "").encode()
        if not secret:
            raise ConfigError(f"tenant_secret: the variable {rest!r} is not set; set it to the secret")
    elif scheme == "file":
        try:
            secret = Path(rest).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(f"tenant_secret: cannot read {rest!r}: {error.strerror}") from error
        secret = secret.removesuffix(b"\n").removesuffix(b"\r")
        if not secret:
            raise ConfigError(f"tenant_secret: {rest!r} is empty; write the secret into it")
    else:
        secret = text.encode()
    return secret


def public_values(config: Config) -> dict[str, Any]:
    """Every setting by its path, fit to be shown or recorded: no secret, no password in a URL.

    A secret that only says where the secret stands ("file:PATH", "env:NAME") is shown.
    """
    values: dict[str, Any] = {}
    for path, field in fields_of(Config).items():
        if field.kind == "group":
            continue
        value: Any = config
        for part in path.split("."):
            value = getattr(value, part)
        if field.secret and value is not None:
            value = _public_secret(value)
        elif isinstance(value, str):
            value = hide_password(value)
        values[path] = value
    return values


def public_command(arguments: Sequence[str]) -> list[str]:
    """A command line fit to be recorded: `--set tenant_secret=...` and passwords in URLs are hidden."""
    shown = []
    for argument in arguments:
        before, setting, secret = argument.partition("tenant_secret=")
        shown.append(before + setting + _public_secret(secret) if setting else hide_password(argument))
    return shown


def _public_secret(text: str) -> str:
    return text if text.startswith(("file:", "env:")) else HIDDEN
