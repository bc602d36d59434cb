"""`kvferry handoff train` and `kvferry handoff agents`: a map between two families, and what it is worth.

Owns the two commands' options and what they print. A map that does not beat its controls is written, so that
it can be looked at, and reported as failed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import UsageError
from ..runs.retention_summary import Figure, Interval
from ..units import parse_seconds
from .output import Json, write_columns, write_json

if TYPE_CHECKING:
    from ..engines.transformers.capture import Captured
    from ..handoff.crossing.crossmap import CrossMap
    from ..handoff.mapping.texts import Document
    from ..measure.crossing.agents import AgentsFound

__all__ = ["agents", "train"]


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
    source_layers: int = 4,
    width: int = 512,
    blocks: int = 2,
    code_width: int = 192,
    learning_rate: float = 2e-4,
    pieces_a_step: int = 2,
    held_out: int = 24,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
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
        File of the training's state; not given: beside the map, with .checkpoint behind its name.
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
        Documents to judge on.
    seed
        Of everything that is drawn.
    dtype
        What the models compute in.
    device
        cpu or cuda.
    threads
        Threads of a CPU; torch's own choice where not given.
    """
    from ..handoff.crossing.crossmap import CrossMap
    from ..handoff.crossing.file import save_cross_map
    from ..handoff.mapping.texts import split_documents
    from ..measure.crossing.judging import beats_controls, gains_of, suffix_nlls, training_gain
    from ..measure.crossing.pieces import Pieces
    from ..measure.crossing.train import Recipe, device_name, facts_of, train

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
    ours, theirs = _open(source, target, dtype, device, threads)
    parts = split_documents(_documents(text))
    pieces = Pieces(
        parts["train"],
        ours,
        theirs,
        context_tokens=context_tokens,
        suffix_tokens=suffix_tokens,
        facts_share=facts_share,
        seed=seed,
    )
    place = out.with_name(out.name + ".checkpoint") if checkpoint is None else checkpoint
    trained = train(ours, theirs, pieces, recipe, seconds=float(limit), checkpoint=place, say=_say)
    kept, began = CrossMap(trained.network, dtype=theirs.dtype), time.perf_counter()
    begun = CrossMap(trained.started, dtype=theirs.dtype)
    checked = pieces.validation(parts["validation"], held_out)
    _say(f"asking {len(checked)} validation pieces whether training has helped")
    gain = training_gain(ours, theirs, begun, kept, checked)
    made, other = (kept, {"closed form": begun}) if gain > 0 else (begun, {"trained, not kept": kept})
    judged = pieces.held_out(parts["test"], held_out)
    _say(f"judging on {len(judged)} documents")
    nlls = suffix_nlls(ours, theirs, made, judged, others=other, seed=seed, say=_say)
    gains = gains_of(nlls, judged, seed=seed)
    made.facts = facts_of(
        trained,
        recipe,
        device=device_name(theirs),
        judging_seconds=time.perf_counter() - began,
        training_gain=gain,
        documents=len(judged),
        nlls=nlls,
        gains=gains,
        beats_controls=beats_controls(gains),
    )
    size = save_cross_map(made, out)
    if json:
        write_json(
            {
                "map": str(out),
                "bytes": size,
                "digest": made.digest(),
                "finished": trained.finished,
                **msgspec.to_builtins(made.facts),
            }
        )
    else:
        _print_trained(made, out, size, trained.finished)
    return 0


