"""A config.json as fields that are there or are missing, by every name that a family gives them.

Owns the one rule of reading: a number that is not in the file is not known. A class in some library has a
default for it, and another version of the class has another; a missing field is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError

__all__ = ["Fields"]


class Fields:
    """The fields of one config. `source` is what messages call it."""

    __slots__ = ("_values", "source")

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    def __contains__(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def raw(self, *names: str) -> Any:
        """The first of the names that is there and not null; None without any."""
        for name in names:
            if (value := self._values.get(name)) is not None:
                return value
        return None

    def states(self, name: str) -> bool:
        """Whether the file says anything about the field, null included."""
        return name in self._values

    def number(self, *names: str) -> int:
        """A positive whole number. Raises `ModelError` naming the field that is missing or wrong."""
        value = self.maybe_number(*names)
        if value is None:
            raise self.missing(*names)
        return value

    def maybe_number(self, *names: str) -> int | None:
        """A positive whole number, or None where no name is there. Raises `ModelError` on anything else."""
        values = self._values
        for name in names:
            value = values.get(name)
            if value is None:
                continue
            if type(value) is int and value > 0:
                return value
            if isinstance(value, float) and value.is_integer() and value > 0:
                return int(value)
            raise ModelError(f"{self.source}: {name} is {value!r}; it must be a whole number above 0")
        return None

    def flag(self, name: str) -> bool:
        """A switch; one that is not there is off. Raises `ModelError` where it is no switch."""
        value = self._values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ModelError(f"{self.source}: {name} is {value!r}; it must be true or false")
        return value

    def sequence(self, name: str) -> Sequence[Any] | None:
        """A list, or None where it is not there. Raises `ModelError` on anything else."""
        value = self._values.get(name)
        if value is None or isinstance(value, list | tuple):
            return value
        raise ModelError(f"{self.source}: {name} is {value!r}; it must be a list")

    def section(self, name: str) -> Fields | None:
        """A nested object, or None. Raises `ModelError` where it is no object."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.source}: {name} is {value!r}; it must be an object")
        return Fields(value, f"{self.source}, {name}")

    def text(self, *names: str) -> str | None:
        """A text, or None where no name is there."""
        value = self.raw(*names)
        return value if isinstance(value, str) else None

    def missing(self, *names: str, why: str = "") -> ModelError:
        """The error for a field that is not there."""
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        reason = f": {why}" if why else ""
        return ModelError(
            f"{self.source}: {names[0]}{others} is missing{reason}; add it to the config, "
            "since no default of a class is assumed"
        )
