"""`kvferry handoff`: a finished prefill goes to another node, and to another model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from ..clock import MonotonicClock
from ..config import Loaded, cache_dir, load, resolve_secret
from ..errors import MissingExtra, UsageError
from ..gate.facts import GateTerms
from ..handoff.wire.codecs import canonical_codec
from ..keys.pool import secret_of
from ..units import format_bytes, format_rate, format_seconds, parse_rate, parse_seconds
from .output import Json, write_columns, write_json

if TYPE_CHECKING:
    from ..engines.transformers.runner import Runner
    from ..handoff.transports.address import Listener

__all__ = ["app"]

app = App(name="handoff", help="A finished prefill goes to another node, and to another model.")

_ELSEWHERE = (
    ("fit", "handoff_fit:fit", "Learn a map from one model's KV to another's."),
    ("apply", "handoff_fit:apply", "Carry a prefill to another model through a map, and time it."),
)
"""Commands with a module of their own, which is imported only when one runs."""
for _name, _place, _help in _ELSEWHERE:
    app.command(f"kvferry.cli.{_place}", name=_name, help=_help)

_Set = Annotated[tuple[str, ...], Parameter(name="--set", negative=())]
_Policy = Literal["rule", "always", "never"]


@app.command
def send(
    *,
    to: str,
    file: list[Path],
    model: str = "smollm2-135m-instruct",
    codec: list[str] | None = None,
    tokens: int | None = None,
    ask_first: bool = False,
    deadline: str = "60s",
    limit: str | None = None,
    probe: bool = False,
    wait: bool = False,
    id_: Annotated[str, Parameter(name="--id")] = "handoff",
    chunk_tokens: int = 512,
    threads: int = 1,
    dtype: str = "float32",
    exit_with_parent: bool = False,
    config: Path | None = None,
    set_: _Set = (),
    json: Json = False,
) -> int:
    """Compute prompts here and hand their KV over: the role prefill. Exit status 1 where one did not arrive.

    The receiver's gate decides, by remote prefill + transfer < local prefill; a prefill that is done already
    counts nothing. A prompt that the receiver declines is no failure: it computes it itself.

    Parameters
    ----------
    to
        Where the receiver is: tcp://HOST:PORT, shm://NAME, or a tier such as files:///DIR.
    file
        A file with a prompt (/dev/stdin for standard input); may be given again, each is one hand-off.
    model
        A packaged model, a folder saved by transformers, or a hub id; the receiver's too.
    codec
        raw, fp16, bf16, fp8, int8 or int4; given again, the hand-offs take turns.
    tokens
        Take only so many tokens from the front of each prompt.
    ask_first
        Offer before the prefill is done, and compute only what is wanted; layers cross as they are ready.
    deadline
        Longest time for one hand-off, from its offer on.
    limit
        Hold the link to a rate, such as 8MiB/s.
    probe
        Measure the link first: round trip and bandwidth.
    wait
        Through a tier: wait until a receiver has it, instead of leaving it there.
    id_
        Names the hand-off; with several prompts, -1, -2 and so on are added. Matters through a tier.
    chunk_tokens
        Most tokens of one layer in one message; a multiple of 32.
    threads
        Threads of one forward pass.
    dtype
        Numbers of weights and KV: float32, bfloat16 or float16.
    exit_with_parent
        End when standard input is closed.
    config
        YAML file of settings: tenant and its secret count here.
    set_
        One setting, as NAME=VALUE. Can be repeated.
    json
        Print one JSON object a hand-off, instead of a table.
    """
    loaded = _begin(config, set_, threads, exit_with_parent)
    seconds, rate = parse_seconds(deadline, "--deadline"), None
    if limit is not None:
        rate = parse_rate(limit, "--limit")
    codecs = [canonical_codec(name, dtype) for name in codec or ["raw"]]
    texts = [(path, _read(path)) for path in file]
    secret = secret_of(loaded.config.tenant, resolve_secret(loaded.config))
    runner = _runner(loaded, model, dtype, threads)

    from ..handoff.transports.address import open_dialer
    from ..handoff.transports.contract import Outgoing
    from ..handoff.transports.limited import LimitedOutgoing
    from ..handoff.transports.probe import measure_link
    from ..measure.handoff.lines import send_line
    from ..measure.handoff.nodes import PrefillNode, handoff_namespace

    clock = MonotonicClock()
    space = handoff_namespace(loaded.config, runner)
    node = PrefillNode(runner, space, secret, clock)
    lines = []
    for number, (path, text) in enumerate(texts):
        ids = _encoded(runner, path, text, tokens)
        name = _id(id_, number, len(texts))
        dialer = open_dialer(
            to, handoff_id=name, namespace=space.digest(), secret=secret, clock=clock, waits=wait or ask_first
        )

        def dial(until: float, dialer: Any = dialer) -> Outgoing:
            outgoing: Outgoing = dialer(until)
            return outgoing if rate is None else LimitedOutgoing(outgoing, rate, clock)

        link = None
        try:
            if probe:
                outgoing = dial(clock.now() + seconds)
                try:
                    link = measure_link(outgoing, clock.now() + seconds)
                finally:
                    outgoing.close()
            handed = node.hand_over(
                ids,
                dial,
                handoff_id=name,
                codec=codecs[number % len(codecs)],
                sunk=not ask_first,
                seconds=seconds,
                chunk_tokens=chunk_tokens,
            )
        finally:
            dialer.close()
        line = send_line(handed, name, codecs[number % len(codecs)], link)
        lines.append(line)
        if json:
            _say_json(line)
    if not json:
        _send_table(lines)
    arrived = [line["installed"] or not line["taken"] or line["reason"] == "left_in_tier" for line in lines]
    return 0 if all(arrived) else 1


@app.command
def receive(
    *,
    listen: str = "tcp://127.0.0.1:0",
    model: str = "smollm2-135m-instruct",
    codec: list[str] | None = None,
    count: int = 1,
    answer_tokens: int = 16,
    wait: str = "10min",
    deadline: str = "60s",
    grace: str = "5s",
    policy: _Policy = "rule",
    id_: Annotated[str, Parameter(name="--id")] = "handoff",
    record: Path | None = None,
    threads: int = 1,
    dtype: str = "float32",
    exit_with_parent: bool = False,
    config: Path | None = None,
    set_: _Set = (),
    json: Json = False,
) -> int:
    """Take prefills over and answer behind them: the role decode. Exit status 1 where one failed.

    When senders may come, one JSON line with the address is written to standard output. A hand-off that is
    declined or fails costs no answer: the prompt is computed here, and the ledger says why.

    Parameters
    ----------
    listen
        tcp://HOST:PORT (port 0: a free one), shm:// or shm://NAME, or a tier such as files:///DIR. TCP has
        no authentication and no encryption: keep it private.
    model
        A packaged model, a folder saved by transformers, or a hub id; the sender's too.
    codec
        What this node agrees to: raw unless given, and given again for several. Lossy KV is used for the one
        answer, and never kept.
    count
        End after so many hand-offs.
    answer_tokens
        Tokens to say behind each prompt, the likeliest each.
    wait
        Longest wait for an offer.
    deadline
        Longest time from an offer to its last layer; then the prompt is computed here.
    grace
        How long a sender that was cut off may take to come back.
    policy
        rule (the gate decides), always, or never.
    id_
        As the sender's; matters through a tier.
    record
        Folder for records, which kvferry why reads.
    threads
        Threads of one forward pass.
    dtype
        Numbers of weights and KV: float32, bfloat16 or float16.
    exit_with_parent
        End when standard input is closed.
    config
        YAML file of settings: tenant and its secret count here.
    set_
        One setting, as NAME=VALUE. Can be repeated.
    json
        Print one JSON object a hand-off, instead of a table.
    """
    loaded = _begin(config, set_, threads, exit_with_parent)
    for name, value in (("count", count), ("answer-tokens", answer_tokens)):
        if value < 1:
            raise UsageError(f"--{name} {value}: write 1 or more")
    spans = [parse_seconds(text, f"--{name}") for name, text in
             (("wait", wait), ("deadline", deadline), ("grace", grace))]  # fmt: skip
    codecs = tuple(canonical_codec(name, dtype) for name in codec or ["raw"])
    secret = secret_of(loaded.config.tenant, resolve_secret(loaded.config))
    runner = _runner(loaded, model, dtype, threads)

    from ..handoff.transports import address as addresses
    from ..measure.handoff.lines import receive_line
    from ..measure.handoff.nodes import DecodeNode, handoff_namespace
    from ..measure.handoff.records import handoff_record
    from ..runs.directory import RunDirectory

    clock = MonotonicClock()
    space = handoff_namespace(loaded.config, runner)
    terms = GateTerms(policy=policy)
    node = DecodeNode(runner, space, secret, clock, codecs=codecs, terms=terms)
    several = not listen.startswith(("tcp:", "shm:"))
    lines, listener = [], None
    run = None
    if record is not None:
        run = RunDirectory.create(
            record,
            command=["kvferry", *sys.argv[1:]],
            config=loaded.config,
            origins=loaded.origins,
            equal={"model": model, "dtype": dtype, "threads": threads},
        )
    try:
        for number in range(count):
            if listener is None or several:
                _close(listener)
                listener, where = addresses.listen(
                    listen,
                    handoff_id=_id(id_, number, count),
                    namespace=space.digest(),
                    secret=secret,
                    clock=clock,
                )
                if number == 0:
                    _say_json({"address": where, "pid": os.getpid(), "model": runner.name})
            arrival = clock.wall()
            answered = node.serve(
                listener,
                answer_tokens=answer_tokens,
                wait_seconds=spans[0],
                seconds=spans[1],
                grace_seconds=spans[2],
            )
            line = receive_line(answered, runner.tokenizer.decode(list(answered.token_ids)))
            lines.append(line)
            if json:
                _say_json(line)
            if run is not None:
                run.append_decision(
                    handoff_record(
                        answered,
                        request_id=line["id"],
                        replica=loaded.config.replica or "decode",
                        arrival_wall_seconds=arrival,
                        data_class=loaded.config.data_class,
                        terms=terms,
                        transport=listen.partition(":")[0],
                    )
                )
    finally:
        _close(listener)
        if run is not None:
            run.close()
    if not json:
        _receive_table(lines)
    return 0 if all(line["taken"] or line["cause"] == "declined" for line in lines) else 1


@app.command
def demo(
    *,
    model: str = "smollm2-135m-instruct",
    prompt_tokens: int = 1024,
    run_dir: Path | None = None,
    seed: int = 1,
    quick: bool = False,
    json: Json = False,
) -> int:
    """A prefill node and a decode node, two processes: every transport and codec, and a link too slow for it.

    About two minutes on two cores. Exit status 1 when a check did not hold.

    Parameters
    ----------
    model
        A packaged model, a folder saved by transformers, or a hub id. Full attention in every layer.
    prompt_tokens
        Length of the prompts.
    run_dir
        Folder for the run; runs/handoff-TIME unless given.
    seed
        Draws the documents.
    quick
        Short prompts, and fewer of them.
    json
        Print summary.json to standard output at the end, and everything else to standard error.
    """
    from ..measure.handoff.demo import DemoPlan, run_demo
    from ..runs.directory import RunDirectory

    out = sys.stderr if json else sys.stdout
    loaded = load()
    folder = run_dir or Path("runs") / f"handoff-{datetime.now():%Y%m%d-%H%M%S}"
    plan = DemoPlan(prompt_tokens=min(prompt_tokens, 256) if quick else prompt_tokens, quick=quick)
    with RunDirectory.create(
        folder,
        command=["kvferry", *sys.argv[1:]],
        config=loaded.config,
        origins=loaded.origins,
        seed=seed,
        equal={"model": model, "dtype": "float32", "threads": 1, "prompt_tokens": plan.prompt_tokens},
    ) as run:
        summary = _interruptible(
            run_demo(
                plan=plan,
                model=model,
                run=run,
                seed=seed,
                cache_dir=cache_dir(),
                say=lambda text: print(text, file=out, flush=True),
            )
        )
        run.write_summary(msgspec.to_builtins(summary))
    print(f"\n{'=' * 100}", file=out)
    for text in summary.told():
        print(text, file=out)
    print(
        f"\nThe run is in {folder}: try  kvferry why {folder / 'decode-tcp'} {summary.interesting}", file=out
    )
    if json:
        write_json(summary)
    return 0 if all(summary.checks.values()) else 1


def _begin(config: Path | None, overrides: tuple[str, ...], threads: int, exit_with_parent: bool) -> Loaded:
    """What both roles check before a model is read for seconds."""
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            raise MissingExtra("kvferry handoff", "transformers")
    if threads < 1:
        raise UsageError(f"--threads {threads}: write 1 or more")
    if exit_with_parent:
        Thread(target=_end_with_parent, name="kvferry-parent", daemon=True).start()
    return load(file=config, overrides=overrides)


def _runner(loaded: Loaded, model: str, dtype: str, threads: int) -> Runner:
    from ..engines.transformers.resolve import model_name, resolve_model
    from ..engines.transformers.runner import Runner

    folder = resolve_model(model, cache_dir(), say=lambda text: print(text, file=sys.stderr, flush=True))
    return Runner(
        folder,
        name=model_name(model),
        block_tokens=loaded.config.block_tokens,
        dtype=dtype,
        threads=threads,
        revision=loaded.config.revision,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--file {path}: {error.strerror}; write a file with a prompt") from error


def _encoded(runner: Runner, path: Path, text: str, tokens: int | None) -> list[int]:
    ids = [int(token) for token in runner.tokenizer.encode(text, verbose=False)][:tokens]
    if not 2 <= len(ids) < runner.max_tokens:
        raise UsageError(
            f"--file {path}: {len(ids)} tokens; write a prompt of 2 to {runner.max_tokens - 1}, or --tokens"
        )
    return ids


def _id(base: str, number: int, count: int) -> str:
    return base if count == 1 else f"{base}-{number + 1}"


def _close(listener: Listener | None) -> None:
    if listener is not None:
        listener.close()


def _say_json(line: dict[str, Any]) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


def _end_with_parent() -> None:
    # Not through sys.stdin: its lock, held by this thread, would break the interpreter's way out.
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _send_table(lines: list[dict[str, Any]]) -> None:
    rows = [("hand-off", "tokens", "codec", "bytes", "prefill", "ready there", "longest leg", "answer")]
    for line in lines:
        said = line["reason"].replace("_", " ") + (f": {line['detail']}" if line["detail"] else "")
        rows.append(
            (
                line["id"],
                str(line["prompt_tokens"]),
                line["codec"],
                format_bytes(line["bytes"]),
                format_seconds(line["prefill_seconds"]),
                _seconds(line["ready_seconds"]),
                line["dominant_leg"].replace("_", " "),
                said,
            )
        )
        if line["bytes_per_second"] is not None:
            print(
                f"link: {format_rate(line['bytes_per_second'])}, "
                f"round trip {format_seconds(line['round_trip_seconds'])}"
            )
    write_columns(rows, right=(1, 3, 4, 5))


def _receive_table(lines: list[dict[str, Any]]) -> None:
    rows = [("hand-off", "codec", "ready", "local prefill", "first token", "ledger", "decision", "answer")]
    for line in lines:
        predicted = line["predicted"] or {}
        local = line["local_prefill_seconds"] or predicted.get("local_prefill_seconds")
        mark = "" if line["local_prefill_seconds"] else "~"
        rows.append(
            (
                line["id"],
                line["codec"],
                _seconds(line["ready_seconds"]),
                mark + _seconds(local),
                _seconds(line["first_token_seconds"]),
                ", ".join(f"{name} {tokens}" for name, tokens in line["ledger"].items()),
                (line["detail"] or line["reason"]).replace("_", " "),
                " ".join(line["text"].split())[:40],
            )
        )
    write_columns(rows, right=(2, 3, 4))


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def _interruptible(work: Any) -> Any:
    """Run to the end; a request to terminate ends the demo's processes first, as an interrupt does."""

    async def run() -> Any:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
