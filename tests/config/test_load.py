from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.config import Config, load
from kvferry.errors import ConfigError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "kvferry.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def refused(**sources: object) -> str:
    """The message with which these sources are refused."""
    with pytest.raises(ConfigError) as caught:
        load(**{"env": {}, **sources})  # type: ignore[arg-type]
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_without_sources_everything_is_default() -> None:
    loaded = load(env={})
    assert loaded.config == Config()
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}


def test_a_file_gives_values_and_lines(write: Write) -> None:
    path = write("# a comment\npool: valkey://h:1\ngate:\n  margin: 5ms\n  mode: off\nhost_memory: 16GiB\n")
    loaded = load(path, env={})
    assert (loaded.config.gate.margin, loaded.config.gate.mode) == (0.005, "off")
    assert loaded.config.host_memory == 16 * 2**30
    assert str(loaded.origins["gate.margin"]) == f"{path}:4"


def test_a_stronger_source_replaces_single_values(write: Write) -> None:
    loaded = load(
        write("gate: {margin: 1ms, canary_share: 0.1, holdout_share: 0.3}\nblock_tokens: 16\n"),
        env={"KVFERRY_GATE__MARGIN": "2ms", "KVFERRY_GATE__CANARY_SHARE": "0.2", "HOME": "/"},
        json={"gate": {"margin": "3ms"}},
        overrides=["gate.margin=4ms"],
    )
    gate = loaded.config.gate
    assert (gate.margin, gate.canary_share, gate.holdout_share) == (0.004, 0.2, 0.3)
    assert [loaded.origins[name].kind for name in ("gate.margin", "gate.canary_share", "block_tokens")] == [
        "flag",
        "env",
        "file",
    ]


def test_vllm_json_is_stronger_than_the_environment() -> None:
    loaded = load(env={"KVFERRY_TTL": "1h"}, json='{"ttl": "2h"}')
    assert loaded.config.ttl == 7200
    assert str(loaded.origins["ttl"]) == "kv_connector_extra_config.ttl"


def test_the_environment_may_name_the_file(write: Write) -> None:
    assert load(env={"KVFERRY_CONFIG": str(write("block_tokens: 16"))}).config.block_tokens == 16


def test_the_cache_folder_is_no_setting() -> None:
    assert load(env={"KVFERRY_CACHE_DIR": "/tmp/x"}).config == Config()


@pytest.mark.parametrize("text", ["", "# nothing\n", "gate:\n", "null\n"])
def test_a_file_that_sets_nothing_is_fine(write: Write, text: str) -> None:
    assert load(write(text), env={}).config == Config()


def test_text_sources_read_lists_and_null() -> None:
    config = load(env={"KVFERRY_SHAREABLE_DATA_CLASSES": "a, b"}, overrides=["pool=null"]).config
    assert (config.shareable_data_classes, config.pool) == (("a", "b"), None)


