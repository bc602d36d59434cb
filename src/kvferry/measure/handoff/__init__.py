"""Hand-off between two replicas, in the roles prefill and decode, measured: of one model, or through a map.

namespace   what KV both roles speak of
spans       KV that a forward pass fills, or waits for, layer by layer
chunks      computing a prompt in the engine's chunks
prefilling  the role that computes, and hands over
mapped      what stands between where the receiver is another model
decoding    the role that takes over, and answers
records     a hand-off as a line of decisions.jsonl
quality     what a codec of the wire costs: logits and text
demo        both roles as processes, over every transport
"""

from __future__ import annotations

__all__: list[str] = []
