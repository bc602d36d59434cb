"""`kvferry store` over a files pool and a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.cli.main import main
from kvferry.store.files import FilesTier
from kvferry.store.framed import FramedTier
from kvferry.store.valkey import EmbeddedServer, ValkeyTier

from .conftest import Blocks


@pytest.fixture
def pool(tmp_path: Path, blocks: Blocks) -> str:
    tier = FilesTier(tmp_path, capacity_bytes=10_000_000, ghost_keys=1000)
    for namespace, numbers in ((b"a" * 32, (1, 2)), (b"b" * 32, (3,))):
        framed = FramedTier(tier, namespace)
        framed.put([blocks.key(n) for n in numbers], [blocks.payload(n) for n in numbers], 5.0)
    tier.close()
    return f"files://{tmp_path}"


def output(capsys: pytest.CaptureFixture[str]) -> object:
    return json.loads(capsys.readouterr().out)


def test_stat(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stat", pool, "--json"]) == 0
    answer = output(capsys)
    assert isinstance(answer, dict)
    assert answer["blocks"] == 3
    assert answer["namespaces"] == {}


def test_stat_for_people(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stat", pool]) == 0
    text = capsys.readouterr().out
    assert "= C effective         unknown" in text
    assert "- C fragmentation     unknown" in text
    assert "- C active decode     0 B" in text


def test_stat_tells_what_was_never_read(
    pool: str, blocks: Blocks, capsys: pytest.CaptureFixture[str]
) -> None:
    size = len(blocks.payload(0)) + 128
    tier = FilesTier(pool.removeprefix("files://"), capacity_bytes=3 * size)
    tier.get([blocks.key(1)], [[memoryview(bytearray(size))]], 5.0)
    tier.put([blocks.key(9)], [[memoryview(bytearray(size))]], 5.0)
    assert main(["store", "stat", pool, "--json"]) == 0
    answer = output(capsys)
    assert isinstance(answer, dict)
    assert answer["capacity_bytes"] == 3 * size
    assert (answer["evicted_read_blocks"], answer["evicted_unread_blocks"]) == (0, 1)
    assert (answer["unread_bytes"], answer["evicted_unread_bytes"]) == (2 * size, size)
    assert answer["never_read_bytes"] == 3 * size


def test_stat_over_a_server(server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stat", server.url, "--json"]) == 0
    answer = output(capsys)
    assert isinstance(answer, dict)
    assert answer["never_read_bytes"] is None
    taken = answer["active_decode_bytes"] + answer["reserved_bytes"] + answer["fragmentation_bytes"]
    assert answer["effective_bytes"] == answer["capacity_bytes"] - taken


def test_sweep(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "sweep", pool, "--unread", "1h", "--json"]) == 0
    assert output(capsys) == {"swept": 0}


def test_sweep_of_a_server_is_its_own(server: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "sweep", server.url, "--unread", "1h"]) == 2
    assert "sweeps by itself" in capsys.readouterr().err


def test_ls_of_one_namespace(pool: str, blocks: Blocks, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "ls", pool, "--namespace", "6262", "--json"]) == 0
    assert output(capsys) == [
        {
            "key": blocks.key(3).hex(),
            "value_bytes": len(blocks.payload(3)) + 128,
            "namespace": (b"b" * 32).hex(),
            "codec": "raw",
        }
    ]


def test_verify_of_a_sound_pool(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "verify", pool]) == 0
    assert "3 blocks are sound, 0 are not" in capsys.readouterr().out


def test_verify_names_the_flawed(
    pool: str, tmp_path: Path, blocks: Blocks, capsys: pytest.CaptureFixture[str]
) -> None:
    name = blocks.key(2).hex()
    path = tmp_path / "blocks" / name[:2] / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert main(["store", "verify", pool, "--json"]) == 1
    answer = output(capsys)
    assert isinstance(answer, dict)
    assert answer["sound"] == 2
    assert [row["key"] for row in answer["flawed"]] == [name]


def test_purge_asks_first(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "purge", pool]) == 2
    assert "would remove 3 blocks" in capsys.readouterr().err


def test_purge_of_one_namespace(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "purge", pool, "--namespace", "61" * 32, "--yes", "--json"]) == 0
    answer = output(capsys)
    assert isinstance(answer, dict)
    assert answer["dropped"] == 2


def test_over_a_server(server: EmbeddedServer, blocks: Blocks, capsys: pytest.CaptureFixture[str]) -> None:
    framed = FramedTier(ValkeyTier(server.host, server.port), b"a" * 32)
    framed.put([blocks.key(1)], [blocks.payload(1)], 5.0)
    assert main(["store", "verify", server.url, "--json"]) == 0
    assert output(capsys) == {"sound": 1, "flawed": []}


@pytest.mark.parametrize(
    "arguments",
    [["stat", "memory://?capacity=1GiB"], ["ls", "nowhere"], ["ls", "files:///tmp/x", "--namespace", "xyz"]],
)
def test_bad_input_is_told(arguments: list[str]) -> None:
    assert main(["store", *arguments]) == 2


def test_an_empty_namespace_is_not_every_namespace(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "purge", pool, "--namespace", "", "--yes"]) == 2
    assert "--namespace" in capsys.readouterr().err
    assert main(["store", "verify", pool]) == 0
    assert not capsys.readouterr().out.startswith("0 ")


@pytest.mark.parametrize("command", ["stat", "ls", "verify"])
def test_looking_at_a_pool_does_not_make_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", command, f"files://{tmp_path}/mistyped"]) == 2
    assert "there is no files tier in" in capsys.readouterr().err
    assert not (tmp_path / "mistyped").exists()


def test_an_address_that_does_not_parse_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "stat", "valkey://user:secret@[::1/0"]) == 2
    assert "secret" not in capsys.readouterr().err
