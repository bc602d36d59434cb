"""The metadata of one GGUF file; a field that is missing is named together with the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import ModelError

__all__ = ["Fields"]


class Fields:
    """Metadata by name. `of` adds the architecture, under which most names stand."""

    def __init__(self, source: Path, fields: Any) -> None:
        self.source = source
        self._fields = fields

    def get(self, name: str) -> Any:
        """The field's contents; None where there is none."""
        field = self._fields.get(name)
        return None if field is None else field.contents()

    def need(self, name: str) -> Any:
        """The field's contents. Raises ModelError where there is none."""
        value = self.get(name)
        if value is None:
            raise ModelError(f"{self.source}: the GGUF metadata has no {name}")
        return value

    def text(self, name: str) -> str:
        """A field that must be there, as text."""
        return str(self.need(name))

    def number(self, name: str) -> int:
        """A field that must be there, as a whole number."""
        return int(self.need(name))

    @property
    def architecture(self) -> str:
        """Such as llama."""
        return self.text("general.architecture")

    def of(self, name: str) -> str:
        """The full name of one of the architecture's own fields."""
        return f"{self.architecture}.{name}"
