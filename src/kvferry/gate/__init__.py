"""Whether to carry a prefix or compute it again, how many loads at once, and what is worth publishing.

Pure: facts in, decisions out. No clock, no socket, no randomness of its own, and no view of the store.
"""

from __future__ import annotations

__all__: list[str] = []
