"""The chunks of a hand-off: layer by layer, and each layer in runs of tokens that bound the memory.

Both sides make the same plan from the manifest, so a chunk on the wire is a number. Chunk
`layer x parts + part` holds K and V of one layer: [K or V, KV head, token, width], encoded. A part has
`chunk_tokens` tokens; what is left at the end is cut once more at a multiple of the codecs' group, so that
no group is larger than stated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...store.codec import Codec
from .codecs import GROUP_TOKENS, open_wire_codec
from .manifest import Manifest

__all__ = ["Chunk", "Plan"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, stop) of the hand-off's own count, in one layer."""

    index: int
    layer: int
    start: int
    stop: int
    payload_bytes: int
    block_bytes: int
    """Decoded, as the engine has them."""


class Plan:
    """The chunks of one manifest, in order."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.parts = _parts(manifest.tokens, manifest.chunk_tokens)
        self._codecs = {
            length: open_wire_codec(manifest.codec, manifest.layout(length))
            for length in {stop - start for start, stop in self.parts}
        }
        self.chunks = manifest.layers * len(self.parts)

    @property
    def payload_bytes(self) -> int:
        """All chunks together."""
        layer = sum(self._codecs[stop - start].payload_bytes for start, stop in self.parts)
        return layer * self.manifest.layers

    @property
    def largest_bytes(self) -> int:
        """Of one encoded chunk."""
        return max(codec.payload_bytes for codec in self._codecs.values())

    @property
    def largest_block_bytes(self) -> int:
        """Of one decoded chunk."""
        return max(codec.layout.block_bytes for codec in self._codecs.values())

    def chunk(self, index: int) -> Chunk:
        """Raises IndexError beyond the last one."""
        if not 0 <= index < self.chunks:
            raise IndexError(f"chunk {index} of {self.chunks}")
        layer, part = divmod(index, len(self.parts))
        start, stop = self.parts[part]
        codec = self._codecs[stop - start]
        return Chunk(index, layer, start, stop, codec.payload_bytes, codec.layout.block_bytes)

    def codec(self, chunk: Chunk) -> Codec:
        """What the chunk is encoded with."""
        return self._codecs[chunk.stop - chunk.start]

    def layers_before(self, index: int) -> int:
        """Layers that are whole when the chunks before `index` are there."""
        return index // len(self.parts)


def _parts(tokens: int, chunk_tokens: int) -> tuple[tuple[int, int], ...]:
    cuts = list(range(0, tokens, chunk_tokens))
    whole = tokens // GROUP_TOKENS * GROUP_TOKENS
    if cuts[-1] < whole < tokens:
        cuts.append(whole)
    return tuple(zip(cuts, [*cuts[1:], tokens], strict=True))
