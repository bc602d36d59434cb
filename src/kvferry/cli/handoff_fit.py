"""`kvferry handoff fit` and `kvferry handoff apply`: a map from one model's KV to another's, and its speed.

Owns the two commands' options and what they print. The figures of `fit` are of documents that nothing was
chosen on; they say how near the KV is, not what a model still says with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from ..errors import ModelError, UsageError
from .handoff_options import CheckpointSeconds, Device, Dtype, Threads, check_checkpoint_seconds
from .handoff_pair import check_new_file, open_pair, say
from .output import Json, write_columns, write_json

if TYPE_CHECKING:
    from ..engines.transformers.capture import Captured
    from ..handoff.mapping.mapper import Facts, Mapper
    from ..handoff.mapping.rows import Sequences
    from ..handoff.mapping.speed import Speed
    from ..handoff.mapping.texts import Document, Part

__all__ = ["apply", "fit"]

_CURVE = (8, 4, 2)
"""The curve's points: an eighth, a quarter and a half of the training tokens, and all."""


def fit(
    source: str,
    target: str,
    *,
    text: Path,
    out: Path,
    tokens: int = 20_000,
    length: int = 512,
    inputs: Literal["local", "full"] = "local",
    unweighted: bool = False,
    layers: int | None = None,
    most_layers: int = 4,
    stride: int = 1,
    mlp: bool = False,
    checkpoint_seconds: CheckpointSeconds = 120.0,
    fresh: bool = False,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Fit a map from SOURCE's KV to TARGET's, two models of one family and one tokenizer.

    One pass over the text: both models prefill every sequence, and only sums are kept. Documents are split
    into training, validation (which chooses source layers and lambdas) and test (which the figures are of).
    What was collected is kept beside OUT while the fit runs, and the same command goes on from there when it
    was killed.

    Parameters
    ----------
    source
        A packaged model, a folder saved by transformers or a hub id: the model whose KV there is.
    target
        The model that is to use it.
    text
        Folder of documents: .txt, .md, .rst, .py, or .jsonl with a field "text".
    out
        The map, such as map.safetensors.
    tokens
        Tokens to prefill, over all three parts.
    length
        Tokens of a sequence; positions 0 to length - 1 are calibrated.
    inputs
        local: a target head reads its matched head of each source layer. full: all heads.
    unweighted
        Do not weigh errors by what attention makes of them.
    layers
        Source layers that a target layer reads; chosen on validation documents where not given.
    most_layers
        The most that are tried.
    stride
        Every so many tokens become a row.
    mlp
        Add a small network where it helps on validation documents.
    fresh
        Begin anew, whatever an earlier fit has kept.
    """
    from ..engines.transformers.capture import check_computing
    from ..handoff.mapping.checkpoint import Checkpoint
    from ..handoff.mapping.file import save_map
    from ..handoff.mapping.mlp import MlpSettings
    from ..handoff.mapping.passing import fit_map
    from ..handoff.mapping.rows import Recipe
    from ..handoff.mapping.texts import read_documents, split_documents

    check_checkpoint_seconds(checkpoint_seconds)
    for option, given in (("--layers", layers), ("--most-layers", most_layers), ("--stride", stride)):
        if given is not None and given < 1:
            raise UsageError(f"{option} {given}: must be 1 or more")
    if length < 8 or tokens < 4 * length:
        raise UsageError(f"--tokens {tokens} --length {length}: at least 8 a sequence, and four sequences")
    check_computing(dtype=dtype, device=device, threads=threads)
    check_new_file("--out", out)
    parts = split_documents(read_documents(text))
    recipe = Recipe(
        inputs=inputs,
        weighted=not unweighted,
        most_layers=max(most_layers, layers or 1),
        source_layers=layers,
        stride=stride,
        mlp=MlpSettings() if mlp else None,
        warm_rows=max(256, min(2048, tokens // stride // 8)),
    )
    ours, theirs = open_pair(source, target, dtype=dtype, device=device, threads=threads)
    sequences = _sequences(parts, ours, theirs, tokens, length)
    training = sum(len(ids) for _, ids in sequences.train)
    keep = Checkpoint(
        out.with_name(f"{out.name}.fit"),
        {"tokens": str(tokens), "length": str(length), "dtype": dtype},
        seconds=checkpoint_seconds,
        device=device,
    )
    if fresh:
        keep.remove()
    mapper = fit_map(
        ours,
        theirs,
        sequences,
        recipe,
        checkpoints=[training // share // stride for share in _CURVE],
        keep=keep,
        say=say,
    )
    size = save_map(mapper, out)
    keep.remove()
    facts = mapper.facts
    if facts is None:
        raise ModelError("the map has no figures")
    if json:
        write_json({"map": str(out), "bytes": size, "digest": mapper.digest(), **msgspec.to_builtins(facts)})
    else:
        _print_fit(mapper, facts, out, size)
    return 0


def apply(
    map: Path,
    source: str,
    target: str,
    *,
    prompt: Path,
    tokens: int = 2048,
    offset: int = 0,
    repeats: int = 3,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Map the KV of a prompt, and time that beside the target's own prefill of it.

    Parameters
    ----------
    map
        A file of kvferry handoff fit.
    source
        The model that the map was fitted from.
    target
        The model that it was fitted for.
    prompt
        A text file.
    tokens
        Tokens of it to take.
    offset
        Position of the prompt's first token in the target.
    repeats
        Times that each is measured; the median is shown.
    """
    from ..engines.transformers.capture import check_computing
    from ..handoff.mapping.file import load_map
    from ..handoff.mapping.namespace import check_models
    from ..handoff.mapping.speed import measure_speed

    if repeats < 1 or tokens < 2 or offset < 0:
        raise UsageError("--repeats is at least 1, --tokens at least 2, --offset at least 0")
    check_computing(dtype=dtype, device=device, threads=threads)
    text = _read(prompt)
    began = time.perf_counter()
    mapper = load_map(map, device=device)
    load_seconds = time.perf_counter() - began
    ours, theirs = open_pair(source, target, dtype=dtype, device=device, threads=threads)
    check_models(mapper.outline.source, ours.kv, "source")
    check_models(mapper.outline.target, theirs.kv, "target")
    ids = ours.encode(text)[:tokens]
    if theirs.encode(text)[: len(ids)] != ids:
        raise ModelError(_TOKENS_DIFFER)
    speed = measure_speed(mapper, ours, theirs, ids, offset=offset, repeats=repeats)
    if json:
        write_json(
            {
                **msgspec.to_builtins(speed),
                "load_seconds": load_seconds,
                "times_faster_than_prefill": speed.times_faster_than_prefill,
                "mapped_bytes_per_second": speed.mapped_bytes_per_second,
            }
        )
    else:
        _print_apply(speed, load_seconds)
    return 0


_TOKENS_DIFFER = (
    "source and target cut the text into different tokens: such a pair is no family, "
    "and its KV cannot be mapped token by token"
)


def _sequences(
    parts: Mapping[Part, Sequence[Document]], ours: Captured, theirs: Captured, tokens: int, length: int
) -> Sequences:
    from ..handoff.mapping.texts import cut_sequences

    def encode(document: str, text: str) -> list[int]:
        ids = ours.encode(text)
        if theirs.encode(text) != ids:
            raise ModelError(f"{document}: {_TOKENS_DIFFER}")
        return ids

    return cut_sequences(parts, encode, tokens, length)


def _print_fit(mapper: Mapper, facts: Facts, out: Path, size: int) -> None:
    kind = f"{facts.inputs} inputs, {'weighted' if facts.weighted else 'unweighted'}"
    print(f"{mapper.outline.source.name} to {mapper.outline.target.name}: {kind}")
    print(
        f"{facts.rows:,} rows of {facts.documents} documents, positions 0 to {facts.positions - 1:,}; "
        f"{facts.source_layers} source layers, {facts.parameters_per_head} inputs a head: "
        f"{facts.rows_per_parameter:.1f} rows per parameter"
    )
    print()
    rows = [("layer", "reads layers", "lambda K", "lambda V", "R2 of K", "R2 of V", "cosine of attention")]
    rows += [
        (
            str(index),
            " ".join(map(str, wiring.sources)),
            f"{facts.lambdas[index][0]:g}",
            f"{facts.lambdas[index][1]:g}",
            f"{facts.keys_r2[index]:.3f}",
            f"{facts.values_r2[index]:.3f}",
            "" if (cosine := facts.attention_cosine[index]) is None else f"{cosine:.4f}",
        )
        for index, wiring in enumerate(mapper.outline.wiring)
    ]
    write_columns(rows, right=(0, 2, 3, 4, 5, 6), indent="  ")
    networks = [
        f"{kind} of {index}"
        for index, layer in enumerate(mapper.layers)
        for kind, one in (("K", layer.keys_mlp), ("V", layer.values_mlp))
        if one is not None
    ]
    if networks:
        print(f"\na network helps {', '.join(networks)}")
    print()
    write_columns(
        [("rows", "R2 of K", "R2 of V")]
        + [(f"{one.rows:,}", f"{one.keys_r2:.3f}", f"{one.values_r2:.3f}") for one in facts.curve],
        right=(0, 1, 2),
        indent="  ",
    )
    worst = facts.worst_layer
    if worst is not None:
        print(f"\nworst layer by attention's output: {worst}, cosine {facts.attention_cosine[worst]:.4f}")
    print(f"{out}: {size:,} bytes, {mapper.parameters:,} numbers, digest {mapper.digest()[:16]}")
    print(", ".join(f"{name} {value:.1f} s" for name, value in facts.seconds.items()))
    print("these figures are of KV, on held-out documents; what a model says with it is not known from them")


def _print_apply(speed: Speed, load_seconds: float) -> None:
    rows = [
        (
            "map, applied",
            f"{speed.apply_seconds * 1e3:.1f} ms",
            f"{speed.mapped_bytes_per_second / 1e9:.2f} GB/s",
        ),
        ("target's own prefill", f"{speed.target_prefill_seconds * 1e3:.1f} ms", ""),
        ("source's prefill", f"{speed.source_prefill_seconds * 1e3:.1f} ms", ""),
        ("map, loaded", f"{load_seconds * 1e3:.1f} ms", f"{speed.map_bytes:,} bytes"),
    ]
    print(f"{speed.tokens:,} tokens at position {speed.offset:,}, {speed.mapped_bytes:,} bytes of KV")
    write_columns(rows, right=(1, 2), indent="  ")
    print(f"applying is {speed.times_faster_than_prefill:.1f} times as fast as the target's own prefill")
    print(f"cosine with native KV: keys {speed.key_cosine:.4f}, values {speed.value_cosine:.4f}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--prompt {path}: {error.strerror}; give a text file") from error
