"""A whole prefill on its way to a node that has not done it.

manifest   what is handed over: namespace, prompt, positions, layers, codec
plan       its chunks, layer by layer
codecs     raw, 16-bit, fp8, int8 and int4 on the wire
message    the header of every message on a byte stream, and its checksum
memory     where the KV lies on either side: host memory; device in `device`
layers     which layers are complete, so that nothing else is attended to
pricing    the rule: remote prefill + transfer < local prefill
sender     staging and sending, resumed where it was cut
receiver   checking, installing, failing
legs       what each part took, and which part dominated
booking    what became of the prompt's tokens
failed     the ways in which a hand-off fails
"""

from __future__ import annotations

__all__: list[str] = []
