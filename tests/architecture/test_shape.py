"""What every file of the package has, and which names none may have."""

from __future__ import annotations

import ast

from source import PACKAGE, ROOT, Module, modules

NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "core", "base_utils"}


def exports(module: Module) -> list[str] | None:
    """The names in `__all__`; None without one."""
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = node.value  # type: ignore[attr-defined]
            return [ast.literal_eval(item) for item in value.elts]
    return None


def test_every_module_says_what_it_is() -> None:
    assert [str(m.path.relative_to(ROOT)) for m in modules() if not ast.get_docstring(m.tree)] == []


def test_every_module_says_what_is_public() -> None:
    assert [str(m.path.relative_to(ROOT)) for m in modules() if exports(m) is None] == []


def test_what_is_public_is_there() -> None:
    missing = []
    for module in modules():
        bound = {alias.asname or alias.name for node in ast.walk(module.tree)
                 if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}  # fmt: skip
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                bound.add(node.name)
            bound |= {leaf.id for leaf in ast.walk(node)
                      if isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Store)}  # fmt: skip
        if "__getattr__" not in bound:
            missing += [f"{module.name}.{name}" for name in exports(module) or () if name not in bound]
    assert missing == []


def test_no_file_is_named_for_nothing() -> None:
    named = [path for path in PACKAGE.rglob("*") if path.stem in NAMELESS]
    assert named == []


def test_no_bare_except() -> None:
    bare = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert bare == []
