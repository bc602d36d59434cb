"""`kvferry trace record`: what replicas are asked, as they are asked or from what they left.

Owns its flags, and how a recording ends: by Ctrl-C, SIGTERM or a limit, with a file of whole lines.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import FormatError, UsageError
from ..traces import Problems, open_trace
from ..traces.convert import new_secret, read_secret, write_own
from ..units import counted, parse_seconds
from .output import Json, write_json
from .trace_files import Overwrite, SecretFile, Strict, complain, done

__all__ = ["record"]


def record(
    source: str,
    out: str,
    *,
    follow: bool = False,
    seconds: str | None = None,
    secret_file: SecretFile = None,
    overwrite: Overwrite = False,
    strict: Strict = False,
    json: Json = False,
) -> int:
    """Record what replicas are asked: keyed hashes and lengths, never prompts.

    SOURCE is tcp://HOST:PORT or ipc://PATH for the KV events of a vLLM engine (--kv-events-config), or a
    replica's decisions.jsonl, run directory or folder of run directories, or a gateway's log. Ctrl-C ends it.

    Parameters
    ----------
    source
        Where requests are told of.
    out
        A new file.
    follow
        Go on as decisions.jsonl grows, until Ctrl-C or --seconds. KV events are always followed.
    seconds
        Stop after this long, such as 15min.
    """
    limit = None if seconds is None else parse_seconds(seconds, "--seconds")
    if source.startswith(("tcp://", "ipc://", "inproc://")):
        return _record_events(source, Path(out), limit, secret_file, overwrite, json)
    if secret_file is not None:
        raise UsageError("--secret-file: records of kvferry hold keyed hashes already; see `trace anonymize`")
    if follow:
        return _record_followed(Path(source), Path(out), limit, overwrite, strict, json)
    if limit is not None:
        raise UsageError("--seconds: a file is read to its end at once; say --follow to wait for more")
    trace = open_trace(source, strict=strict)
    if trace.format not in ("decisions", "gateway"):
        raise FormatError(
            f"{source}: a trace of format {trace.format} is no record of a replica or a gateway; "
            "see `kvferry trace convert` and `kvferry trace anonymize`"
        )
    return done(write_own(trace, Path(out), overwrite=overwrite), trace, json)


def _record_events(
    endpoint: str, out: Path, limit: float | None, secret_file: str | None, overwrite: bool, json: bool
) -> int:
    from ..traces.vllm import EventRecorder, record_events

    secret = new_secret() if secret_file is None else read_secret(Path(secret_file))
    with EventRecorder(out, secret, overwrite=overwrite) as recorder, _until(limit) as stop:
        print(f"recording {endpoint}; Ctrl-C ends it", file=sys.stderr)
        record_events(endpoint, recorder, stop)
    if json:
        write_json(
            {"path": str(out), "events": recorder.events, "lost": recorder.lost, "refused": recorder.refused}
        )
    else:
        print(
            f"{out}: {recorder.events:,} events, {recorder.lost:,} batches lost, {recorder.refused:,} refused"
        )
    if not recorder.events:
        print(
            "kvferry: no event came; is the engine started with --kv-events-config "
            '\'{"enable_kv_cache_events": true, "publisher": "zmq"}\'?',
            file=sys.stderr,
        )
        return 1
    return 0


def _record_followed(
    source: Path, out: Path, limit: float | None, overwrite: bool, strict: bool, json: bool
) -> int:
    from ..traces.decisions import decision_files
    from ..traces.follow import follow_decisions

    files = decision_files(source) or [source / "decisions.jsonl"]
    problems = Problems(strict=strict)
    with _until(limit) as stop:
        print(f"following {', '.join(map(str, files))}; Ctrl-C ends it", file=sys.stderr)
        requests = follow_decisions(files, out, stop, problems=problems, overwrite=overwrite)
    complain(problems)
    if json:
        write_json({"path": str(out), "requests": requests, "bad_rows": problems.count})
    else:
        print(f"{out}: {counted(requests, 'request')}")
    return 0


@contextmanager
def _until(limit: float | None) -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop: after `limit` seconds, or once Ctrl-C or SIGTERM came."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True

    end = None if limit is None else time.monotonic() + limit
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked or (end is not None and time.monotonic() >= end)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
