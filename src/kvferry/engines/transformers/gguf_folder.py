"""Turn a GGUF file into a Hugging Face folder with float32 safetensors.

The dequantised float32 values are the model: two replicas that convert the same file get the same bits.
Owns the order of the work and the files of weights; families and tokenizers have their own modules. Knows
nothing of where the file came from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import MissingExtra, ModelError
from .gguf_families import FAMILIES, Family, Numbers, configuration, special_tokens
from .gguf_fields import Fields
from .gguf_tokenizers import write_tokenizer

__all__ = ["write_folder"]

_FILE_BYTES = 2 << 30
"""Weights are written in files of about this size: that much is held in memory at a time."""


def write_folder(source: Path, folder: Path, *, file_bytes: int = _FILE_BYTES) -> None:
    """Write config, tokenizer and weights of the GGUF file `source` into the empty `folder`.

    Raises ModelError for a file of an architecture or with a tokenizer that is not known.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra("reading a packaged model", "transformers") from error
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, OSError) as error:
        raise ModelError(f"{source}: not a readable GGUF file: {error}") from error
    fields = Fields(source, reader.fields)
    if (family := FAMILIES.get(fields.architecture)) is None:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(
            f"{source}: GGUF architecture {fields.architecture!r}; only {known} can be converted"
        )
    _write_weights(fields, family, reader.tensors, gguf.dequantize, folder, file_bytes)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", configuration(fields, family, tied))
    _write_json(folder / "generation_config.json", special_tokens(fields))
    write_tokenizer(fields, folder, family.tokenizers)


def _write_weights(
    fields: Fields, family: Family, tensors: Any, dequantize: Any, folder: Path, file_bytes: int
) -> None:
    """One file, or several with an index of which tensor is where."""
    from safetensors.numpy import save_file

    written: list[tuple[Path, list[str], int]] = []
    held: dict[str, Numbers] = {}

    def flush() -> None:
        path = folder / f"part-{len(written) + 1}.safetensors"
        save_file(held, path, metadata={"format": "pt"})
        written.append((path, list(held), sum(values.nbytes for values in held.values())))
        held.clear()

    for tensor in tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        name, values = family.place(fields, tensor.name, values)
        if held and sum(one.nbytes for one in held.values()) + values.nbytes > file_bytes:
            flush()
        held[name] = values
    flush()
    if len(written) == 1:
        written[0][0].rename(folder / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, (path, names, _) in enumerate(written, 1):
        final = path.rename(folder / f"model-{number:05}-of-{len(written):05}.safetensors")
        places |= dict.fromkeys(names, final.name)
    index = {"metadata": {"total_size": sum(size for _, _, size in written)}, "weight_map": places}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
