"""Where bytes live: the contract of a tier, the frame around every block, and the tiers themselves.

Knows keys as opaque 32-byte strings and values as opaque bytes. Refuses to know models, prompts and
decisions: those rooms are below (they name the keys) or above (they ask).
"""

from __future__ import annotations

__all__: list[str] = []
