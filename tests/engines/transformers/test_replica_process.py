"""`kvferry replica` as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.cli.main import main
from kvferry.serving.client import Client


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvferry", "replica", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def replica(tiny_folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = start("--model", str(tiny_folder), "--local-cache", "1MiB", "--set", "block_tokens=8")
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_it_tells_its_port_serves_and_ends_on_sigterm(
    replica: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    process, told = replica

    async def talk() -> Any:
        async with Client(f"http://127.0.0.1:{told['port']}") as client:
            await client.complete("hello world, hello", max_tokens=2)
            return await client.complete("hello world, hello", max_tokens=2)

    assert asyncio.run(talk()).cached_tokens == 16
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_a_cache_smaller_than_a_block_is_refused(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replica", "--model", str(tiny_folder), "--local-cache", "1KiB"]) == 2
    assert "write at least" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--threads", "--chunk-tokens", "--max-active"])
def test_nothing_is_not_a_number_of(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replica", option, "0"]) == 2
    assert option in capsys.readouterr().err
