"""The commands that write traces, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, Parameter

from kvferry.cli.trace_files import anonymize, convert, synthesize
from kvferry.errors import FormatError, UsageError

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3], "type": "chat"},
    {"timestamp": 2000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 4], "type": "chat"},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs one of the commands in an empty folder; its exit status."""
    app = App(default_parameter=Parameter(negative=()))
    for command in (convert, synthesize, anonymize):
        app.command(command)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> int:
        return app(words, exit_on_error=False, print_error=False, result_action="return_value")

    return call


def write(name: str, records: list[Any]) -> None:
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records)
    Path(name).write_text(text)


def requests(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()[1:]]


def test_convert_to_our_own_and_back(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    write("m.jsonl", MOONCAKE)
    assert run("convert", "m.jsonl", "own.jsonl") == 0
    assert (
        "2 requests, 2,200 input tokens, 6 blocks of 512 tokens asked for, 4 different"
        in capsys.readouterr().out
    )
    assert requests("own.jsonl")[1] == {
        "t": 2.0, "in": 1100, "out": 5, "ids": [0, 2, 3, 1], "fields": {"class": "chat"},
    }  # fmt: skip
    assert run("convert", "own.jsonl", "back.jsonl", "--to", "mooncake") == 0
    assert json.loads(Path("back.jsonl").read_text().splitlines()[1])["hash_ids"] == [0, 1, 3]


def test_convert_says_how_many_as_json(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    write("m.jsonl", MOONCAKE)
    assert run("convert", "m.jsonl", "own.jsonl", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["requests"], shown["unique_blocks"], shown["bad_rows"]) == (2, 4, 0)


def test_bad_rows_are_shown_and_strict_stops(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write("m.jsonl", [MOONCAKE[0], '{"timestamp": 1}', MOONCAKE[1]])
    assert run("convert", "m.jsonl", "own.jsonl") == 0
    shown = capsys.readouterr().err
    assert "bad row: m.jsonl:2: " in shown
    assert "1 bad row was left out" in shown
    with pytest.raises(FormatError, match=r"^m\.jsonl:2: "):
        run("convert", "m.jsonl", "other.jsonl", "--strict")


def test_convert_sorts_what_readers_refuse(run: Callable[..., int]) -> None:
    rows = [{**MOONCAKE[0], "timestamp": number} for number in [*range(1, 20_000), 0]]
    write("m.jsonl", rows)
    with pytest.raises(FormatError, match="--sort"):
        run("convert", "m.jsonl", "a.jsonl")
    assert run("convert", "m.jsonl", "b.jsonl", "--sort") == 0
    assert requests("b.jsonl")[0]["t"] == 0.0


def test_a_file_is_never_converted_onto_itself(run: Callable[..., int]) -> None:
    write("m.jsonl", MOONCAKE)
    with pytest.raises(UsageError, match="name another file"):
        run("convert", "m.jsonl", "m.jsonl", "--overwrite")
    assert len(Path("m.jsonl").read_text().splitlines()) == 2


def test_synthesize_is_the_same_twice(run: Callable[..., int]) -> None:
    for name in ("a", "b"):
        assert run("synthesize", name, "--requests", "200", "--seed", "7", "--preset", "agents") == 0
    assert Path("a").read_bytes() == Path("b").read_bytes()
    assert len(requests("a")) == 200


def test_synthesize_takes_a_recipe_and_flags_over_it(run: Callable[..., int]) -> None:
    write(
        "r.json",
        [{"classes": [{"name": "only", "content_tokens": 64, "spread": 0}], "requests": 5, "seed": 1}],
    )
    assert run("synthesize", "a", "--recipe", "r.json", "--requests", "9", "--block-tokens", "32") == 0
    made = requests("a")
    assert len(made) == 9
    assert {one["fields"]["class"] for one in made} == {"only"}
    assert made[0]["ids"] == [0, 2]
    with pytest.raises(UsageError, match="give one of them"):
        run("synthesize", "b", "--recipe", "r.json", "--preset", "chat")


def test_anonymize_drops_fields_unless_named(run: Callable[..., int]) -> None:
    write("m.jsonl", MOONCAKE)
    assert run("anonymize", "m.jsonl", "a.jsonl") == 0
    assert run("anonymize", "m.jsonl", "b.jsonl", "--keep", "class") == 0
    assert "fields" not in requests("a.jsonl")[0]
    assert requests("b.jsonl")[0]["fields"] == {"class": "chat"}
    assert requests("a.jsonl")[0]["keys"] != requests("b.jsonl")[0]["keys"]


def test_anonymize_under_a_secret_of_a_file(run: Callable[..., int]) -> None:
    run("synthesize", "s.jsonl", "--requests", "20")
    run("anonymize", "s.jsonl", "keyed.jsonl")
    Path("secret").write_bytes(bytes(32))
    for name in ("a.jsonl", "b.jsonl"):
        assert run("anonymize", "keyed.jsonl", name, "--secret-file", "secret") == 0
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()


@pytest.mark.parametrize("to", ["kvferry", "mooncake"])
def test_a_file_without_a_good_row_is_not_converted(run: Callable[..., int], to: str) -> None:
    write("m.jsonl", ['{"timestamp": 0, "input_length": 1, "hash_ids": "none"}'])
    with pytest.raises(FormatError, match=r"no row of it can be used: m\.jsonl:1: "):
        run("convert", "m.jsonl", "out.jsonl", "--to", to)
    assert [path.name for path in Path().iterdir() if "out" in path.name] == []
