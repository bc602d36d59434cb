"""Texts without a download: the sources and docstrings of the standard library that runs us.

Owns finding them, and the room that an item has. Modules that other fits may have read are left out by the
digest of their text.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from ....errors import UsageError

__all__ = ["Room", "digest_of", "library_documents", "prose_of"]

_LEAST_CHARACTERS = 6000
_LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "encodings"})


@dataclass(frozen=True, slots=True)
class Room:
    """How long an item may be, in the target's tokens."""

    context_tokens: int
    continuation_tokens: int
    cut: Callable[[str, int], int]
    """(text, tokens): how many characters its first tokens are, up to the end of a word."""


def library_documents(seed: int, *, without: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """(name, text) of every longer module, in an order that the seed decides. Raises `UsageError`."""
    found = [(name, text) for name, text in _modules() if digest_of(text) not in without]
    if not found:
        raise UsageError(
            "no sources of the standard library are left for the bundled tasks; give items with --items"
        )
    Random(f"{seed} documents").shuffle(found)
    return found


def digest_of(text: str) -> str:
    """SHA-256 of a text, in hex: how two of the same are known."""
    return hashlib.sha256(text.encode()).hexdigest()


def prose_of(text: str) -> str:
    """The docstrings of a module as running text; empty where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    told = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    return " ".join(" ".join(told).split())


@cache
def _modules() -> tuple[tuple[str, str], ...]:
    home = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(home.rglob("*.py")):
        name = path.relative_to(home)
        if _LEFT_OUT.isdisjoint(name.parts):
            text = path.read_text(encoding="utf-8", errors="replace")
            if len(text) >= _LEAST_CHARACTERS:
                found.append((str(name), text))
    return tuple(found)
