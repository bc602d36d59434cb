"""The two roles as processes, and what they print: for the demo, tests and benchmarks."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...config import child_environment
from ...errors import EngineError

__all__ = ["Role"]

_STOP_SECONDS = 10.0


class Role:
    """One `kvferry handoff` process; its lines are JSON objects."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], *, log: Path) -> Role:
        """Start `kvferry handoff` with these arguments, `--json` added; it ends with this process."""
        command = [sys.executable, "-m", "kvferry", "handoff", *arguments, "--json", "--exit-with-parent"]
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=child_environment({"HF_HUB_OFFLINE": "1"}, settings=False),
                limit=1 << 24,
            )
        return cls(name, process, log)

    async def line(self, seconds: float) -> dict[str, Any]:
        """Its next line. Raises EngineError where it ends, or says nothing for so long."""
        stdout = self._process.stdout
        if stdout is None:
            raise EngineError(f"{self.name} has no output")
        try:
            text = await asyncio.wait_for(stdout.readline(), seconds)
            found: dict[str, Any] = msgspec.json.decode(text)
        except (TimeoutError, msgspec.DecodeError) as error:
            raise EngineError(f"{self.name} said nothing: {self._last_words()}") from error
        return found

    async def ended(self, seconds: float) -> int:
        """Its exit status."""
        try:
            return await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError as error:
            raise EngineError(f"{self.name} did not end: {self._last_words()}") from error

    async def kill(self) -> None:
        """End it as a crash would."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def stop(self) -> None:
        """End it, in order first."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            await self.kill()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
