"""Digests of a model's files: what its weights and its tokenizer really are.

A digest of hundreds of megabytes is kept beside the files, keyed by their sizes and modification times,
so that a replica that starts again does not read the weights twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from ..errors import ModelError

__all__ = ["file_digest", "tokenizer_digest", "weights_digest"]

_KEPT = ".kvferry-weights.json"
_CHUNK = 4 << 20
_log = logging.getLogger(__name__)


def file_digest(path: Path) -> str:
    """SHA-256 of one file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def weights_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of the folder's `*.safetensors`, in hex.

    Raises ModelError when there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: no *.safetensors file; save the model with safe serialization")
    stamp = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    kept = folder / _KEPT
    known = _read(kept)
    if known is not None and known.get("files") == stamp and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + bytes.fromhex(file_digest(file)))
    answer = digest.hexdigest()
    try:
        kept.write_text(json.dumps({"files": stamp, "sha256": answer}))
    except OSError as error:
        _log.info("the weights' digest is not kept: %s", error)
    return answer


def tokenizer_digest(folder: Path) -> str:
    """SHA-256 of `tokenizer.json`, or of the older vocabulary files where a model has none of that name."""
    one = folder / "tokenizer.json"
    if one.exists():
        return file_digest(one)
    older = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model")
    files = [folder / name for name in older if (folder / name).exists()]
    if not files:
        raise ModelError(f"{folder}: no tokenizer.json; a model is served together with its tokenizer")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + bytes.fromhex(file_digest(file)))
    return digest.hexdigest()


def _read(path: Path) -> dict[str, object] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # absent or half-written: the digest is taken again
    return found if isinstance(found, dict) else None
