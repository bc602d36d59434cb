"""The package's source as syntax trees: what each module imports, and where."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["PACKAGE", "ROOT", "Import", "Module", "modules"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "kvferry"


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name."""

    name: str
    line: int

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_outside(self) -> bool:
        return self.root != "kvferry" and self.root not in sys.stdlib_module_names


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    path: Path
    name: str
    """"kvferry.store.tier"; a package's own name for its __init__."""
    tree: ast.Module

    @property
    def room(self) -> str:
        """The part behind "kvferry."; for a module beside the rooms, its own name."""
        return [*self.name.split("."), ""][1]

    @property
    def imports(self) -> list[Import]:
        """All of them, those inside functions and under TYPE_CHECKING included."""
        return list(self._imports())

    def _imports(self) -> Iterator[Import]:
        parts = self.name.split(".")
        package = parts if self.path.name == "__init__.py" else parts[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                if not node.level:
                    yield Import(node.module or "", node.lineno)
                    continue
                base = package[: len(package) - node.level + 1]
                if node.module:
                    yield Import(".".join([*base, node.module]), node.lineno)
                else:
                    for alias in node.names:
                        yield Import(".".join([*base, alias.name]), node.lineno)


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(path, name, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))))
    return tuple(found)
