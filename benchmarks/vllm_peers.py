"""What the benchmarks of vLLM connectors share: the connectors that stand beside each other, one in a server.

A side is a vLLM server with one connector, the processes that this needs, and what has to be emptied before
a load so that it comes from where it should. All sides run with worker and scheduler in one process, which
host memory as a tier needs, and with the same arguments but for the connector.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvferry.config import cache_dir
from kvferry.engines.transformers.resolve import DEFAULT_MODEL, resolve_model
from kvferry.measure.vllm.installed import vllm_version
from kvferry.measure.vllm.server import VllmServer, ferry_transfer, server_cores
from kvferry.store.valkey import EmbeddedServer

__all__ = [
    "CONNECTORS",
    "Side",
    "draw_prompt",
    "find_lmcache",
    "model_folder",
    "need_vllm",
    "open_side",
    "prompts",
]

ANSWER_TOKENS = 8
OURS: Mapping[str, Any] = {"publish": "all", "gate": {"holdout_share": 0.0, "explore_share": 0.0}}
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}


def need_vllm() -> str:
    """vLLM's version; ends the benchmark, as done, where it is not installed."""
    version = vllm_version()
    if version is None:
        print("skipped: vLLM is not installed for this Python; make bench-vllm runs it", file=sys.stderr)
        raise SystemExit(0)
    return version


def model_folder() -> Path:
    """The packaged model, converted on the first call."""
    return resolve_model(DEFAULT_MODEL, cache_dir(), say=lambda text: print(text, file=sys.stderr))


def draw_prompt(seed: str, tokens: int) -> list[int]:
    """A prompt that nothing else begins like."""
    dice = random.Random(seed)
    return [dice.randrange(100, 40_000) for _ in range(tokens)]


def prompts(count: int, tokens: int) -> list[list[int]]:
    """The same ones for every side and in every run."""
    return [draw_prompt(f"prompt {i}", tokens) for i in range(count)]


class Side:
    """One connector in a server that runs."""

    def __init__(self, name: str, server: VllmServer, before_load: Callable[[], None]) -> None:
        self.name = name
        self.server = server
        self._before_load = before_load

    async def ask(self, prompt: list[int], *, max_tokens: int = ANSWER_TOKENS) -> tuple[float, int, str]:
        """Seconds to the first token, cached tokens, and the answer."""
        reply = await self.server.client.complete(
            prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True
        )
        return reply.ttft_seconds or float("nan"), reply.cached_tokens, reply.text

    async def forget(self) -> None:
        """Nothing is left in the engine, nor in a tier before the one that is measured."""
        await self.server.forget()
        await asyncio.to_thread(self._before_load)


def nothing() -> None:
    """For sides that have nothing to empty."""


class Lmcache:
    """LMCache's server process beside its connector, over shared memory, with 32 tokens in a chunk."""

    def __init__(self, place: Path | None, log: Path, valkey: EmbeddedServer | None) -> None:
        self.port, self._http = _free_port(), _free_port()
        program = shutil.which("lmcache", path=_path_of(place))
        if program is None:
            raise SystemExit("lmcache is importable, but its command is not there")
        command = [sys.executable, program, "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--http-host", "127.0.0.1", "--http-port", str(self._http)]
        command += ["--chunk-size", "32", "--l1-size-gb", "1", "--no-l1-use-lazy"]
        command += ["--shm-name", f"kvferry-bench-{os.getpid()}-{self.port}", "--eviction-policy", "LRU"]
        command += ["--supported-transfer-mode", "engine_driven", "--disable-observability"]
        if valkey is not None:
            adapter = {"type": "resp", "host": "127.0.0.1", "port": valkey.port, "num_workers": 2}
            command += ["--l2-adapter", json.dumps(adapter)]
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env={**os.environ, **lmcache_env(place)}
        )
        self._until_ready(log)

    @property
    def transfer(self) -> dict[str, Any]:
        """The --kv-transfer-config of a server that uses it."""
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }

    def clear(self) -> None:
        """Empty its memory, so that the next load comes from the second tier."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._http}/cache/clear",
            data=b'{"force": true}',
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _until_ready(self, log: Path) -> None:
        for _ in range(600):
            if self._process.poll() is not None:
                raise SystemExit(f"lmcache server did not start: see {log}")
            try:
                with (
                    socket.create_connection(("127.0.0.1", self.port), 1),
                    socket.create_connection(("127.0.0.1", self._http), 1),
                ):
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"lmcache server was not ready after two minutes: see {log}")


def find_lmcache(place: Path | None) -> str:
    """Why LMCache cannot stand beside us; empty where it can. `place` is a folder of `pip --target`."""
    if place is not None:
        return "" if (place / "lmcache").is_dir() else f"{place} holds no lmcache"
    return "" if find_spec("lmcache") is not None else "LMCache is not installed (--lmcache DIR)"


def lmcache_env(place: Path | None) -> dict[str, str]:
    """What its processes and vLLM's need to find it; it calls home unless told not to."""
    found = {"LMCACHE_TRACK_USAGE": "false", "HF_HUB_OFFLINE": "1"}
    return found if place is None else {**found, "PYTHONPATH": str(place)}


CONNECTORS = ("ours_valkey", "ours_memory", "ours_files", "example", "lmcache_valkey", "lmcache_shm", "none")


async def open_side(
    name: str,
    stack: AsyncExitStack,
    *,
    model: Path,
    logs: Path,
    lmcache: Path | None = None,
    core: int = 0,
    arguments: tuple[str, ...] = (),
) -> Side:
    """Start a side and everything it needs; `stack` ends it all."""
    plain = stack.enter_context(ExitStack())
    transfer: dict[str, Any] | None = None
    before_load = nothing
    environment = dict(ONE_PROCESS)
    if name == "ours_valkey":
        pool = plain.enter_context(EmbeddedServer(max_memory_bytes=2 << 30))
        transfer = ferry_transfer({**OURS, "pool": pool.url})
    elif name == "ours_memory":
        transfer = ferry_transfer({**OURS, "host_memory": "1GiB"})
    elif name in ("ours_files", "example"):
        place = plain.enter_context(tempfile.TemporaryDirectory(prefix="kvferry-bench-"))
        if name == "ours_files":
            transfer = ferry_transfer({**OURS, "disk": f"files://{place}/tier"})
        else:
            transfer = {
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"shared_storage_path": place},
            }
    elif name.startswith("lmcache"):
        valkey = None
        if name == "lmcache_valkey":
            valkey = plain.enter_context(EmbeddedServer(max_memory_bytes=2 << 30))
        other = Lmcache(lmcache, logs / f"{name}-server.log", valkey)
        plain.callback(other.close)
        transfer = other.transfer
        environment |= lmcache_env(lmcache)
        if valkey is not None:
            before_load = other.clear
    server = VllmServer(
        name,
        model=model,
        core=server_cores(core + 1)[core],
        log=logs / f"{name}.log",
        kv_cache_bytes=512 << 20,
        transfer=transfer,
        arguments=("--distributed-executor-backend", "uni", *arguments),
        environment=environment,
    )
    await server.start()
    stack.push_async_callback(server.stop)
    return Side(name, server, before_load)


def _path_of(place: Path | None) -> str:
    return str(Path(sys.executable).parent if place is None else place / "bin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
