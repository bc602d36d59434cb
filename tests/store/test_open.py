"""Addresses become tiers, and an address that makes no sense says what to write."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvferry.errors import ConfigError
from kvferry.store.files import FilesTier
from kvferry.store.memory import MemoryTier
from kvferry.store.open import open_tier
from kvferry.store.tier import Kind, Tier
from kvferry.store.valkey import EmbeddedServer, ValkeyTier


def test_memory() -> None:
    tier = open_tier("memory://?capacity=1MiB&name=host")
    assert isinstance(tier, MemoryTier)
    assert tier.name == "host"
    assert tier.usage(1.0).capacity_bytes == 1 << 20


def test_more_memory_than_there_is() -> None:
    with pytest.raises(ConfigError, match="more memory than"):
        open_tier("memory://?capacity=900TiB")


@pytest.mark.parametrize("text", ["1 +", "1 / 0", "def make(clock): raise OSError('no disc')"])
def test_a_plugin_that_breaks_is_told(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_plugin", raising=False)
    with pytest.raises(ConfigError, match="plugin://broken_plugin/make cannot be"):
        open_tier("plugin://broken_plugin/make")


@pytest.mark.parametrize("module", [".jar", "."])
def test_a_plugin_with_no_such_name_is_told(module: str) -> None:
    with pytest.raises(ConfigError, match="write plugin://package"):
        open_tier(f"plugin://{module}/Jar")


def test_capacity_as_an_argument() -> None:
    assert open_tier("memory://", capacity_bytes=5000).usage(1.0).capacity_bytes == 5000


def test_files(tmp_path: Path) -> None:
    with contextlib.closing(open_tier(f"files://{tmp_path}/a%20b?capacity=1MiB&kind=pool")) as tier:
        assert isinstance(tier, FilesTier)
        assert tier.kind is Kind.POOL
    assert (tmp_path / "a b" / "blocks").is_dir()


def test_files_alias_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_tier("files:here").close()
    assert (tmp_path / "here" / "blocks").is_dir()


@pytest.mark.parametrize("scheme", ["valkey", "redis"])
def test_valkey(server: EmbeddedServer, scheme: str) -> None:
    with contextlib.closing(open_tier(f"{scheme}://127.0.0.1:{server.port}/3?ttl=1h&name=pool")) as tier:
        assert isinstance(tier, ValkeyTier)
        assert tier.write_note("n", b"x", 1.0)
    with contextlib.closing(open_tier(server.url)) as tier:
        assert tier.read_note("n", 1.0) is None


def test_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a_plugin")

    def make(clock: object, size: str) -> Tier:
        return MemoryTier(int(size))

    module.make = make  # type: ignore[attr-defined]
    module.thing = lambda clock: object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_plugin", module)
    assert open_tier("plugin://a_plugin/make?size=77").usage(1.0).capacity_bytes == 77
    with pytest.raises(ConfigError, match="not a tier: it has no name, kind, find"):
        open_tier("plugin://a_plugin/thing")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("/tmp/x", "no known scheme; write one of memory://"),
        ("http://host/", "no known scheme"),
        ("memory://", "memory://\\?capacity=1GiB"),
        ("memory://x?capacity=1GiB", "takes no path"),
        ("memory://?capacity=1", "write"),
        ("memory://?size=1GiB", "has no option 'size'; it takes capacity"),
        ("files://host/dir", "write files:///host/dir"),
        ("files:", "needs a directory"),
        ("files:///tmp/x?kind=shelf", "write one of host"),
        ("valkey:///0", "no host"),
        ("valkey://h:port/0", "write valkey://host:6379/0"),
        ("valkey://h/name", "no database number"),
        ("valkey://h/0?capacity=1GiB", "has no option 'capacity'"),
        ("s3://bucket", "not served yet"),
        ("plugin://nowhere.at.all/Class", "write plugin://package.module/Class"),
        ("plugin://kvferry.clock", "names no class"),
    ],
)
def test_senseless_addresses(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        open_tier(url, setting="pool")
    assert str(caught.value).startswith("pool: ")


def test_an_unknown_keyword_is_told() -> None:
    with pytest.raises(ConfigError, match="unexpected keyword argument 'colour'"):
        open_tier("memory://?capacity=1MiB", colour="red")


def test_a_password_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        open_tier("valky://user:secret@host/0")
    assert "secret" not in str(caught.value)
