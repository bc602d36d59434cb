"""`kvferry handoff train`: a map between two families of models.

Owns the command's options and what it prints. A map that does not beat its controls is written, so that
it can be looked at, and reported as failed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import UsageError
from ..units import parse_seconds
from .handoff_figures import figure_cells
from .handoff_options import CheckpointSeconds, Device, Dtype, Threads, check_checkpoint_seconds
from .handoff_pair import check_new_file, open_pair, say
from .output import Json, write_columns, write_json

if TYPE_CHECKING:
    from ..handoff.crossing.crossmap import CrossMap
    from ..handoff.mapping.texts import Document

__all__ = ["train"]


def train(
    source: str,
    target: str,
    *,
    out: Path,
    text: Path | None = None,
    tokens: int = 60_000,
    calibration_tokens: int = 15_000,
    context_tokens: int = 128,
    suffix_tokens: int = 48,
    hold_back: Sequence[int] = (1, 4, 16),
    facts_share: float = 0.5,
    time_limit: str = "12min",
    checkpoint: Path | None = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    source_layers: int = 4,
    width: int = 512,
    blocks: int = 2,
    code_width: int = 192,
    learning_rate: float = 2e-4,
    pieces_a_step: int = 2,
    held_out: int = 24,
    seed: int = 0,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Train a map from SOURCE's KV to TARGET's, two models of different families and tokenizers.

    Both stay as they are. A closed form of low rank is solved first; then the target reads suffixes on top of
    mapped KV, and what it makes of them trains the map. Where validation documents say that training did not
    help, the closed form is the map. Test documents judge it, against no context and against a random mapper:
    unless it beats both, it has failed.

    Parameters
    ----------
    source
        A packaged model, a folder saved by transformers or a hub id: the model whose KV there is.
    target
        The model that is to use it.
    out
        The map, such as cross.safetensors.
    text
        Folder of documents, as for kvferry handoff fit; not given: the modules of Python's standard library.
    tokens
        Target tokens of the suffix loss, contexts and suffixes, every pass counted.
    calibration_tokens
        Target tokens of the closed form.
    context_tokens
        Tokens of a context.
    suffix_tokens
        Tokens of a suffix.
    hold_back
        Numbers of the context's last tokens that the receiver reads itself; one is drawn for each piece.
    facts_share
        Share of pieces that are made-up facts, stated again in the suffix; people of the agents' task are
        not among them.
    time_limit
        End after this, whatever is left; the checkpoint goes on from there.
    checkpoint
        File of the training's state; not given: beside the map, with .checkpoint behind its name. It is
        removed once the map of a finished training is written.
    source_layers
        Source layers that are read, spread over the depth.
    width
        Latents: the rank of the closed form.
    blocks
        Blocks of attention between the two ends of it.
    code_width
        Numbers by which a target token itself is known to the map; 0: the source's KV is all that it sees.
    learning_rate
        Of the blocks; the closed form's line moves at a fifth of it.
    pieces_a_step
        Pieces whose gradients are added up.
    held_out
        Documents to judge on, six at least.
    seed
        Of everything that is drawn.
    """
    from ..engines.transformers.capture import check_computing
    from ..handoff.crossing.crossmap import CrossMap
    from ..handoff.crossing.file import save_cross_map
    from ..handoff.mapping.texts import split_documents
    from ..measure.crossing.device import device_name
    from ..measure.crossing.judging import beats_controls, gains_of, suffix_nlls, training_gain
    from ..measure.crossing.pieces import Pieces
    from ..measure.crossing.recipe import Recipe
    from ..measure.crossing.train import facts_of, train
    from ..measure.retention.intervals import FEWEST

    limit = parse_seconds(time_limit)
    recipe = Recipe(
        source_layers=source_layers,
        width=width,
        blocks=blocks,
        code_width=code_width,
        calibration_tokens=calibration_tokens,
        tokens=tokens,
        context_tokens=context_tokens,
        suffix_tokens=suffix_tokens,
        hold_back=tuple(hold_back),
        facts_share=facts_share,
        pieces_a_step=pieces_a_step,
        learning_rate=learning_rate,
        seed=seed,
    )
    if held_out < FEWEST:
        raise UsageError(f"--held-out {held_out}: an interval needs {FEWEST} documents at least")
    check_checkpoint_seconds(checkpoint_seconds)
    check_computing(dtype=dtype, device=device, threads=threads)
    place = out.with_name(out.name + ".checkpoint") if checkpoint is None else checkpoint
    check_new_file("--out", out)
    check_new_file("--checkpoint", place)
    if place.absolute() == out.absolute():
        raise UsageError(f"--checkpoint {place}: that is the map's own place; write another")
    parts = split_documents(_documents(text))
    ours, theirs = open_pair(source, target, dtype=dtype, device=device, threads=threads)
    pieces = Pieces(
        parts["train"],
        parts["validation"],
        ours,
        theirs,
        context_tokens=context_tokens,
        suffix_tokens=suffix_tokens,
        facts_share=facts_share,
        seed=seed,
    )
    # Cut before anything is trained: text that is too short or too little must not be found out at the end.
    checked, judged = pieces.validation(held_out), pieces.held_out(parts["test"], held_out)
    if len(judged) < FEWEST:
        raise UsageError(
            f"{len(judged)} test documents are long enough for {context_tokens} tokens of context and "
            f"{suffix_tokens} of suffix, an interval needs {FEWEST}: give more text, 15 of 100 documents "
            "are for the test"
        )
    trained = train(
        ours,
        theirs,
        pieces,
        recipe,
        seconds=float(limit),
        checkpoint=place,
        checkpoint_seconds=checkpoint_seconds,
        say=say,
    )
    kept, began = CrossMap(trained.network, dtype=theirs.dtype), time.perf_counter()
    begun = CrossMap(trained.started, dtype=theirs.dtype)
    say(f"asking {len(checked)} validation pieces whether training has helped")
    gain = training_gain(ours, theirs, begun, kept, checked)
    made, other = (kept, {"closed form": begun}) if gain > 0 else (begun, {"trained, not kept": kept})
    say(f"judging on {len(judged)} documents")
    nlls = suffix_nlls(ours, theirs, made, judged, others=other, seed=seed, say=say)
    gains = gains_of(nlls, judged, seed=seed)
    made.facts = facts_of(
        trained,
        recipe,
        device=device_name(theirs.model.device),
        judging_seconds=time.perf_counter() - began,
        training_gain=gain,
        seen_documents=pieces.digests,
        documents=len(judged),
        nlls=nlls,
        gains=gains,
        beats_controls=beats_controls(gains),
    )
    size = save_cross_map(made, out)
    if trained.finished:  # the map has all of it; left behind, it would be gone on from by another training
        place.unlink(missing_ok=True)
    if json:
        write_json(
            {
                "map": str(out),
                "bytes": size,
                "digest": made.digest(),
                "finished": trained.finished,
                **msgspec.to_builtins(made.facts),
                "seen_documents": len(made.seen_documents),
            }
        )
    else:
        _print_trained(made, out, size, trained.finished)
    return 0


