"""`kvferry handoff receive`: the role decode."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..clock import MonotonicClock
from ..config import resolve_secret
from ..errors import UsageError
from ..gate.facts import GateTerms
from ..handoff.wire.codecs import canonical_codec
from ..keys.pool import secret_of
from ..units import parse_seconds
from .handoff_options import ConfigFile, ExitWithParent, HandoffId, KvDtype, Overrides, RoleThreads
from .handoff_roles import begin, numbered, open_runner, say_json
from .handoff_tables import receive_table
from .output import Json

if TYPE_CHECKING:
    from ..handoff.transports.address import Listener

__all__ = ["receive"]

_Policy = Literal["rule", "always", "never"]


def receive(
    *,
    listen: str = "tcp://127.0.0.1:0",
    model: str = "smollm2-135m-instruct",
    codec: list[str] | None = None,
    count: int = 1,
    answer_tokens: int = 16,
    accept_mapped: bool = False,
    wait: str = "10min",
    deadline: str = "60s",
    grace: str = "5s",
    policy: _Policy = "rule",
    id_: HandoffId = "handoff",
    record: Path | None = None,
    threads: RoleThreads = 1,
    dtype: KvDtype = "float32",
    exit_with_parent: ExitWithParent = False,
    config: ConfigFile = None,
    set_: Overrides = (),
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
    accept_mapped
        Permit KV that was mapped from another model. It is an estimate: the answer is not that of local
        prefill. Without it, and where a request refuses such KV, the prompt is computed here.
    wait
        Longest wait for an offer.
    deadline
        Longest time from an offer to its last layer; then the prompt is computed here.
    grace
        How long a sender that was cut off may take to come back.
    policy
        rule (the gate decides), always, or never.
    record
        Folder for records, which kvferry why reads.
    json
        Print one JSON object a hand-off, instead of a table.
    """
    loaded = begin(config, set_, threads, exit_with_parent)
    for name, value in (("count", count), ("answer-tokens", answer_tokens)):
        if value < 1:
            raise UsageError(f"--{name} {value}: write 1 or more")
    spans = [parse_seconds(text, f"--{name}") for name, text in
             (("wait", wait), ("deadline", deadline), ("grace", grace))]  # fmt: skip
    codecs = tuple(canonical_codec(name, dtype) for name in codec or ["raw"])
    secret = secret_of(loaded.config.tenant, resolve_secret(loaded.config))
    runner = open_runner(loaded, model, dtype, threads)

    from ..handoff.transports import address as addresses
    from ..measure.handoff.decoding import DecodeNode
    from ..measure.handoff.lines import receive_line
    from ..measure.handoff.namespace import handoff_namespace
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
                    handoff_id=numbered(id_, number, count),
                    namespace=space.digest(),
                    secret=secret,
                    clock=clock,
                )
                if number == 0:
                    say_json(
                        {
                            "address": where,
                            "pid": os.getpid(),
                            "model": runner.name,
                            "namespace": space.fields(),
                        }
                    )
            arrival = clock.wall()
            answered = node.serve(
                listener,
                answer_tokens=answer_tokens,
                wait_seconds=spans[0],
                seconds=spans[1],
                grace_seconds=spans[2],
                permit_mapped=accept_mapped,
            )
            line = receive_line(answered, runner.tokenizer.decode(list(answered.token_ids)))
            lines.append(line)
            if json:
                say_json(line)
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
        receive_table(lines)
    return 0 if all(line["taken"] or line["cause"] == "declined" for line in lines) else 1


def _close(listener: Listener | None) -> None:
    if listener is not None:
        listener.close()
