"""Which rows of the arena belong to which request, and which are lent to the shared cache.

Every reference that a request takes on a row is given back here, once: when the request lets go of it, or,
while the shared cache may still touch the memory, at the Free for that request.
"""

from __future__ import annotations

from collections.abc import Sequence

from .arena import Arena, RowMemory
from .layout import usable_blocks
from .request import EngineRequest, Progress

__all__ = ["Holdings"]


class Holdings:
    """The rows of all requests over one arena. Used by the engine's thread alone."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._lent: dict[str, list[int]] = {}

    @property
    def available(self) -> int:
        """Rows that could be given to a load now."""
        return self._arena.available

    def lends(self, rid: str) -> bool:
        """Whether the shared cache may still touch memory of this request."""
        return rid in self._lent

    def local_tokens(self, progress: Progress) -> int:
        """Tokens in the whole blocks that the request holds."""
        return len(progress.rows) * self._arena.layout.block_tokens

    def loading_tokens(self, progress: Progress) -> int:
        """Tokens in the blocks that are being loaded for the request."""
        return len(progress.loading_rows) * self._arena.layout.block_tokens

    def match(self, progress: Progress) -> bool:
        """Take the blocks that may be reused, if there are more by now; False when nothing was gained."""
        return self._match(progress, self._useful(progress.request))

    def reserve(self, progress: Progress, end_block: int) -> RowMemory | None:
        """Memory for a load up to `end_block`; None when there is not enough."""
        local = len(progress.rows)
        if not local < end_block <= len(progress.request.hashes):
            return None
        rows = self._arena.reserve(end_block - local)
        if rows is None:
            return None
        progress.loading_rows = rows
        return RowMemory(self._arena, local, tuple(rows))

    def loaded(self, progress: Progress, end_block: int, safe: bool) -> None:
        """Verified blocks join the local cache; memory that is not safe yet is only held."""
        local = len(progress.rows)
        good = max(0, min(end_block - local, len(progress.loading_rows)))
        usable, rest = progress.loading_rows[:good], progress.loading_rows[good:]
        self._name(progress.request.hashes[local : local + good], usable)
        progress.rows += usable
        progress.loaded_blocks = good
        progress.loading_rows = []
        if safe:
            self._arena.release(rest)
        else:
            self._lend(progress.request.rid, rest)

    def gather(self, progress: Progress) -> None:
        """Copy the reusable blocks into the request's span."""
        if progress.span is None:
            raise ValueError(f"{progress.request.rid} has no memory to copy to")
        self._arena.gather(progress.rows[: len(self._useful(progress.request))], progress.span)

    def keep(self, progress: Progress) -> RowMemory | None:
        """Copy the prompt's new full blocks into the local cache, as many as there is room for.

        Gives all of them, from the first block; None when there is not one.
        """
        hashes = progress.request.hashes
        self._match(progress, hashes)
        have = len(progress.rows)
        rows = self._arena.reserve(min(len(hashes) - have, self._arena.available))
        if rows and progress.span is not None:
            progress.rows += rows
            self._arena.scatter(progress.span, have, rows)
            self._name(hashes[have : have + len(rows)], rows)
        return RowMemory(self._arena, 0, tuple(progress.rows)) if progress.rows else None

    def lend_kept(self, progress: Progress) -> None:
        """The blocks are being stored: they stay as they are until Free."""
        self._lend(progress.request.rid, progress.rows)
        progress.rows = []

    def let_go(self, progress: Progress) -> None:
        """The request is done with its rows; where a load is under way, only Free gives them back."""
        self._arena.release(progress.rows)
        self._lend(progress.request.rid, progress.loading_rows)
        progress.rows, progress.loading_rows = [], []

    def free(self, rid: str) -> None:
        """The shared cache does not touch memory of this request any more."""
        self._arena.release(self._lent.pop(rid, ()))

    def _useful(self, request: EngineRequest) -> Sequence[bytes]:
        return request.hashes[: usable_blocks(request.prompt_tokens, self._arena.layout.block_tokens)]

    def _match(self, progress: Progress, hashes: Sequence[bytes]) -> bool:
        if self._arena.count(hashes) <= len(progress.rows):
            return False
        more = self._arena.match(hashes)
        self._arena.release(progress.rows)
        progress.rows = more
        return True

    def _name(self, hashes: Sequence[bytes], rows: Sequence[int]) -> None:
        for block_hash, row in zip(hashes, rows, strict=True):
            self._arena.insert(block_hash, row)

    def _lend(self, rid: str, rows: list[int]) -> None:
        if rows:
            self._lent.setdefault(rid, []).extend(rows)