def _print_trained(made: CrossMap, out: Path, size: int, finished: bool) -> None:
    facts = made.facts
    if facts is None:
        return
    shape = made.network.shape
    print(f"{shape.source.name} to {shape.target.name}: {made.network.parameters_count:,} trained numbers")
    line = f"closed form on {facts.calibration_tokens:,} tokens (R2 on validation {facts.calibration_r2:.3f})"
    if facts.steps:
        line += f", suffix loss over {facts.trained_tokens:,} in {facts.steps:,} steps"
    print(line)
    if not finished:
        print("the time was over before the tokens were: run the same command again to go on")
    if facts.training_gain > 0:
        print(f"training brought {facts.training_gain:.3f} nats a token on validation documents")
    else:
        print(
            f"training brought {facts.training_gain:.3f} nats a token on validation documents: "
            "the map is the closed form that it began with"
        )
    print()
    rows = [("arm", "NLL of a suffix token", "the map is better by", "95 % interval")]
    for name, nll in facts.nll.items():
        gain = facts.gains.get(name)
        rows.append((name, f"{nll:.3f}", *figure_cells(gain, "{:+.3f}")))
    write_columns(rows, right=(1, 2), indent="  ")
    print()
    print(
        f"{facts.held_out_texts} documents; of "
        + ", ".join(f"{name} {value:.0f} s" for name, value in facts.seconds.items())
        + f" on {facts.device}"
    )
    print(f"{out}: {size:,} bytes, digest {made.digest()[:16]}")
    if facts.beats_controls:
        print("the map beats no context and the random mapper; kvferry handoff eval says whether to use it")
    else:
        print("FAILED: the map does not beat no context and the random mapper with intervals above zero")


def _documents(folder: Path | None) -> list[Document]:
    """The folder's documents, or the standard library's modules."""
    import sysconfig

    from ..handoff.mapping.texts import Document, read_documents

    if folder is not None:
        return read_documents(folder)
    modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    found = [Document(path.name, path.read_text(encoding="utf-8", errors="replace")) for path in modules]
    if len(found) < 4:
        raise UsageError("Python's standard library has no sources here: give --text DIR")
    return found
