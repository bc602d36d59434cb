"""What the pages tell a reader to type works: cheap blocks are run, the others at least parse."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.cli.main import app
from kvferry.config import load
from kvferry.store.files import FilesTier

from .pages import ROOT, Block, pages

NOT_RUN = {
    "kvferry demo": "minutes: tests/e2e runs it",
    "kvferry doctor --vllm": "reads a file of the reader's: tests/cli runs it",
    "kvferry handoff": "needs two processes and a model: tests/measure/handoff runs it",
    "kvferry replica": "serves until it is stopped: tests/e2e and tests/examples run it",
    "kvferry size --measure": "needs a model from the network: tests/measure runs its parts",
    "kvferry size google": "needs a model from the hub",
    "kvferry trace analyze requests.jsonl --tokenizer": "needs a tokenizer",
    "kvferry trace record": "needs a replica or an engine that serves",
    "kvferry why runs/mine": "reads what a replica that was started by hand has left",
}
"""Commands in blocks that no test runs, by how they begin, and why. They are parsed all the same."""

SHELL = [block for page in pages() for block in page.blocks if block.language == "sh"]
RUN = [block for block in SHELL if block.mark == "run"]


def kvferry_lines(blocks: list[Block]) -> list[tuple[str, str]]:
    """(place, command) of every `kvferry ...` line."""
    return [
        (block.place, line)
        for block in blocks
        for line in block.lines
        if re.match(r"(\w+=\S+ )*kvferry ", line)
    ]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks like a clone to a reader, but may be written to."""
    # The pool that the replicas of docs/running.md have left.
    FilesTier(tmp_path / "pool").close()
    for name in ("docs", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run(block: Block, folder: Path) -> str:
    """What the block prints. Fails with its error where a line fails."""
    for page in pages():
        for file in page.blocks:
            if page.path == block.page and file.mark.startswith("file: "):
                (folder / file.mark.removeprefix("file: ")).write_text(file.text, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", block.text],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, f"{block.place}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.place)
def test_a_marked_block_runs(block: Block, clone: Path) -> None:
    printed = run(block, clone)
    (page,) = [page for page in pages() if page.path == block.page]
    behind = [other for other in page.blocks if other.line > block.line][:1]
    if behind and behind[0].mark == "output":
        assert printed == behind[0].text
    for other in page.blocks:
        if other.mark.startswith("output: ") and other.mark.removeprefix("output: ") in block.lines:
            assert other.text in printed


@pytest.mark.parametrize(("place", "line"), kvferry_lines(SHELL))
def test_a_command_parses(place: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[words.index("kvferry") + 1 :]
    # What the shell takes for itself.
    words = words[: next((at for at, word in enumerate(words) if re.match(r"\d?>|\|", word)), len(words))]
    app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(("place", "line"), kvferry_lines(SHELL))
def test_a_setting_in_a_command_exists(place: str, line: str) -> None:
    load(env={}, overrides=re.findall(r"--set '?([^\s']+)", line))


def test_what_is_not_run_has_a_reason() -> None:
    idle = kvferry_lines([block for block in SHELL if block.mark != "run"])
    assert [f"{place}: {line}" for place, line in idle if not line.startswith(tuple(NOT_RUN))] == []


def test_no_reason_without_a_command() -> None:
    idle = kvferry_lines([block for block in SHELL if block.mark != "run"])
    assert [begun for begun in NOT_RUN if not any(line.startswith(begun) for _, line in idle)] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    named = {name for page in pages() for name in re.findall(r"\bmake ([a-z]+)\b(?=[`\s])", page.text)}
    assert {name for name in named if f"`make {name}" in "".join(p.text for p in pages())} <= targets


def test_settings_in_files_exist(tmp_path: Path) -> None:
    yaml = [block for page in pages() for block in page.blocks if block.language == "yaml"]
    assert yaml
    for number, block in enumerate(yaml):
        (tmp_path / f"{number}.yaml").write_text(block.text, encoding="utf-8")
        load(file=tmp_path / f"{number}.yaml", env={})