def test_an_empty_list_allows_no_class() -> None:
    assert load(env={"KVFERRY_SHAREABLE_DATA_CLASSES": ""}).config.shareable_data_classes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gate:\n  margn: 5ms\n",
            "kvferry.yaml:2: unknown setting 'gate.margn'; did you mean 'gate.margin'?",
        ),
        ("\nmargin: 5ms\n", "kvferry.yaml:2: unknown setting 'margin'; did you mean 'gate.margin'?"),
        ("zzz: 1\n", "`kvferry config show` lists all settings"),
        ("pool: [a", "kvferry.yaml:1: not YAML"),
        ("- a\n", "write NAME: VALUE"),
        ("ttl: 24\n", "kvferry.yaml:1): 24 has no unit"),
        ("ttl: 24h\nttl: 25h\n", "kvferry.yaml:2: 'ttl' stands twice, first in line 1"),
        ("block_tokens: 0\n", "at least 1"),
        ("block_tokens: 1.5\n", "write a whole number"),
        ("block_tokens: true\n", "write a whole number"),
        ("block_tokens: '32'\n", "write a whole number"),
        (f"block_tokens: {'9' * 5000}\n", "write a whole number"),
        ("strict: yes\n", "write true or false"),
        ("strict: !!python/object:os.system x\n", "write a plain value"),
        ("a: b\n---\nc: d\n", "not YAML"),
        ("host_memory: 1:30\n", "write 16GiB"),
        ("host_memory: -1\n", "has no unit"),
        ("gate: 5\n", "'gate' is a group of settings, such as gate.mode"),
        ("ttl: {a: 1}\n", "unknown setting 'ttl.a'"),
        ("ttl:\n", "is empty"),
        ("pool: 5\n", "write some text, or null for none"),
        ("shareable_data_classes: [[a]]\n", "a list holds single values"),
        ("shareable_data_classes: [1]\n", "write a list of names"),
        ("? [a]\n: b\n", "a setting's name is a word"),
        ("a: &a {b: *a}\n", ""),
        ("x: \x01\n", "not YAML"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_file_is_refused_with_its_line(write: Write, text: str, message: str) -> None:
    assert message in refused(file=write(text))


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("KVFERRY_GATE_MARGIN", "5ms", "did you mean 'KVFERRY_GATE__MARGIN'?"),
        ("KVFERRY_GATE", "{}", "'KVFERRY_GATE' is a group of settings, such as KVFERRY_GATE__MODE"),
        ("KVFERRY_GATE__MARGIN", "0s", "gate.margin (environment KVFERRY_GATE__MARGIN)"),
        ("KVFERRY_GATE__MARGIN", "5", "has no unit"),
        ("KVFERRY_GATE__MARGIN", "", "is empty"),
        ("KVFERRY_STRICT", "1", "write true or false"),
        ("KVFERRY_STRICT", "True", "write true or false"),
        ("KVFERRY_BLOCK_TOKENS", "0x20", "write a whole number"),
        ("KVFERRY_BLOCK_TOKENS", "9" * 5000, "write a whole number"),
        ("KVFERRY_GATE__CANARY_SHARE", "nan", "write a number"),
        ("KVFERRY_GATE__CANARY_SHARE", "5%", "at least 0 and at most 1"),
        ("KVFERRY_POOL", "http://h", "unknown scheme 'http'; write one of memory://, files:///DIR"),
        ("KVFERRY_POOL", "valkey", "no scheme"),
        ("KVFERRY_POOL", "files://", "names no place"),
        ("KVFERRY_DISK", "valkey://h:1", "write files:///DIR"),
        ("KVFERRY_CACHEDIR", "/x", "did you mean 'KVFERRY_CACHE_DIR'?"),
    ],
)
def test_a_bad_variable_is_refused_by_name(variable: str, text: str, message: str) -> None:
    assert message in refused(env={variable: text})


@pytest.mark.parametrize(
    ("json", "message"),
    [
        ({"gate": {"margin": 5}}, "gate.margin (kv_connector_extra_config.gate.margin): 5 has no unit"),
        ({"gate": {"margin": "5ms", "x": 1}}, "unknown setting 'gate.x'"),
        ({"gate": {"canary_share": 1.5}}, "at most 1"),
        ({"gate": {"mode": "maybe"}}, "write one of off, shadow, canary, on"),
        ({"gate": []}, "is a group of settings"),
        ("[]", "settings are an object"),
        ("{", "not JSON"),
        ({"strict": "true"}, "write true or false"),
    ],
)
def test_bad_vllm_json_is_refused_by_path(json: object, message: str) -> None:
    assert message in refused(json=json)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gate.margin", "write NAME=VALUE"),
        ("=5ms", "write NAME=VALUE"),
        ("margin=5ms", "did you mean 'gate.margin'?"),
        ("gate=on", "is a group of settings"),
        ("ttl=", "is empty"),
        ("timeouts.backoff_first=1min", "backoff_most"),
    ],
)
def test_a_bad_flag_is_refused(override: str, message: str) -> None:
    assert message in refused(overrides=[override])


def test_a_bad_value_is_refused_even_where_a_stronger_source_replaces_it() -> None:
    assert "KVFERRY_TTL" in refused(env={"KVFERRY_TTL": "soon"}, overrides=["ttl=1h"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.yaml: cannot read" in refused(file=tmp_path / "nowhere.yaml")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "k.yaml").write_bytes(b"pool: \xff")
    assert "save it as UTF-8" in refused(file=tmp_path / "k.yaml")


def test_a_wrong_secret_is_not_repeated() -> None:
    assert "12345" not in refused(json={"tenant_secret": 12345})
