"""The two replica processes of the demo, and how it speaks to them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...config import child_environment
from ...errors import EngineError
from ...runs.decisions import DecisionRecord
from ...serving.client import Client, Reply
from .workload import Question

__all__ = ["Asked", "Replica"]

_START_SECONDS = 180.0
_STOP_SECONDS = 10.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the demo: what was asked, what came back, and what the replica recorded."""

    arm: str
    """Which part of the demo asked."""
    question: str
    request_id: str
    replica: str
    ttft_seconds: float
    total_seconds: float
    token_ids: tuple[int, ...]
    text: str
    record: DecisionRecord


class Replica:
    """One replica process on a free port of 127.0.0.1."""

    def __init__(self, name: str, *, log: Path) -> None:
        self.name = name
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._client: Client | None = None
        self._asked = 0

    async def start(
        self,
        *,
        model: str,
        local_cache_bytes: int,
        chunk_tokens: int,
        settings: Mapping[str, str],
    ) -> None:
        """Start the process and wait until it serves. Raises EngineError with its last words otherwise."""
        command = [sys.executable, "-m", "kvferry", "replica", "--model", model, "--threads", "1"]
        command += ["--local-cache", f"{local_cache_bytes}B", "--chunk-tokens", str(chunk_tokens)]
        command.append("--exit-with-parent")
        for name, value in {**settings, "replica": self.name}.items():
            command += ["--set", f"{name}={value}"]
        # Settings that lie around in the environment must not change what the demo shows.
        environment = child_environment({"HF_HUB_OFFLINE": "1"}, settings=False)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        try:
            line = await asyncio.wait_for(self._stdout().readline(), _START_SECONDS)
            port = json.loads(line)["port"]
        except (TimeoutError, ValueError, KeyError) as error:
            await self.stop()
            raise EngineError(f"replica {self.name} did not start: {self._last_words()}") from error
        self._client = Client(f"http://127.0.0.1:{port}", timeout_seconds=300.0)
        await self._client.__aenter__()

    async def stop(self) -> None:
        """End the process, in order first."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def kill(self) -> None:
        """End the process as a crash would."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def ask(
        self, question: Question, *, arm: str, answer_tokens: int, fields: Mapping[str, Any] | None = None
    ) -> Asked:
        """One chat request, streamed and timed."""
        self._asked += 1
        request_id = f"{self.name}-{self._asked:04d}"
        options: dict[str, Any] = {
            "max_tokens": answer_tokens,
            "temperature": 0,
            "request_id": request_id,
            "ignore_eos": True,
        }
        if fields:
            options["kv_transfer_params"] = {"kvferry": dict(fields)}
        reply: Reply = await self._open().chat(question.messages, **options)
        if reply.decision is None or reply.ttft_seconds is None:
            raise EngineError(f"replica {self.name} answered {request_id} without a decision record")
        record = msgspec.convert({**reply.decision, "arm_label": arm}, DecisionRecord, strict=False)
        return Asked(
            arm=arm,
            question=question.name,
            request_id=request_id,
            replica=self.name,
            ttft_seconds=reply.ttft_seconds,
            total_seconds=reply.total_seconds,
            token_ids=tuple(reply.token_ids),
            text=reply.text,
            record=record,
        )

    async def forget(self) -> None:
        """Empty the replica's own prefix cache."""
        await self._open().post("/reset_prefix_cache")

    async def switch(self, **changes: Any) -> Mapping[str, Any]:
        """Change run-time settings: policy, mode, bytes_per_second."""
        names = {"policy": "gate.policy", "mode": "gate.mode", "bytes_per_second": "pool.bytes_per_second"}
        answer: Mapping[str, Any] = await self._open().post(
            "/kvferry/settings", {names[name]: value for name, value in changes.items()}
        )
        return answer

    async def state(self) -> Mapping[str, Any]:
        """Run-time settings and estimates."""
        answer: Mapping[str, Any] = await self._open().get("/kvferry/settings")
        return answer

    def _open(self) -> Client:
        if self._client is None:
            raise EngineError(f"replica {self.name} is not running")
        return self._client

    def _stdout(self) -> asyncio.StreamReader:
        if self._process is None or self._process.stdout is None:
            raise EngineError(f"replica {self.name} is not running")
        return self._process.stdout

    def _last_words(self) -> str:
        lines: Sequence[str] = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
