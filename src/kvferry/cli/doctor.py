"""`kvferry doctor`: is everything there that this configuration needs?

Owns the checks and their words. Each gives a finding: ok, note (worth knowing), missing (an extra that is not
installed) or broken (something configured does not work). Only broken ones fail the command. It changes
nothing: no folder is made, no block written.
"""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from cyclopts import App, Parameter

from .. import __version__
from ..clock import Clock, MonotonicClock
from ..config import Config, cache_dir, load, resolve_secret
from ..config.urls import hide_password
from ..errors import KvferryError
from ..runs.machine import describe_machine
from ..units import GIB, counted, format_bytes, format_seconds
from .extras import installed_extras
from .findings import Finding
from .output import Json, write_columns, write_json

__all__ = ["Finding", "app", "examine"]

app = App(name="doctor")

_LITTLE_DISK_BYTES = 2 * GIB
_CLOCK_SECONDS = 0.05
_CLOCK_TOLERANCE = 0.02


@app.default
def run(
    *,
    file: Annotated[str | None, Parameter(name=["--file", "--config"])] = None,
    set_: Annotated[list[str] | None, Parameter(name="--set")] = None,
    vllm: str | None = None,
    model: str | None = None,
    kv_dtype: str = "auto",
    block_size: int = 16,
    json: Json = False,
) -> int:
    """What is installed, what is missing, and whether the pool answers; or what a vLLM config will do.

    Ends with status 1 when something that is configured does not work.

    Parameters
    ----------
    file
        A YAML file of settings; without it, KVFERRY_CONFIG may name one.
    set_
        NAME=VALUE, as in pool=valkey://127.0.0.1:6379; may be given again.
    vllm
        What follows vLLM's --kv-transfer-config, as a file or as text: it is explained, and nothing else.
    model
        config.json, folder or preset of the model that vLLM serves: the bytes of a block are shown.
    kv_dtype
        Its --kv-cache-dtype.
    block_size
        Its --block-size.
    """
    if vllm is not None:
        from .doctor_vllm import examine_transfer, read_transfer

        document = read_transfer(vllm)
        findings = list(examine_transfer(document, model=model, kv_dtype=kv_dtype, block_tokens=block_size))
    else:
        findings = list(examine(load(file=file, overrides=set_ or ()).config))
    broken = any(finding.status == "broken" for finding in findings)
    if json:
        write_json({"healthy": not broken, "findings": findings})
    else:
        write_columns(
            [
                (one.status, one.check, one.detail + (f"  ->  {one.remedy}" if one.remedy else ""))
                for one in findings
            ]
        )
    return 1 if broken else 0


def examine(config: Config, clock: Clock | None = None) -> Iterator[Finding]:
    """Every finding, in the order in which they are shown."""
    yield Finding("kvferry", "ok", f"{__version__} on Python {platform.python_version()}")
    yield from _extras()
    yield from _machine(config)
    yield _clocks(clock or MonotonicClock())
    yield _folder()
    yield from _secret(config)
    yield _tier("pool", config.pool, config)
    if config.disk is not None:
        yield _tier("disk", config.disk, config)


def _extras() -> Iterator[Finding]:
    extras = installed_extras()
    if not extras:
        yield Finding("extras", "note", "kvferry runs from a folder, not installed", "pip install -e .")
    for extra in extras:
        parts = ", ".join(f"{part.name} {part.version or 'not installed'}" for part in extra.parts)
        if extra.state == "installed":
            yield Finding(f"extra {extra.name}", "ok", parts)
        else:
            yield Finding(f"extra {extra.name}", "missing", parts, extra.remedy)


def _machine(config: Config) -> Iterator[Finding]:
    machine = describe_machine()
    memory = "unknown memory" if machine.memory_bytes is None else format_bytes(machine.memory_bytes)
    yield Finding("machine", "ok", f"{machine.cpu}, {counted(machine.cores, 'core')}, {memory}, {machine.os}")
    if machine.memory_bytes is not None and config.host_memory >= machine.memory_bytes:
        yield Finding(
            "host_memory",
            "broken",
            f"{format_bytes(config.host_memory)} are asked for, the machine has {memory}",
            "lower host_memory",
        )


def _clocks(clock: Clock) -> Finding:
    """Deadlines rest on the monotonic clock, records on the wall clock: both have to advance alike."""
    if sys.platform == "linux" and not time.get_clock_info("monotonic").monotonic:
        return Finding("clock", "broken", "the monotonic clock may go back", "change the clock source")
    began, began_wall = clock.now(), clock.wall()
    clock.sleep(_CLOCK_SECONDS)
    passed, passed_wall = clock.now() - began, clock.wall() - began_wall
    apart = abs(passed - passed_wall)
    detail = f"monotonic and wall clock {format_seconds(apart)} apart after {format_seconds(passed)}"
    if apart > _CLOCK_TOLERANCE:
        return Finding("clock", "note", detail, "arrival times in records may jump: look at the time service")
    return Finding("clock", "ok", detail)


def _folder() -> Finding:
    folder = cache_dir()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{folder}: {format_bytes(free)} free"
    if free < _LITTLE_DISK_BYTES:
        return Finding("cache folder", "note", detail, "a model needs more; set KVFERRY_CACHE_DIR elsewhere")
    return Finding("cache folder", "ok", detail)


def _secret(config: Config) -> Iterator[Finding]:
    try:
        secret = resolve_secret(config)
    except KvferryError as error:
        yield Finding("tenant_secret", "broken", str(error))
        return
    if secret is not None:
        yield Finding("tenant_secret", "ok", f"{len(secret)} bytes")
    elif config.pool is not None:
        yield Finding(
            "tenant_secret",
            "note",
            "none: whoever reaches the pool can compute the names of this tenant's blocks",
            "set tenant_secret to file:PATH or env:NAME",
        )


def _tier(name: str, url: str | None, config: Config) -> Finding:
    if url is None:
        return Finding(name, "note", "none is configured", f"set {name}, or KVFERRY_{name.upper()}")
    shown = hide_password(url)
    if url.startswith("files:"):
        # Opening a folder lays it out as a pool, which an examination must not do.
        folder = Path(unquote(urlsplit(url).path))
        if not folder.is_dir():
            return Finding(name, "broken", f"{shown}: there is no such folder", f"mkdir -p {folder}")
        if not (folder / "format").exists():
            free = format_bytes(shutil.disk_usage(folder).free)
            return Finding(name, "ok", f"{shown}: not used yet, {free} free")
    try:
        # Imported here, so that a broken or missing client is a finding and not the end of the command.
        from ..store.open import open_tier

        tier = open_tier(url, setting=name)
        try:
            began = time.monotonic()
            usage = tier.usage(config.timeouts.connect)
            took = time.monotonic() - began
        finally:
            tier.close()
    except (KvferryError, ImportError, OSError) as error:
        return Finding(name, "broken", f"{shown}: {error}", f"start it, or change {name}")
    used = "unknown" if usage.used_bytes is None else format_bytes(usage.used_bytes)
    capacity = (
        "no limit known" if usage.capacity_bytes is None else f"of {format_bytes(usage.capacity_bytes)}"
    )
    return Finding(name, "ok", f"{shown}: answered in {format_seconds(took)}, {used} used, {capacity}")
