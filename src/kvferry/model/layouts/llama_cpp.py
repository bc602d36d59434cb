"""llama.cpp: cells for a fixed context, a second pool for windows, recurrent cells a sequence.

Owns its counts. The context is padded to 256 cells; the pool of sliding layers holds window x sequences +
one micro-batch, padded, and never more than the context. Without flash attention V lies transposed and
every layer is as wide as the widest, and MLA keeps the latent a second time. States are float32 and are
kept for each sequence, once more for each drafted token.

Source: llama.cpp, `src/llama-kv-cache*.cpp` and `src/llama-memory-recurrent.cpp`.
"""

from __future__ import annotations

import msgspec

from ...errors import UsageError
from ...units import MIB
from ..dtypes import KvType
from ..layers import Model
from .contract import Capacity, Pool
from .kept import Kept, Rules
from .placed import Placed
from .setup import Setup

__all__ = ["LlamaCppLayout"]

_PAD = 256
_UBATCH = 512


class LlamaCppLayout:
    """llama.cpp's layout of a model."""

    def __init__(self, model: Model, setup: Setup) -> None:
        self._setup = setup
        latent = "latent" if setup.flash_attention else "copied"
        rules = Rules(
            auto="float16",
            latent=latent if setup.latent else "expanded",  # type: ignore[arg-type]
            state_dtype="float32",
            packed_index=False,
            packed_latent=False,
        )
        placed = Placed(model, setup, rules)
        keeper = placed.keeper
        self._key_type, self._value_type = keeper.key_type, keeper.value_type
        if not setup.flash_attention and keeper.value_type.block_numbers > 1:
            raise UsageError(
                f"--v-dtype {keeper.value_type.name}: llama.cpp quantises V only with flash attention"
            )
        self._kept: list[Kept] = self._padded(placed.kept)
        self.kept: list[Kept] = self._kept
        if setup.full_window:
            self.kept = [msgspec.structs.replace(one, window=None) for one in self._kept]
        placed.kept = self._kept
        self.stages = placed.stages
        self.block_tokens = 1
        self.notes: list[str] = []
        self._full = placed.fullest(lambda one: 0 if one.window else one.token_bytes)
        self._sliding = placed.fullest(lambda one: one.token_bytes if one.window else 0)
        self._state = placed.fullest(lambda one: one.state_bytes) * (1 + setup.drafted)
        self._window = max((one.window or 0 for one in self._kept), default=0)
        self.bytes_per_block = self._full + self._sliding
        self.bytes_per_block_total = sum(one.token_bytes for one in self.kept)
        if any(one.index_bytes for one in self.kept):
            self.notes.append("the indexer's keys are counted in the dtype of K, which was not checked")
        self.pools = self._pools()

    def _padded(self, kept: list[Kept]) -> list[Kept]:
        if self._setup.flash_attention:
            return kept
        widest = max((one.value_bytes for one in kept), default=0)
        return [
            one
            if not one.value_bytes
            else Kept(
                key_bytes=one.key_bytes,
                value_bytes=widest,
                window=one.window,
                chunked=one.chunked,
                latent=one.latent,
                state_bytes=one.state_bytes,
                conv_bytes=one.conv_bytes,
            )
            for one in kept
        ]

    def _pools(self) -> list[Pool]:
        found = []
        full, sliding = self.buffers()
        if full:
            found.append(Pool(name="full", layers=len(full), block_tokens=1))
        if sliding:
            found.append(Pool(name="sliding", layers=len(sliding), block_tokens=1, window=self._window))
        if states := sum(one.state_bytes > 0 for one in self.kept):
            found.append(Pool(name="state", layers=states, block_tokens=1, page_bytes=self._state // states))
        return found

    def buffers(self) -> tuple[list[Kept], list[Kept]]:
        """The layers of the full and of the sliding buffer: two, even where windows are kept in full."""
        attending = [one for one in self._kept if one.token_bytes]
        return [one for one in attending if not one.window], [one for one in attending if one.window]

    @property
    def _sequences(self) -> int:
        return self._setup.sequences or 1

    def cells(self, context: int) -> tuple[int, int]:
        """Cells of the full and of the sliding pool, all streams together."""
        streams = self._setup.streams
        full = _padded_to(-(-context // streams))
        together = self._sequences if streams == 1 else 1
        ubatch = self._setup.batch_tokens or _UBATCH
        sliding = min(full, _padded_to(self._window * together + ubatch)) if self._window else 0
        if self._setup.full_window and self._window:
            sliding = full
        return full * streams, sliding * streams

    def reserved_bytes(self, context: int) -> int:
        full, sliding = self.cells(context)
        return full * self._full + sliding * self._sliding + self._state * self._sequences

    def capacity(self, memory_bytes: int, context: int | None) -> Capacity:
        step = _PAD * self._setup.streams
        low, high = 0, memory_bytes // (self._full * step) if self._full else 0
        while low < high:
            middle = (low + high + 1) // 2
            if self.reserved_bytes(middle * step) <= memory_bytes:
                low = middle
            else:
                high = middle - 1
        cells = low * step
        return Capacity(
            blocks=cells if self._full else None,
            tokens=cells if self._full else None,
            max_concurrency=None if context is None or not self._full else cells / context,
            longest_context=cells // self._setup.streams if self._full else None,
            blocks_per_request=None if context is None else _padded_to(context),
        )

    def lines(self, memory_bytes: int | None, context: int | None) -> list[str]:
        if context is None:
            return []
        full, sliding = self.cells(context)
        sizes = zip((full, sliding), self.buffers(), strict=True)
        found = [self._line(cells, layers) for cells, layers in sizes if layers]
        if states := [one for one in self.kept if one.state_bytes]:
            copies = self._sequences * (1 + self._setup.drafted)
            conv = sum(one.conv_bytes for one in states) * copies / MIB
            size = sum(one.state_bytes for one in states) * copies / MIB
            found.append(
                f"llama_memory_recurrent: size = {size:7.2f} MiB ({copies:6d} cells, "
                f"{len(self.kept):3d} layers, {self._sequences:2d} seqs), "
                f"R (f32): {conv:7.2f} MiB, S (f32): {size - conv:7.2f} MiB"
            )
        return found

    def _line(self, cells: int, layers: list[Kept]) -> str:
        keys = sum(one.key_bytes for one in layers) * cells / MIB
        values = sum(one.value_bytes for one in layers) * cells / MIB
        streams = self._setup.streams
        return (
            f"llama_kv_cache: size = {keys + values:7.2f} MiB ({cells // streams:6d} cells, "
            f"{len(layers):3d} layers, {self._sequences:2d}/{streams} seqs), "
            f"K ({_name(self._key_type)}): {keys:7.2f} MiB, V ({_name(self._value_type)}): {values:7.2f} MiB"
        )


def _padded_to(tokens: int) -> int:
    return -(-tokens // _PAD) * _PAD


def _name(kind: KvType) -> str:
    return {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}.get(kind.name, kind.name)
