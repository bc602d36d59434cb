"""What is asked in the demo: long documents behind one system prompt, and short questions about them.

The documents are sources of Python's own standard library, which every machine that runs this has: real
text of any length, the same for everybody with the same Python, and nothing has to be fetched.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError

__all__ = ["Library", "Prefix", "Question"]

# The name comes first: prefixes that begin alike would share a block, and no prefill would be quite cold.
_SYSTEM = (
    "Module {name}. You are a careful reviewer of Python code. Answer questions about the module below in "
    "one short sentence. If the module does not say, say so.\n\n"
)
_MODULES = (
    "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "configparser", "copy", "csv", "dataclasses",
    "datetime", "difflib", "dis", "doctest", "enum", "filecmp", "fractions", "ftplib", "functools", "getopt",
    "glob", "gzip", "heapq", "hmac", "imaplib", "inspect", "ipaddress", "keyword", "linecache", "locale",
    "mailbox", "mimetypes", "netrc", "numbers", "optparse", "pathlib", "pickle", "platform", "plistlib",
    "poplib", "pprint", "profile", "queue", "random", "sched", "selectors", "shelve", "shlex", "shutil",
    "smtplib", "socket", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading",
    "tokenize", "trace", "traceback", "turtle", "typing", "uuid", "weakref", "webbrowser", "zipfile",
)  # fmt: skip
_QUESTIONS = (
    "What is this module for?",
    "Which class or function is defined first?",
    "Name one exception that this module raises.",
    "Which other modules does it import?",
    "What could go wrong when it is used from two threads?",
    "Which function would you test first?",
)


@dataclass(frozen=True, slots=True)
class Prefix:
    """A shared prefix: system prompt and document, as the messages of a chat begin."""

    name: str
    document: str

    def messages(self, question: str) -> list[dict[str, str]]:
        """The chat with this prefix and a question behind it."""
        return [
            {"role": "system", "content": _SYSTEM.format(name=self.name) + self.document},
            {"role": "user", "content": question},
        ]


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt: equal questions give equal prompts, so their answers must be equal too."""

    prefix: Prefix
    number: int

    @property
    def name(self) -> str:
        """A name for records, as `heapq/2`."""
        return f"{self.prefix.name}/{self.number}"

    @property
    def messages(self) -> list[dict[str, str]]:
        return self.prefix.messages(_QUESTIONS[self.number % len(_QUESTIONS)])


class Library:
    """Prefixes drawn without replacement: no two share a document, so no two share a block."""

    def __init__(self, seed: int, count_tokens: Callable[[str], int]) -> None:
        self._folder = Path(sysconfig.get_paths()["stdlib"])
        self._names = list(_MODULES)
        random.Random(seed).shuffle(self._names)
        self._count = count_tokens

    def draw(self, count: int, tokens: int) -> list[Prefix]:
        """The next `count` documents of about `tokens` tokens.

        Raises UsageError where the standard library's sources are missing or too few are long enough.
        """
        found: list[Prefix] = []
        while self._names and len(found) < count:
            name = self._names.pop(0)
            path = self._folder / f"{name}.py"
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            document = _cut(text, tokens, self._count)
            if document is not None:
                found.append(Prefix(name, document))
        if len(found) < count:
            raise UsageError(
                f"{self._folder} has no {count} more sources of {tokens} tokens; the demo needs Python's own"
            )
        return found


def _cut(text: str, tokens: int, count_tokens: Callable[[str], int]) -> str | None:
    """The beginning of `text` with about `tokens` tokens, by lines; None when it has fewer."""
    lines = text.splitlines(keepends=True)
    low, high = 0, len(lines)
    if count_tokens(text) < tokens:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if count_tokens("".join(lines[:middle])) < tokens:
            low = middle
        else:
            high = middle
    return "".join(lines[:high])
