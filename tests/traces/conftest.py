"""Small traces that the tests write themselves, and where the public ones lie."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


@pytest.fixture
def public() -> Path:
    """The folder of public traces; the repository ships none of them."""
    if not (PUBLIC / "conversation_trace.jsonl").is_file():
        pytest.skip("the public traces are not beside this clone (../shared/data/traces)")
    return PUBLIC


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Writes records (or ready lines) into a file, one a line."""

    def write(records: Sequence[Any], name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records)
        path.write_text(text, encoding="utf-8")
        return path

    return write
