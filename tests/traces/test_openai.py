"""Request logs: their shapes, templates, tokens, and the trace that comes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reading import read

from kvferry.errors import FormatError, UsageError
from kvferry.keys import block_hashes
from kvferry.traces import open_trace
from kvferry.traces.openai.records import request_of
from kvferry.traces.openai.template import ChatTemplate

tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = (
    "{{ bos_token }}{% if tools %}tools {{ tools | tojson }} {% endif %}"
    "{% for message in messages %}{{ message.role }} : {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
WORDS = ["<s>", "<unk>", "system", "user", "assistant", ":", *(f"w{number}" for number in range(40))]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a tokenizer of words, which begins completions with <s>, and a chat template."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<s>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    folder = tmp_path / "model"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant")
    return {
        "messages": [{"role": roles[number % 3], "content": text} for number, text in enumerate(contents)],
        **more,
    }


def test_a_chat_becomes_the_tokens_of_its_template(lines: Callable[..., Path], model: Path) -> None:
    path = lines([chat("w1 w2", "w3", created=5), chat("w1 w2", "w4", created=6)])
    trace = open_trace(path, tokenizer=model, block_tokens=2)
    names = [name for _, new in trace.named_chunks() for name in new if name is not None]
    words = ["<s>", "system", ":", "w1", "w2", "user", ":", "w3", "assistant", ":"]
    other = [*words[:7], "w4", *words[8:]]
    ids = [WORDS.index(word) for word in words]
    expected = block_hashes(ids, 2) + block_hashes([WORDS.index(word) for word in other], 2)[3:]
    assert names == expected
    assert [one.input_tokens for one in read(trace)] == [10, 10]


def test_a_completion_begins_with_the_special_tokens(lines: Callable[..., Path], model: Path) -> None:
    trace = open_trace(lines([{"prompt": "w1 w2", "created": 1}]), tokenizer=model)
    assert read(trace)[0].input_tokens == 3


def test_token_ids_need_no_tokenizer(lines: Callable[..., Path]) -> None:
    rows = [{"prompt": [1, 2, 3, 4, 5], "ts": 0}, {"prompt": [1, 2, 3, 4, 6], "ts": 1}]
    assert [one.blocks for one in read(open_trace(lines(rows), block_tokens=2))] == [(0, 1, 2), (0, 1, 3)]


def test_a_salt_keeps_prompts_apart(lines: Callable[..., Path]) -> None:
    rows = [{"prompt": [1, 2], "ts": 0}, {"prompt": [1, 2], "ts": 1, "cache_salt": "x"}]
    assert [one.blocks for one in read(open_trace(lines(rows), block_tokens=2))] == [(0,), (1,)]


def test_usage_alone_gives_lengths(lines: Callable[..., Path]) -> None:
    rows = [chat("w1", created=1, usage={"prompt_tokens": 30, "completion_tokens": 4}), chat("w1", created=2)]
    trace = open_trace(lines(rows))
    assert not trace.has_blocks
    assert [(one.input_tokens, one.output_tokens) for one in read(trace)] == [(30, 4)]
    assert "--tokenizer" in trace.caveats[0]
    assert "usage.prompt_tokens" in trace.problems.first[0].message


def test_prompts_without_tokenizer_or_usage_are_refused(lines: Callable[..., Path]) -> None:
    with pytest.raises(FormatError, match="say --tokenizer"):
        open_trace(lines([chat("w1", created=1)]))


def test_a_request_beside_its_response(lines: Callable[..., Path], model: Path) -> None:
    row = {
        "timestamp": "2026-01-01T00:00:00Z",
        "request": chat("w1", model="m", user="u"),
        "response": {"usage": {"prompt_tokens": 6, "completion_tokens": 9}},
        "service": "search",
    }
    trace = open_trace(lines([row]), tokenizer=model)
    (one,) = read(trace)
    assert one.output_tokens == 9
    assert dict(one.fields) == {"model": "m", "user": "u", "service": "search"}
    assert trace.caveats == ()


def test_counts_that_disagree_point_to_the_template(lines: Callable[..., Path], model: Path) -> None:
    trace = open_trace(lines([chat("w1", created=1, usage={"prompt_tokens": 99})]), tokenizer=model)
    read(trace)
    assert "line 1 has 99 tokens by its usage and 6 here" in trace.caveats[0]


def test_bad_rows_are_counted(lines: Callable[..., Path], model: Path) -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    rows = [
        chat("w1", created=1),
        {"messages": "hello", "created": 1},
        {"messages": [image], "created": 1},
        {"other": 1},
        {"messages": [], "created": "noon"},
        chat("w1"),
        {"usage": {"prompt_tokens": 3}, "created": 1},
    ]
    trace = open_trace(lines(rows), tokenizer=model)
    assert len(read(trace)) == 1
    said = [str(one) for one in trace.problems.first]
    assert trace.problems.count == 6
    assert "messages is not a list" in said[0]
    assert "part of type 'image_url'" in " ".join(said)
    assert "noon" in " ".join(said)


def test_a_log_without_times_counts_lines(lines: Callable[..., Path], model: Path) -> None:
    trace = open_trace(lines([chat("w1"), chat("w2")]), tokenizer=model)
    assert [one.arrival for one in read(trace)] == [0.0, 1.0]
    assert "no times" in trace.caveats[0]


def test_a_boundary_is_the_one_the_request_declares(lines: Callable[..., Path]) -> None:
    row = {"prompt": [1, 2, 3, 4], "ts": 0, "kv_transfer_params": {"kvferry": {"boundary_tokens": 2}}}
    assert read(open_trace(lines([row]), block_tokens=2))[0].boundary == 2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1_700_000_000, 1.7e9), (1_700_000_000_000, 1.7e9), (1_700_000_000_000_000, 1.7e9), (12.5, 12.5)],
)
def test_times_by_their_size(value: float, seconds: float) -> None:
    assert request_of({"prompt": "x", "timestamp": value}, 1).arrival == pytest.approx(seconds)


def test_a_template_of_a_file_of_its_own(lines: Callable[..., Path], model: Path, tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages[0].content }}")
    trace = open_trace(lines([chat("w1 w2", created=1)]), tokenizer=model, chat_template=template)
    assert read(trace)[0].input_tokens == 2


def test_a_chat_without_a_template_is_a_bad_row(lines: Callable[..., Path], model: Path) -> None:
    (model / "tokenizer_config.json").unlink()
    trace = open_trace(lines([chat("w1", created=1)]), tokenizer=model)
    assert read(trace) == []
    assert "--chat-template" in trace.problems.first[0].message


def test_what_is_no_tokenizer(lines: Callable[..., Path], tmp_path: Path) -> None:
    path = lines([chat("w1", created=1)])
    with pytest.raises(UsageError, match="--tokenizer"):
        open_trace(path, tokenizer=tmp_path / "absent")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match=r"not a tokenizer\.json"):
        open_trace(path, tokenizer=tmp_path)


class TestTemplate:
    def test_json_keeps_letters_and_order(self) -> None:
        made = ChatTemplate("{{ tools | tojson }}{{ tools | tojson(indent=1) }}")
        assert made.render([], [{"b": "ä<", "a": 1}]).startswith('[{"b": "ä<", "a": 1}][\n {')

    def test_the_time_is_the_requests_own(self) -> None:
        assert (
            ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render([], arrival=86_400.0 * 365) == "1971-01-01"
        )

    def test_arguments_of_calls_are_objects_and_parts_are_joined(self) -> None:
        call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        made = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.x }}{{ messages[1].content }}")
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert made.render([{"tool_calls": [call]}, {"content": parts}]) == "1a\nb"

    def test_generation_blocks_and_loop_controls(self) -> None:
        made = ChatTemplate(
            "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
            "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        )
        assert made.render([{"content": "x"}, {"content": "y"}]) == "x"

    def test_its_own_refusal_is_told(self) -> None:
        with pytest.raises(ValueError, match="roles must alternate"):
            ChatTemplate("{{ raise_exception('roles must alternate') }}").render([])

    def test_it_cannot_reach_out_of_the_sandbox(self) -> None:
        with pytest.raises(ValueError, match="refuses"):
            ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").render([])

    def test_it_has_to_parse(self) -> None:
        with pytest.raises(FormatError, match="does not parse"):
            ChatTemplate("{% for %}")

    def test_it_renders_as_transformers_does(self) -> None:
        rendering = pytest.importorskip("transformers.utils.chat_template_utils")
        messages = [{"role": "user", "content": "Grüße\n"}, {"role": "assistant", "content": " x "}]
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [True, None]}}}]
        source = TEMPLATE + "\n  {% if true %}\n  {{- messages[0]['content'] | trim }}\n  {%- endif %}\n"
        (theirs,), _ = rendering.render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=True, bos_token="<s>"
        )
        assert ChatTemplate(source, {"bos_token": "<s>"}).render(messages, tools) == theirs
