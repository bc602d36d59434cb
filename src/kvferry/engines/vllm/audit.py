"""Trust by numerics: a block that the pool holds, against the same block as computed here.

Names can lie: two replicas may agree on every field of a namespace and hold other weights. Owns the
comparison of one block; which are compared, and what follows from it, is `auditing`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .pages import Pages
from .pages_cuda import Marked
from .staged import Staging

__all__ = ["AuditMemory", "tolerance_of"]

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
# Relative L2 distance of one block between engines that chunk a prompt differently: float32 about 1e-6 here;
# narrower types are given some roundings of their mantissa.
_TOLERANCES = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 4e-2}
_LEAST_EXACT = 0.25
"""For 8-bit types, and others of few digits."""


def tolerance_of(kv_dtype: str) -> float:
    """How far a block may be from the same block elsewhere, relative L2."""
    return _TOLERANCES.get(kv_dtype, _LEAST_EXACT)


class AuditMemory:
    """Where one block of the pool is read to: staging, where it is compared and forgotten."""

    def __init__(
        self,
        pages: Pages,
        group: int,
        block_id: int,
        staging: Staging,
        kv_dtype: str,
        *,
        after: Marked | None,
    ) -> None:
        self._pages, self._group, self._id = pages, group, block_id
        self._staging = staging
        self._kv_dtype = kv_dtype
        self._after = after
        self._slots: list[memoryview] = []
        self.error: float | None = None
        """Relative L2 distance; None while nothing has been compared."""

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Room for the pool's block, and behind it for ours."""
        size = self._pages.groups[self._group].block_bytes
        self._slots = self._staging.slots(stop - start + 1, size)
        return self._slots[: stop - start]

    def arrived(self, block: int) -> None:
        """The pool's block is whole: read ours, and compare."""
        theirs, ours = self._slots[0], self._slots[-1]
        self._pages.extract(self._group, [self._id], [ours], after=self._after)
        dtype = _DTYPES.get(self._kv_dtype)
        if dtype is None:
            self.error = 0.0 if bytes(ours) == bytes(theirs) else None
            return
        a = torch.frombuffer(ours, dtype=dtype).double()
        b = torch.frombuffer(theirs, dtype=dtype).double()
        scale = float(torch.linalg.vector_norm(b))
        distance = float(torch.linalg.vector_norm(a - b))
        self.error = distance / scale if scale > 0.0 else (0.0 if distance == 0.0 else float("inf"))
