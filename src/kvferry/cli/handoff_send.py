"""`kvferry handoff send`: the role prefill, for this model or, through a map, for another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..clock import MonotonicClock
from ..config import RequestFields, resolve_secret
from ..errors import UsageError
from ..handoff.wire.codecs import canonical_codec
from ..keys.pool import secret_of
from ..units import parse_rate, parse_seconds
from .handoff_options import ConfigFile, ExitWithParent, HandoffId, KvDtype, Overrides, RoleThreads
from .handoff_roles import begin, numbered, open_runner, say_json
from .handoff_tables import send_table
from .output import Json

if TYPE_CHECKING:
    from ..engines.transformers.runner import Runner
    from ..keys.namespace import Namespace
    from ..measure.handoff.mapped import KvCarrier

__all__ = ["send"]


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
    id_: HandoffId = "handoff",
    chunk_tokens: int = 512,
    map_: Annotated[Path | None, Parameter(name="--map")] = None,
    receiver: Path | None = None,
    accept_mapped: Annotated[bool | None, Parameter(negative="--no-accept-mapped")] = None,
    threads: RoleThreads = 1,
    dtype: KvDtype = "float32",
    exit_with_parent: ExitWithParent = False,
    config: ConfigFile = None,
    set_: Overrides = (),
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
    chunk_tokens
        Most tokens of one layer in one message; a multiple of 32.
    map_
        Carry the KV to another model through a map of kvferry handoff fit; needs --receiver. Such KV is
        lossy, and is taken only where the receiver permits it (its own --accept-mapped).
    receiver
        File with the first line that the receiver printed: whose KV is to be made.
    accept_mapped
        The request's own word on mapped KV, as its field accept_mapped has it; it goes with the offer. With
        --no-accept-mapped the receiver computes the prompt, whatever it permits.
    json
        Print one JSON object a hand-off, instead of a table.
    """
    loaded = begin(config, set_, threads, exit_with_parent)
    seconds, rate = parse_seconds(deadline, "--deadline"), None
    if limit is not None:
        rate = parse_rate(limit, "--limit")
    codecs = [canonical_codec(name, dtype) for name in codec or ["raw"]]
    if (map_ is None) != (receiver is None):
        raise UsageError("--map and --receiver go together: the map, and the first line of who is to use it")
    texts = [(path, _read(path)) for path in file]
    secret = secret_of(loaded.config.tenant, resolve_secret(loaded.config))
    runner = open_runner(loaded, model, dtype, threads)

    from ..handoff.transports.address import open_dialer
    from ..handoff.transports.contract import Outgoing
    from ..handoff.transports.limited import LimitedOutgoing
    from ..handoff.transports.probe import measure_link
    from ..measure.handoff.lines import send_line
    from ..measure.handoff.namespace import handoff_namespace
    from ..measure.handoff.prefilling import PrefillNode

    clock = MonotonicClock()
    space = handoff_namespace(loaded.config, runner)
    carrier, place = None, space
    if map_ is not None and receiver is not None:
        carrier, place = _carrier(map_, receiver, space)
    node = PrefillNode(runner, space, secret, clock, carrier=carrier)
    lines = []
    for number, (path, text) in enumerate(texts):
        ids = _encoded(runner, path, text, tokens)
        name = numbered(id_, number, len(texts))
        dialer = open_dialer(
            to, handoff_id=name, namespace=place.digest(), secret=secret, clock=clock, waits=wait or ask_first
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
                fields=RequestFields(accept_mapped=accept_mapped),
            )
        finally:
            dialer.close()
        line = send_line(handed, name, codecs[number % len(codecs)], link)
        lines.append(line)
        if json:
            say_json(line)
    if not json:
        send_table(lines)
    arrived = [line["installed"] or not line["taken"] or line["reason"] == "left_in_tier" for line in lines]
    return 0 if all(arrived) else 1


def _carrier(map_file: Path, receiver: Path, space: Namespace) -> tuple[KvCarrier, Namespace]:
    from ..handoff.mapping.file import load_map
    from ..measure.handoff.mapped import KvCarrier, read_receiver

    target = read_receiver(receiver)
    return KvCarrier(load_map(map_file), space, target), target


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
