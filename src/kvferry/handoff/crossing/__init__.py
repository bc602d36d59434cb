"""KV of one model turned into KV of another that cuts text differently, by a small network that is trained.

To read in this order: `align` (which token of the source a token of the target reads); `features` (the
source's KV, unturned, as rows); `blocks`, `network` (the map); `initial` (where it starts: a closed form of
low rank); `crossmap`, `file` (applying it, keeping it); `compaction` (fewer tokens, each where it stood).

Nothing here knows a model library or a loss: what the map is trained for is decided elsewhere. The idea is
that of SwaT (arXiv 2610.15095), whose losses and compaction are not public; the start from matched moments
is HeteroFold's (arXiv 2609.32259). No reproduction of either is claimed.
"""

from __future__ import annotations

__all__: list[str] = []
