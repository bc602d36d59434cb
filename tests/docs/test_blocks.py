"""Python in the pages runs, and the tier of one page passes the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT, Block, pages

PYTHON = [block for page in pages() for block in page.blocks if block.language == "python"]
NOT_RUN = {"from openai import OpenAI": "needs a package that kvferry does not, and a running replica"}
"""Blocks that are only compiled, by their first line, and why."""


def first_line(block: Block) -> str:
    return block.lines[0]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_it_compiles(block: Block) -> None:
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize(
    "block",
    [block for block in PYTHON if not block.mark and first_line(block) not in NOT_RUN],
    ids=lambda block: block.place,
)
def test_it_runs(block: Block) -> None:
    exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})


def test_no_reason_without_a_block() -> None:
    assert set(NOT_RUN) <= {first_line(block) for block in PYTHON}


def test_the_tier_of_the_page_passes_the_suite(tmp_path: Path) -> None:
    files = [block for block in PYTHON if block.page == ROOT / "docs" / "tier.md"]
    for block in files:
        (tmp_path / block.mark.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_my_tier.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
