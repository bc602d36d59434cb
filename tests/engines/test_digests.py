from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvferry.engines.digests import tokenizer_digest, weights_digest
from kvferry.errors import ModelError


def folder(path: Path, content: bytes = b"weights") -> Path:
    path.mkdir()
    (path / "model.safetensors").write_bytes(content)
    (path / "tokenizer.json").write_text("{}")
    return path


def test_equal_weights_have_equal_digests(tmp_path: Path) -> None:
    assert weights_digest(folder(tmp_path / "a")) == weights_digest(folder(tmp_path / "b"))


def test_other_weights_have_another_digest(tmp_path: Path) -> None:
    assert weights_digest(folder(tmp_path / "a")) != weights_digest(folder(tmp_path / "b", b"other"))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    here = folder(tmp_path / "a")
    before = weights_digest(here)
    (here / "model.safetensors").write_bytes(b"changed")
    os.utime(here / "model.safetensors", ns=(1, 1))
    assert weights_digest(here) != before


def test_a_kept_digest_is_used(tmp_path: Path) -> None:
    here = folder(tmp_path / "a")
    before = weights_digest(here)
    stamp = (here / "model.safetensors").stat()
    (here / "model.safetensors").write_bytes(b"WEIGHTS")
    os.utime(here / "model.safetensors", ns=(stamp.st_mtime_ns, stamp.st_mtime_ns))
    assert weights_digest(here) == before


def test_a_damaged_note_is_no_harm(tmp_path: Path) -> None:
    here = folder(tmp_path / "a")
    before = weights_digest(here)
    (here / ".kvferry-weights.json").write_text("{")
    assert weights_digest(here) == before


def test_no_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="safetensors"):
        weights_digest(tmp_path)


def test_older_vocabulary_files_count(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    assert len(tokenizer_digest(tmp_path)) == 64


def test_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        tokenizer_digest(tmp_path)
