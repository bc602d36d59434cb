"""Opening a trace: which format it is, by its content, and its reader.

Owns recognition and the message for a file that is none of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ..errors import FormatError, UsageError
from .azure import HEADER, open_azure
from .chunk import FORMATS, Format, Name, Problems, Trace, TraceChunk
from .decisions import decision_files, open_decisions
from .gateway import open_gateway
from .lines import open_binary
from .mooncake import open_mooncake
from .openai import Tokens, open_openai
from .own import open_own
from .sizes import LARGEST_BLOCK
from .vllm import open_vllm_events
from .weka import open_weka

__all__ = ["open_trace", "recognise"]

_HEAD_BYTES = 1 << 16
_TELLING = (
    "messages",
    "prompt",
    "hash_ids",
    "input_length",
    "ledger",
    "kvferry_gateway",
    "kvferry_trace",
    "kvferry_vllm_events",
    "usage",
)
"""Keys that tell a format, looked for in a first line that is longer than what is read of it."""
_LOOKED_AT = 20


def open_trace(
    path: str | Path,
    *,
    strict: bool = False,
    block_tokens: int | None = None,
    format: Format | None = None,
    sort: bool = False,
    tokenizer: str | Path | None = None,
    chat_template: str | Path | None = None,
) -> Trace:
    """A trace of any known format, recognised by its content unless `format` names it.

    `block_tokens` asks for another size of block: any where the log has prompts, else a multiple of the
    file's. With `sort`, requests may stand in any order, and all of them are held in memory. With `strict`,
    the first bad row raises `FormatError`; else bad rows are counted in `problems`. `tokenizer` and
    `chat_template` are for logs of prompts. Raises `FormatError` or `UsageError`.
    """
    file = Path(path)
    if not file.exists():
        raise UsageError(f"{file}: there is no such file or folder")
    if block_tokens is not None and not 1 <= block_tokens <= LARGEST_BLOCK:
        raise UsageError(
            f"--block-tokens: {block_tokens} is no size of a block; write 1 to {LARGEST_BLOCK:,}"
        )
    if format is not None and format not in FORMATS:
        raise UsageError(f"--format: {format!r} is none of {', '.join(FORMATS)}")
    known = format or recognise(file)
    if known != "openai" and (tokenizer is not None or chat_template is not None):
        raise UsageError(f"--tokenizer, --chat-template: {file} is of format {known} and has no prompts")
    if tokenizer is None and chat_template is not None:
        raise UsageError("--chat-template: say --tokenizer too, which turns its text into tokens")
    trace = Trace(
        path=str(file), format=known, block_tokens=0, has_blocks=True, read=_unread,
        problems=Problems(strict=strict),
    )  # fmt: skip
    match known:
        case "mooncake":
            open_mooncake(file, trace, block_tokens, sort)
        case "weka":
            open_weka(file, trace, block_tokens, sort)
        case "azure":
            open_azure(file, trace, sort)
        case "openai":
            tokens = None
            if tokenizer is not None:
                template = None if chat_template is None else Path(chat_template)
                tokens = Tokens.load(Path(tokenizer), template)
            open_openai(file, trace, block_tokens, sort, tokens)
        case "vllm-events":
            open_vllm_events(file, trace, block_tokens, sort)
        case "decisions":
            open_decisions(file, trace, block_tokens, sort)
        case "gateway":
            open_gateway(file, trace, block_tokens, sort)
        case "kvferry":
            open_own(file, trace, block_tokens, sort)
    return trace


def recognise(path: Path) -> Format:
    """The format of a file or folder. Raises `FormatError` with what was seen instead."""
    if not path.is_dir():
        return _of_file(path)
    if any(file.is_file() for file in decision_files(path)):
        return "decisions"
    files = [file for pattern in ("*.json", "*.jsonl", "*.jsonl.gz") for file in sorted(path.glob(pattern))]
    if not files:
        raise FormatError(f"{path}: a folder without .json, .jsonl or decisions.jsonl files. {_known()}")
    found = _of_file(files[0])
    if found not in ("weka", "kvferry"):
        raise FormatError(
            f"{path}: {files[0].name} is of format {found}, which is read file by file: name one"
        )
    return found


def _of_file(path: Path) -> Format:
    with open_binary(path) as file:
        try:
            head = file.read(_HEAD_BYTES)
        except (OSError, EOFError) as error:
            raise FormatError(f"{path}: cannot read this file: {error}") from error
    if not head.strip():
        raise FormatError(f"{path}: the file is empty. {_known()}")
    if head.removeprefix(b"\xef\xbb\xbf").startswith(HEADER):
        return "azure"
    if b'"hash_id_scope"' in head or (b'"block_size"' in head and b'"requests"' in head):
        return "weka"
    lines = [line for line in head.splitlines() if line.strip()]
    for line in islice(lines, _LOOKED_AT):
        keys = _keys(line)
        found = None if keys is None else _by_keys(keys)
        if found is not None:
            return found
    raise FormatError(f"{path}: {_seen(lines[0])}. {_known()}")


def _keys(line: bytes) -> dict[str, Any] | None:
    """The object of a line; the keys that can be seen where the line is longer than what was read."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if len(line) < _HEAD_BYTES // 2 or not line.lstrip().startswith(b"{"):
            return None
        return {name: {} for name in _TELLING if f'"{name}"'.encode() in line}
    return found if isinstance(found, dict) else None


def _by_keys(record: dict[str, Any]) -> Format | None:
    if "kvferry_trace" in record:
        return "kvferry"
    if "kvferry_vllm_events" in record:
        return "vllm-events"
    if "kvferry_gateway" in record:
        return "gateway"
    if "ledger" in record or {"request_id", "prompt_tokens", "block_tokens", "facts"} <= record.keys():
        return "decisions"
    if "hash_ids" in record and "input_length" in record:
        return "mooncake"
    inner = [
        record,
        *(one for name in ("request", "body", "response") if isinstance(one := record.get(name), dict)),
    ]
    if any(one.keys() & {"messages", "prompt", "usage"} for one in inner):
        return "openai"
    return None


def _seen(line: bytes) -> str:
    text = line[:4096].decode("utf-8", "replace").strip()
    if text.startswith(("{", "[")):
        keys = _keys(line)
        if keys:
            return f"not a trace that kvferry knows: its first line has {', '.join(list(keys)[:8])}"
        return f"its first line is no JSON object: {text[:60]!r}"
    if "\ufffd" in text[:60] or "\0" in text[:60]:
        return "neither JSON nor a known CSV: it is not text"
    return f"neither JSON nor a known CSV: it begins with {text[:60]!r}"


def _known() -> str:
    return (
        "Known formats: mooncake (timestamp, input_length, hash_ids), weka (block_size, requests), "
        "azure (CSV with TIMESTAMP,ContextTokens,GeneratedTokens), openai (messages, prompt or usage), "
        "vllm-events, decisions, gateway and kvferry (written by kvferry)"
    )


def _unread(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
    raise FormatError(f"{trace.path}: no reader was set up")
