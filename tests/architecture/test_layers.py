"""Who may import whom, and what the pure rooms may not touch."""

from __future__ import annotations

import ast
import tomllib

from source import ROOT, modules

PURE_ROOMS = {"model", "keys", "cost", "gate", "cache"}
IMPURE = {"time", "random", "os", "threading", "asyncio", "socket", "logging", "secrets", "subprocess"}


def layers() -> list[set[str]]:
    """Top first; import-linter's contract in pyproject.toml is the one place where they are written."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [one for one in pyproject["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    return [{name.strip(" ()") for name in line.split("|")} for line in contract["layers"]]


def test_every_room_has_a_layer() -> None:
    known = set.union(*layers()) | {"", "__main__"}
    assert {module.room for module in modules()} - known == set()


def test_a_room_imports_only_from_rooms_below() -> None:
    level = {room: number for number, line in enumerate(layers()) for room in line}
    wrong = [
        f"{module.path.relative_to(ROOT)}:{found.line} imports {found.name}"
        for module in modules()
        if module.room in level
        for found in module.imports
        if found.root == "kvferry"
        and (room := [*found.name.split("."), ""][1]) in level
        and room != module.room
        and level[room] <= level[module.room]
    ]
    assert wrong == []


def test_pure_rooms_touch_no_clock_chance_thread_or_socket() -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{found.line} imports {found.name}"
        for module in modules()
        if module.room in PURE_ROOMS
        for found in module.imports
        if found.root in IMPURE
    ]
    assert wrong == []


def test_only_config_reads_the_environment() -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{node.lineno} reads os.{node.attr}"
        for module in modules()
        if module.room != "config"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    assert wrong == []


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{node.lineno} prints"
        for module in modules()
        if module.room != "cli"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


def test_library_code_does_not_configure_logging() -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{node.lineno} calls {node.func.attr}"
        for module in modules()
        if module.room != "cli"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("basicConfig", "dictConfig", "fileConfig", "addHandler", "setLevel")
    ]
    assert wrong == []
