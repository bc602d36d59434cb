"""KV of one model turned into KV of another of the same family, in closed form.

To read in this order: `shapes` (what is mapped); `rope`, `ropes` (taking positions out of keys and
putting them back); `statistics`, `ridge` (the fit); `layers`, `heads` (what is fitted on what);
`weights` (which errors matter); `mlp` (where a line is not enough); `rows`, `sums`, `fitting`, `passing`
(all of it over a stream of documents); `mapper`, `file`, `speed` (applying it, keeping it, timing it);
`texts`; `namespace` (what mapped KV may never be taken for).

Nothing here knows a model library: prefills come in as tensors. Sources: arXiv 2608.03893 (per-head ridge
over unrotated KV) and arXiv 2609.00891 (matched heads, attention-sensitivity weights, fused statistics).
"""

from __future__ import annotations

__all__: list[str] = []
