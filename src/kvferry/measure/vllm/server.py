"""One vLLM server as a process of its own, and how to speak to it.

Owns its command line, its start, its end and the calls that the demo and the benchmarks make. vLLM is
started as a module: its command `vllm` needs package metadata that not every build installs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...config import child_environment
from ...errors import EngineError
from ...serving.client import Client

__all__ = ["VllmServer", "ferry_transfer", "server_cores"]

_START_SECONDS = 300.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.25
_RESET_TRIES = 200
_RESET_SECONDS = 0.05
_RESET_POKE = 10


def ferry_transfer(settings: Mapping[str, Any], *, role: str = "kv_both") -> dict[str, Any]:
    """The --kv-transfer-config that puts kvferry into vLLM, with these settings of ours."""
    return {
        "kv_connector": "FerryConnector",
        "kv_connector_module_path": "kvferry.engines.vllm.connector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": dict(settings),
    }


def server_cores(count: int) -> list[int]:
    """A core for each of `count` servers, of those this process may use; the same one again if too few."""
    cores = sorted(os.sched_getaffinity(0))
    return [cores[i % len(cores)] for i in range(count)]


class VllmServer:
    """A server on a free port of 127.0.0.1, bound to one core."""

    def __init__(
        self,
        name: str,
        *,
        model: Path,
        core: int,
        log: Path,
        dtype: str = "float32",
        block_tokens: int = 32,
        max_tokens: int = 4_096,
        kv_cache_bytes: int = 1 << 30,
        transfer: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`transfer` is the --kv-transfer-config; None serves without a connector."""
        self.name = name
        self.model = model
        self._log = log
        self._core = core
        self._environment = dict(environment or {})
        self._options = [
            *("--model", str(model), "--served-model-name", model.name),
            *("--dtype", dtype, "--block-size", str(block_tokens), "--max-model-len", str(max_tokens)),
            *("--kv-cache-memory-bytes", str(kv_cache_bytes)),
            *("--prefix-caching-hash-algo", "sha256_cbor", "--enable-prefix-caching"),
            # No compilation: it would cost a minute at every start, and change nothing in what is compared.
            *("--enforce-eager", "--enable-prompt-tokens-details"),
            *arguments,
        ]
        if transfer is not None:
            self._options += ["--kv-transfer-config", json.dumps(transfer)]
        self._process: asyncio.subprocess.Process | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Raises EngineError while the server is not running."""
        if self._client is None:
            raise EngineError(f"vLLM server {self.name} is not running")
        return self._client

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process and wait until it serves. Raises EngineError with its last words otherwise."""
        port = _free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        command += ["--port", str(port), *self._options]
        changes = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(self._core),
            **self._environment,
        }
        environment = child_environment(changes, settings=False)
        # Its size is given in bytes; this variable counts whole GiB and would overrule it.
        environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                # An engine has processes of its own: they get a group, so that all can be ended.
                start_new_session=True,
            )
        try:
            self._client = Client(f"http://127.0.0.1:{port}", timeout_seconds=300.0)
            await self._client.__aenter__()
            await self._until_ready(self._client)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process and those it has started, in order first."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def forget(self) -> None:
        """Empty the engine's own prefix cache. Raises EngineError when its blocks stay in use."""
        for tried in range(1, _RESET_TRIES + 1):
            answer = await self.client.post("/reset_prefix_cache")
            if answer.get("success"):
                return
            await asyncio.sleep(_RESET_SECONDS)
            if tried % _RESET_POKE == 0:
                # Connectors hear of what has ended in a step of the engine, and an idle one makes none.
                await self.client.complete([tried % 32 + 1, 2, 3], max_tokens=1, temperature=0)
        raise EngineError(f"vLLM server {self.name} does not empty its prefix cache: blocks stay in use")

    def cpu_seconds(self) -> float:
        """CPU time of the server's processes so far; those that have ended are not in it."""
        if self._process is None:
            raise EngineError(f"vLLM server {self.name} is not running")
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                # Behind the name, which may hold anything: state, parent, group, ..., 11 and 12 are times.
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self._process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    async def metrics(self) -> str:
        """The text of /metrics."""
        return await self.client.text("/metrics")

    async def _until_ready(self, client: Client) -> None:
        for _ in range(int(_START_SECONDS / _POLL_SECONDS)):
            if not self.running:
                raise EngineError(f"vLLM server {self.name} did not start: {self._last_words()}")
            try:
                await client.text("/health")
            except EngineError:
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return
        raise EngineError(f"vLLM server {self.name} was not ready after {_START_SECONDS:.0f} s: {self._log}")

    def _last_words(self) -> str:
        """The last line that names an error; vLLM ends with other lines than that."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        named = [line for line in lines if "Error" in line]
        return (named or lines or ["it said nothing"])[-1].strip() + f" (all of it in {self._log})"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
