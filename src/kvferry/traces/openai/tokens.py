"""From a logged request to token ids: a tokenizer.json, and the chat template beside it.

Owns loading of both. A chat is rendered and tokenised without adding special tokens, since its template
writes them; a completion's prompt is tokenised with them, as engines do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import FormatError, MissingExtra, UsageError
from .records import LoggedRequest
from .template import ChatTemplate

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Tokens"]

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class Tokens:
    """A tokenizer and, for chats, a template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self.template = template

    @classmethod
    def load(cls, tokenizer: Path, chat_template: Path | None = None) -> Tokens:
        """From a tokenizer.json or the folder that holds it.

        The template is `chat_template` (jinja, or a tokenizer_config.json), else chat_template.jinja or
        tokenizer_config.json beside the tokenizer. Raises `UsageError` or `FormatError`.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtra("reading the text of a request log", "transformers") from error
        file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        if not file.is_file():
            raise UsageError(f"--tokenizer: {file} is no file; name a tokenizer.json or its folder")
        try:
            loaded = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise FormatError(f"{file}: not a tokenizer.json: {error}") from error
        loaded.no_truncation()
        loaded.no_padding()
        return cls(loaded, _template(file.parent, chat_template))

    def text(self, request: LoggedRequest) -> str | list[int]:
        """The prompt's text; its ids where the log has them. Raises `ValueError` where neither can be had."""
        if request.messages is None:
            if request.prompt is None:
                raise ValueError("no text: its blocks are unknown")
            return request.prompt
        if self.template is None:
            raise ValueError(
                "a chat needs its template: say --chat-template, or put tokenizer_config.json beside the "
                "tokenizer"
            )
        return self.template.render(
            request.messages,
            request.tools,
            arrival=request.arrival or 0.0,
            arguments=request.template_arguments,
        )

    def ids(self, texts: Sequence[str | list[int]], *, chats: Sequence[bool]) -> list[list[int]]:
        """Token ids of each text; `chats` says which are rendered chats."""
        found: list[list[int]] = [text if isinstance(text, list) else [] for text in texts]
        for special in (False, True):
            places = [
                number
                for number, (text, chat) in enumerate(zip(texts, chats, strict=True))
                if isinstance(text, str) and chat is not special
            ]
            encoded = self._tokenizer.encode_batch_fast(
                [texts[place] for place in places], add_special_tokens=special
            )
            for place, one in zip(places, encoded, strict=True):
                found[place] = one.ids
        return found


def _template(folder: Path, chosen: Path | None) -> ChatTemplate | None:
    config = _config(folder / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _token(config.get(name))) is not None}
    if chosen is not None:
        if chosen.suffix == ".json":
            source = _source(_config(chosen))
            if source is None:
                raise FormatError(f"--chat-template: {chosen} has no chat_template")
            return ChatTemplate(source, special)
        return ChatTemplate(_read(chosen), special)
    beside = folder / "chat_template.jinja"
    source = _read(beside) if beside.is_file() else _source(config)
    return None if source is None else ChatTemplate(source, special)


def _source(config: dict[str, Any]) -> str | None:
    """The template of a tokenizer_config.json; of several the one named default."""
    found = config.get("chat_template")
    if isinstance(found, list):
        found = next((one.get("template") for one in found if one.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _token(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--chat-template: cannot read {path}: {error.strerror}") from error
