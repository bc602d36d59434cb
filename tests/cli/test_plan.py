from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.cli.plan import app
from kvferry.errors import InputError

PROFILE = Path(__file__).resolve().parents[1] / "golden" / "profile.json"


def write(path: Path) -> Path:
    """Thirty requests over three prompts, in Mooncake's format."""
    rows = [
        {
            "timestamp": 500 * n,
            "input_length": 2000,
            "output_length": 3,
            "hash_ids": [0, *range(n % 3 * 9 + 1, n % 3 * 9 + 4)],
        }
        for n in range(30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*words: str) -> None:
    app(list(words), exit_on_error=False, print_error=False, result_action="return_value")


def words(tmp_path: Path) -> list[str]:
    return ["--trace", str(write(tmp_path / "t.jsonl")), "--model", "qwen3-8b", "--profile", str(PROFILE)]


def test_the_sentence_comes_first_and_says_what_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*words(tmp_path), "--replicas", "2", "--capacity", "4GiB")
    text = capsys.readouterr().out
    assert "P_eviction" in text
    assert text.splitlines()[0].endswith(".")


def test_json_holds_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*words(tmp_path), "--replicas", "2", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] in ("nothing", "local", "routing", "pool")
    assert found["proven"] is (found["verdict"] != "pool")
    assert found["bytes_per_token"] == 144 * 1024
    assert any("--capacity" in line for line in found["unknown"])


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    flags = words(tmp_path)
    flags[-1] = str(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"none\.json"):
        run(*flags)


@pytest.mark.parametrize("count", ["-3", "nan", "inf"])
def test_how_many_decode_is_no_odd_number(tmp_path: Path, count: str) -> None:
    with pytest.raises(InputError, match="--decoding"):
        run(*words(tmp_path), "--decoding", count)


def test_a_missing_profile_is_told_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--set profile=FILE, or RUN/profile-A\.json"):
        run(*words(tmp_path)[:-2])


def test_a_log_of_prompts_is_read_with_a_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra transformers is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"timestamp": n, "prompt": "a " * 64}) + "\n" for n in range(5)))
    given = ["--trace", str(log), "--model", "qwen3-8b", "--profile", str(PROFILE)]
    run(*given, "--tokenizer", str(tmp_path), "--block-tokens", "16", "--json")
    assert json.loads(capsys.readouterr().out)["infinite_hit"] == 0.8


def test_a_link_that_was_never_measured_has_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = json.loads(PROFILE.read_text())
    profile["legs"]["pool"]["bytes_per_second"] = None
    (tmp_path / "p.json").write_text(json.dumps(profile))
    flags = words(tmp_path)
    flags[-1] = str(tmp_path / "p.json")
    # Three prompts in turn, one of which fits.
    run(*flags, "--capacity-tokens", "2560", "--pool-tokens", "1M")
    text = capsys.readouterr().out
    assert "was never measured; it pays above" in text.splitlines()[0]
    assert "unknown: it was never measured" in text
    assert "0.0 % of the time" not in text
