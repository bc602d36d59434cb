"""Dense ids for blocks, in order of first appearance.

Owns the step from a source's names to numbers: a dictionary for hashes, a table for numbers that are nearly
dense already. It keeps one entry a different block.
"""

from __future__ import annotations

from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from .chunk import Name
from .row import Row

__all__ = ["BlockIds", "Scope"]

BlockArray: TypeAlias = "npt.NDArray[np.int64]"


class Scope(dict[Any, int]):
    """Name to dense id; a new name takes the next one."""

    __slots__ = ("_ids", "_number")

    def __init__(self, ids: BlockIds, number: int) -> None:
        super().__init__()
        self._ids = ids
        self._number = number

    def __missing__(self, name: Any) -> int:
        ids = self._ids
        found = self[name] = ids.next()
        if ids.new is not None:
            ids.new.append((self._number, name) if isinstance(name, int) else name)
        return found


class BlockIds:
    """Dense ids in order of first appearance, over all scopes; with `named`, the names they stand for."""

    def __init__(self, named: bool) -> None:
        self.next = count().__next__
        self.new: list[Name] | None = [] if named else None
        self._scopes: dict[int, Scope] = {}
        self._numbered: dict[int, BlockArray] = {}
        self._references: dict[int, int] = {}

    def scope(self, number: int) -> Scope:
        """The dictionary of one scope: ask it for a name."""
        found = self._scopes.get(number)
        if found is None:
            found = self._scopes[number] = Scope(self, number)
            # Numbers that were met as runs before are known under the same ids.
            table = self._numbered.get(number)
            if table is not None:
                known = np.flatnonzero(table >= 0)
                found.update(zip(known.tolist(), table[known].tolist(), strict=True))
        return found

    def fresh(self) -> int:
        """An id that nothing else will ever have."""
        if self.new is not None:
            self.new.append(None)
        return self.next()

    def taken(self) -> list[Name]:
        """The names of the ids given since the last call."""
        if not self.new:
            return []
        new, self.new = self.new, []
        return new

    def of_numbers(self, scope: int, numbers: BlockArray, rows: list[Row]) -> BlockArray:
        """Dense ids of numbers that are nearly dense already: a table, no dictionary."""
        if scope in self._scopes:
            known = self._scopes[scope]
            return np.array([known[number] for number in numbers.tolist()], dtype=np.int64)
        if not len(numbers):
            return numbers
        table = self._numbered.get(scope)
        if table is None:
            table = np.empty(0, dtype=np.int64)
        seen = self._references[scope] = self._references.get(scope, 0) + len(numbers)
        largest = int(numbers.max())
        if largest >= len(table):
            if largest > 8 * seen + (1 << 24):
                raise FormatError(
                    f"{rows[0].path}:{rows[0].line}: from here on a request names block {largest:,}, far "
                    "more than the file has; blocks are numbered from 0 in order of first appearance"
                )
            grown = np.full(max(largest + 1, 2 * len(table), 1 << 16), -1, dtype=np.int64)
            grown[: len(table)] = table
            table = self._numbered[scope] = grown
        missing = numbers[table[numbers] < 0]
        if len(missing):
            new = missing
            if len(missing) > 1 and not bool((np.diff(missing) == 1).all()):
                unique, first = np.unique(missing, return_index=True)
                new = unique[np.argsort(first)]
            start = self.next()
            table[new] = np.arange(start, start + len(new))
            self.next = count(start + len(new)).__next__
            if self.new is not None:
                self.new.extend((scope, number) for number in new.tolist())
        return table[numbers]
