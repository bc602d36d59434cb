"""Hand-off between two replicas of one model, in the roles prefill and decode, measured.

spans     KV that a forward pass fills, or waits for, layer by layer
nodes     the two roles over one model each
records   a hand-off as a line of decisions.jsonl
quality   what a codec of the wire costs: logits and text
demo      both roles as processes, over every transport
"""

from __future__ import annotations

__all__: list[str] = []
