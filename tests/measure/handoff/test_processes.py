"""Both roles as processes of their own, as a user starts them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvferry.measure.handoff.roles import Role
from kvferry.runs.decisions import DecisionRecord
from kvferry.runs.directory import RunDirectory

SECONDS = 120.0


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.txt"
    path.write_text("A ferry carries what would take longer to make again. " * 6, encoding="utf-8")
    return path


async def started(folder: Path, tmp_path: Path, *options: str) -> tuple[Role, str]:
    arguments = ["receive", "--model", str(folder), "--answer-tokens", "8", *options]
    role = await Role.start("decode", arguments, log=tmp_path / "decode.log")
    return role, (await role.line(SECONDS))["address"]


async def sending(folder: Path, tmp_path: Path, address: str, document: Path, *options: str) -> Role:
    arguments = ["send", "--model", str(folder), "--to", address, "--file", str(document), *options]
    return await Role.start("prefill", arguments, log=tmp_path / "prefill.log")


async def crossed(
    folder: Path, tmp_path: Path, document: Path, listen: str, policy: str = "always"
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """One hand-off between two processes: both lines, and the receiver's exit status."""
    options = ["--listen", listen, "--policy", policy, "--record", str(tmp_path / f"run-{policy}")]
    decode, address = await started(folder, tmp_path, *options)
    prefill = await sending(folder, tmp_path, address, document)
    try:
        lines = await asyncio.gather(prefill.line(SECONDS), decode.line(SECONDS))
        return lines[0], lines[1], await decode.ended(SECONDS)
    finally:
        await asyncio.gather(prefill.stop(), decode.stop())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp", "shm", "files"])
def test_a_prefill_crosses_from_process_to_process(
    folder: Path, tmp_path: Path, document: Path, way: str
) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    listen = {"tcp": "tcp://127.0.0.1:0", "shm": "shm://", "files": f"files://{tier}"}[way]
    sent, received, status = asyncio.run(crossed(folder, tmp_path, document, listen))
    assert status == 0
    assert received["taken"], received["detail"]
    assert sent["bytes"] == received["bytes"]


async def killed_half_way(
    folder: Path, tmp_path: Path, document: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The receiver's lines: its first sender is killed after 40 kB, by what stands between them."""
    decode, address = await started(
        folder, tmp_path, "--policy", "always", "--grace", "200ms", "--count", "2",
        "--record", str(tmp_path / "run"),
    )  # fmt: skip
    host, port = address.removeprefix("tcp://").split(":")
    half_way = asyncio.Event()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        answers = asyncio.ensure_future(_copy(there, writer, 1 << 30))
        await _copy(reader, back, 40_000)
        half_way.set()
        await reader.read()
        answers.cancel()
        writer.close()
        back.close()

    proxy = await asyncio.start_server(between, "127.0.0.1", 0, limit=1 << 12)
    proxied = f"tcp://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    prefill = await sending(folder, tmp_path, proxied, document, "--chunk-tokens", "32")
    try:
        await asyncio.wait_for(half_way.wait(), 2 * SECONDS)
        await prefill.kill()
        lost = await decode.line(SECONDS)
        prefill = await sending(folder, tmp_path, address, document)
        whole = await decode.line(SECONDS)
        await decode.ended(SECONDS)  # its last record comes behind its line
        return lost, whole
    finally:
        proxy.close()
        await asyncio.gather(prefill.stop(), decode.stop())


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int) -> None:
    done = 0
    while done < most and (data := await reader.read(min(4096, most - done))):
        writer.write(data)
        await writer.drain()
        done += len(data)


def test_a_killed_sender_costs_no_answer_and_the_next_one_is_taken(
    folder: Path, tmp_path: Path, document: Path
) -> None:
    lost, whole = asyncio.run(killed_half_way(folder, tmp_path, document))
    tokens = lost["prompt_tokens"]
    assert lost["ledger"] == {"failed": tokens - 1, "not_cacheable": 1}
    assert whole["ledger"] == {"handoff": tokens - 1, "not_cacheable": 1}
    assert lost["token_ids"] == whole["token_ids"]
    records = RunDirectory.open(tmp_path / "run").decisions(DecisionRecord)
    assert [record.path for record in records] == ["fallback", "handoff"]
