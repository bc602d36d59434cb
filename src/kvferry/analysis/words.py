"""Counts in a sentence, as a person would write them: "1 request", "3,000 requests".

Owns the one rule. Knows nothing of what is counted.
"""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, what: str) -> str:
    """A count with what it counts, which gets an s where it is not one."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