def agents(
    source: str,
    target: str,
    *,
    map: Path,
    limit: int = 40,
    keep: float = 0.5,
    hold_back: int = 8,
    summary_tokens: int = 0,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int | None = None,
    json: Json = False,
) -> int:
    """Let SOURCE's agent read a document and hand over to TARGET's, which must answer about it.

    Every way of handing over answers the same questions: the document's text again, a summary, mapped KV,
    fewer tokens of KV, both, nothing, and a random mapper. What mapping costs and what leaving out tokens
    costs are given apart and together, with the wall clock of each part.

    Parameters
    ----------
    source
        The model of the agent that has read the document.
    target
        The model of the agent that must answer.
    map
        A file of kvferry handoff train.
    limit
        Documents; each has two questions.
    keep
        Share of tokens that is left in a compacted cache.
    hold_back
        Last tokens of the document that the receiver reads itself, in every way that hands over KV.
    summary_tokens
        Tokens of a summary that the first agent writes for the second; 0: none is written.
    seed
        Of documents and of the random mapper.
    dtype
        What the models compute in.
    device
        cpu or cuda.
    threads
        Threads of a CPU; torch's own choice where not given.
    """
    from ..handoff.crossing.file import open_cross_map
    from ..measure.crossing.agents import Task, run_agents

    task = Task(limit=limit, keep=keep, hold_back=hold_back, summary_tokens=summary_tokens, seed=seed)
    ours, theirs = _open(source, target, dtype, device, threads)
    made = open_cross_map(map, device=device, dtype=theirs.dtype)
    made.check(ours.kv, theirs.kv)
    found = run_agents(ours, theirs, made, task, say=_say)
    if json:
        write_json({"map": str(map), "digest": made.digest(), **msgspec.to_builtins(found)})
    else:
        _print_agents(made, found)
    return 0


def _print_trained(made: CrossMap, out: Path, size: int, finished: bool) -> None:
    facts = made.facts
    if facts is None:
        return
    shape = made.network.shape
    print(f"{shape.source.name} to {shape.target.name}: {made.network.parameters_count:,} trained numbers")
    print(
        f"closed form on {facts.calibration_tokens:,} tokens (held-out R2 {facts.calibration_r2:.3f}), "
        f"suffix loss over {facts.trained_tokens:,} in {facts.steps:,} steps"
    )
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
        rows.append((name, f"{nll:.3f}", *_figure(gain, "{:+.3f}")))
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


def _print_agents(made: CrossMap, found: AgentsFound) -> None:
    print(
        f"{found.documents} documents, {found.questions} questions of {found.choices} choices; "
        f"{found.mean_tokens:.0f} tokens a document, the receiver re-reads {found.hold_back}"
    )
    print()
    rows = [("way", "accuracy", "95 % interval", "tokens kept", "hand-over", "answer", "NLL of the answer")]
    rows += [
        (
            arm.name,
            *_figure(arm.accuracy, "{:.3f}"),
            f"{arm.kept_tokens:.0f}",
            f"{arm.handover_seconds * 1e3:.0f} ms",
            f"{arm.answer_seconds * 1e3:.0f} ms",
            f"{arm.answer_nll:.2f}",
        )
        for arm in found.arms
    ]
    write_columns(rows, right=(1, 3, 4, 5, 6), indent="  ")
    print()
    gains = [("difference in accuracy; of the answer's NLL", "", "95 % interval")]
    gains += [(name, *_figure(figure, "{:+.3f}")) for name, figure in found.differences.items()]
    write_columns(gains, right=(1,), indent="  ")
    print()
    print(
        f"the first agent's reading, {found.source_seconds * 1e3:.0f} ms a document, is the same in every way"
    )
    facts = made.facts
    if facts is not None:
        seconds = sum(facts.seconds.values())
        print(
            f"the map took {facts.trained_tokens + facts.calibration_tokens:,} tokens and "
            f"{seconds / 3600:.2f} hours of {facts.device}"
        )
    if not found.beats_controls:
        print("FAILED: mapped KV does not beat no context and the random mapper with intervals above zero")


def _figure(figure: Figure | None, form: str) -> tuple[str, str]:
    if figure is None:
        return "", ""
    if not isinstance(figure, Interval):
        return "", figure.reason
    return form.format(figure.value), f"{form.format(figure.low)} to {form.format(figure.high)}"


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


def _open(
    source: str, target: str, dtype: str, device: str, threads: int | None
) -> tuple[Captured, Captured]:
    from ..config import cache_dir
    from ..engines.transformers.capture import open_captured
    from ..engines.transformers.resolve import model_name, resolve_model

    found = []
    for name in (source, target):
        folder = resolve_model(name, cache_dir(), say=_say)
        model = open_captured(folder, name=model_name(name), dtype=dtype, device=device, threads=threads)
        _say(f"{model.kv.name}: stripped keys are the model's own to {model.check_strip():.1g}")
        found.append(model)
    return found[0], found[1]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
