"""`kvferry plan`: local cache, routing or pool, from a trace, a model and a measured profile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ..analysis.analyse import ROOT, Question, analyse
from ..cost.profile import decode_profile
from ..errors import UsageError
from ..planner.verdict import Plan, plan
from ..traces import open_trace
from ..units import counted, format_rate, format_seconds, parse_bytes
from .output import Json, write_columns, write_json
from .trace_files import ChatTemplate, FormatName, Tokenizer
from .trace_sizes import tokens_of, weight_of

__all__ = ["app"]

app = App(name="plan")


@app.default
def run(
    *,
    trace: str,
    model: str,
    profile: str | None = None,
    replicas: int = 1,
    capacity: str | None = None,
    capacity_tokens: str | None = None,
    pool: str | None = None,
    pool_tokens: str | None = None,
    kv_dtype: str = "auto",
    tier: str | None = None,
    decoding: float = 8.0,
    by: str = ROOT,
    block_tokens: Annotated[
        int | None, Parameter(help="Another size of block, where the file allows it.")
    ] = None,
    format_: FormatName = None,
    tokenizer: Tokenizer = None,
    chat_template: ChatTemplate = None,
    json: Json = False,
) -> int:
    """What to do with this traffic: local cache, routing, or a shared pool, and where that turns.

    From the trace, the model's KV weight and a profile that a replica or the demo measured; nothing is
    simulated in time. What writing and evicting take from others is not in a profile, so a pool is never
    recommended outright: the sentence names the load test that it needs.

    Parameters
    ----------
    trace
        A trace with blocks, of any known format.
    model
        A config.json, its folder, a GGUF file or the name of a preset.
    profile
        What a replica measured: the file of its setting profile, or profile-A.json of a demo's run. Required.
    replicas
        How many serve this trace.
    capacity
        Of one replica's cache, such as 40GiB; without it replicas forget nothing, which favours them.
    capacity_tokens
        The same in tokens, such as 3M.
    pool
        Of the pool; all replicas' together where not given.
    pool_tokens
        The same in tokens.
    kv_dtype
        auto, bf16, fp8 and others.
    tier
        Which of the profile's links loads take; the pool's where not given.
    decoding
        Requests that decode beside a load, and are slowed by it.
    by
        What classes are: root, or a field of the trace.
    """
    if not 0 <= decoding < math.inf:
        raise UsageError(f"--decoding: {decoding} requests do not decode; write 0 or more")
    if profile is None:
        raise UsageError(
            "--profile FILE: a plan needs measured prices, from a replica with --set profile=FILE, or "
            "RUN/profile-A.json of a kvferry demo"
        )
    weight, name = weight_of(model, kv_dtype, None)
    path = Path(profile)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--profile: {path} cannot be read: {error.strerror or error}") from error
    measured = decode_profile(data, str(path))
    room = tokens_of(
        None if capacity is None else parse_bytes(capacity, "--capacity"),
        capacity_tokens,
        weight,
        "--capacity",
    )
    question = Question(
        bytes_per_token=weight,
        model=name,
        replicas=replicas,
        capacity_tokens=room,
        pool_tokens=tokens_of(
            None if pool is None else parse_bytes(pool, "--pool"), pool_tokens, weight, "--pool"
        ),
        class_field=by,
    )
    found = plan(
        analyse(
            open_trace(
                trace,
                block_tokens=block_tokens,
                format=format_,
                tokenizer=tokenizer,
                chat_template=chat_template,
            ),
            question,
        ),
        measured,
        tier=tier,
        capacity_tokens=room,
        decoding=decoding,
    )
    if json:
        write_json(found)
    else:
        _show(found)
    return 0


def _show(found: Plan) -> None:
    print(found.sentence)
    for line in found.warnings:
        print(f"Warning: {line}")
    print(
        f"\n{found.trace}: {counted(found.replicas, 'replica')}, "
        f"{found.bytes_per_token:,.6g} B a "
        f"token, times as measured on {found.host}"
    )
    asked = "unknown, as all requests arrive at once"
    if found.prefill_load is not None:
        asked = f"{format_seconds(found.prefill_load)} a second of each replica"
        asked += ", which is more than there is" if found.prefill_load > 1.0 else ""
    print(f"  prefill behind the best local routing: {asked}")
    rows = [
        ("useful tokens hit", ""),
        ("without looking at prefixes", _percent(found.blind_hit)),
        (
            f"best local routing{f' ({found.local_routing})' if found.local_routing else ''}",
            _percent(found.local_hit),
        ),
        ("with a pool", _percent(found.pool_hit)),
        ("by a cache that forgets nothing", _percent(found.infinite_hit)),
    ]
    write_columns(rows, right=(1,), indent="  ")
    print(f"\nWhat a pool would add, on the link to {found.link.tier}")
    table = [
        (
            "class",
            "requests/s",
            "find more",
            "loaded",
            "recompute",
            "load",
            "stall",
            "E a request",
            "break-even",
        )
    ]
    table += [
        (
            one.name,
            f"{one.requests_per_second:.3g}",
            _percent(one.h_remote),
            "unknown" if one.loaded_share is None else _percent(one.loaded_share),
            "-" if one.loaded_share == 0.0 else _seconds(one.recompute_seconds),
            "-" if one.loaded_share == 0.0 else _seconds(one.remote_seconds),
            _seconds(one.stall_seconds),
            _seconds(one.benefit_seconds),
            _rate(one.break_even_bytes_per_second),
        )
        for one in found.classes
        if one.h_remote
    ]
    if len(table) > 1:
        write_columns(table, right=range(1, 9), indent="  ")
        if found.link_busy_share is None or found.benefit_seconds_per_second is None:
            busy = "unknown: it was never measured"
            spared = f"unknown, {found.most_seconds_per_second:.3g} s a second if loads took no time"
        else:
            busy = f"{_percent(found.link_busy_share)} of the time"
            spared = f"at most {found.benefit_seconds_per_second:.3g} s a second of all replicas"
        print("  all classes")
        write_columns(
            [
                ("a replica's link busy", busy),
                ("prefill spared", spared),
                ("break-even", _rate(found.break_even_bytes_per_second)),
            ],
            indent="    ",
        )
    else:
        print("  nothing: no request would find more in a pool than its replica holds")
    print("\nNot known, and not in these figures")
    for line in found.unknown:
        print(f"  {line}")


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return format_rate(value) if math.isfinite(value) else "never"


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else format_seconds(float(f"{value:.3g}"))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
