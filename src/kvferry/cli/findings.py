"""What an examination finds: one line each, and what to do about it."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Finding"]


class Finding(msgspec.Struct, frozen=True):
    """One line of an examination."""

    check: str
    status: Literal["ok", "note", "missing", "broken"]
    detail: str
    remedy: str = ""
    """What to do about it; empty when nothing is to be done."""
