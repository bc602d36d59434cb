"""`kvferry replica`: one replica process, from a model's name to an open port."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Annotated

from cyclopts import App, Parameter

from ..clock import MonotonicClock
from ..config import Config, Loaded, cache_dir, load, resolve_secret
from ..errors import MissingExtra, UsageError
from ..keys.pool import secret_of
from ..runs.directory import RunDirectory
from ..store.open import open_tier
from ..units import format_bytes, parse_bytes

__all__ = ["app"]

_NEEDED = {
    "torch": "transformers",
    "transformers": "transformers",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "aiohttp": "gateway",
}

_WARM_TOKENS = 2048

app = App(name="replica", help="Serve a model over the OpenAI HTTP API, with kvferry beside it.")


@app.default
def replica(
    *,
    model: str = "smollm2-135m-instruct",
    host: str = "127.0.0.1",
    port: int = 0,
    threads: int = 1,
    local_cache: str = "512MiB",
    chunk_tokens: int = 256,
    max_active: int = 8,
    max_context: int | None = None,
    dtype: str = "float32",
    exit_with_parent: bool = False,
    config: Annotated[Path | None, Parameter(name=["--config", "--file"])] = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
) -> int:
    """Serve a model over the OpenAI HTTP API, with kvferry beside it.

    When connections are accepted, one JSON line with the port is written to standard output.

    Parameters
    ----------
    model
        A packaged model, a folder saved by transformers, or a hub id.
    host
        Address to listen on. There is no authentication: keep it private.
    port
        Port to listen on; 0 takes a free one.
    threads
        Threads of one forward pass.
    local_cache
        Memory of the replica's own prefix cache.
    chunk_tokens
        Most prompt tokens that one step computes.
    max_active
        Requests that may hold KV of their own at once; others wait.
    max_context
        Longest prompt and answer together; the model's own limit unless given.
    dtype
        Numbers of weights and KV: float32, bfloat16 or float16.
    exit_with_parent
        End when standard input is closed: a process that starts replicas takes them along when it dies.
    config
        YAML file of settings.
    set_
        One setting, as NAME=VALUE, such as gate.margin=5ms. Can be repeated.
    """
    for module, extra in _NEEDED.items():
        if find_spec(module) is None:
            raise MissingExtra("kvferry replica", extra)
    for name, value in (("threads", threads), ("chunk-tokens", chunk_tokens), ("max-active", max_active)):
        if value < 1:
            raise UsageError(f"--{name} {value}: write 1 or more")
    if max_context is not None and max_context < 1:
        raise UsageError(f"--max-context {max_context}: write 1 or more")
    # After the check above: it needs the extra `gateway`.
    from ..serving.listen import check_port, reserved

    check_port(port, "--port")
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    loaded = load(file=config, overrides=set_)
    cache_bytes = parse_bytes(local_cache, "--local-cache")
    _try_settings(loaded.config)
    with reserved(host, port) as listener:
        return _serve(
            loaded,
            listener,
            model=model,
            threads=threads,
            cache_bytes=cache_bytes,
            chunk_tokens=chunk_tokens,
            max_active=max_active,
            max_context=max_context,
            dtype=dtype,
            exit_with_parent=exit_with_parent,
        )


def _serve(
    loaded: Loaded,
    listener: socket.socket,
    *,
    model: str,
    threads: int,
    cache_bytes: int,
    chunk_tokens: int,
    max_active: int,
    max_context: int | None,
    dtype: str,
    exit_with_parent: bool,
) -> int:
    """Load the model and serve it until the process is asked to end."""
    if loaded.config.spans:
        from ..telemetry.exporting import send_spans

        send_spans()
    _begin_records(loaded, model=model, dtype=dtype, threads=threads)

    from ..engines.transformers.arena import Arena
    from ..engines.transformers.build import build_ferry
    from ..engines.transformers.engine import TransformersEngine
    from ..engines.transformers.resolve import model_name, resolve_model
    from ..engines.transformers.runner import Runner
    from ..engines.transformers.scheduler import Scheduler
    from ..serving.listen import serve
    from ..serving.server import make_app

    folder = resolve_model(model, cache_dir(), say=_say)
    runner = Runner(
        folder,
        name=model_name(model),
        block_tokens=loaded.config.block_tokens,
        dtype=dtype,
        threads=threads,
        revision=loaded.config.revision,
        max_tokens=max_context,
    )
    blocks = cache_bytes // runner.layout.block_bytes
    if blocks < 1:
        raise UsageError(
            f"--local-cache {format_bytes(cache_bytes)}: {runner.layout.block_tokens} tokens, a block, take "
            f"{runner.layout.block_bytes} bytes; write at least {runner.layout.block_bytes}B"
        )
    arena = Arena(blocks, runner.layout)
    clock = MonotonicClock()
    ferry = build_ferry(loaded.config, runner, clock, chunk_tokens=chunk_tokens)
    scheduler = Scheduler(
        runner,
        arena,
        ferry,
        clock,
        chunk_tokens=chunk_tokens,
        max_active=max_active,
        warm_tokens=min(_WARM_TOKENS, runner.max_tokens),
    )
    scheduler.start()
    if exit_with_parent:
        Thread(target=_end_with_parent, name="kvferry-parent", daemon=True).start()
    try:
        serve(
            make_app(TransformersEngine(runner, arena, scheduler, clock), ferry),
            listener,
            ready=lambda taken: print(
                json.dumps({"port": taken, "pid": os.getpid(), "model": runner.name}), flush=True
            ),
        )
    finally:
        scheduler.stop()
    return 0


def _try_settings(config: Config) -> None:
    """Say what is wrong with secret and addresses now, not after a model was read for minutes."""
    secret_of(config.tenant, resolve_secret(config))
    # A plug-in may mind being opened twice.
    if config.pool is not None and not config.pool.startswith("plugin:"):
        open_tier(config.pool).close()


def _begin_records(loaded: Loaded, **equal: str | int) -> None:
    """Make the folder of records a run directory, so that `kvferry why` reads it.

    A folder that is one already is gone on with: the replica was restarted, or shares it with others.
    """
    record = loaded.config.record
    if record is not None and not (Path(record) / "run.json").exists():
        RunDirectory.create(
            record,
            command=["kvferry", *sys.argv[1:]],
            config=loaded.config,
            origins=loaded.origins,
            equal=equal,
        ).close()


def _end_with_parent() -> None:
    """Wait for the end of standard input, then ask this process to end in order."""
    while sys.stdin.buffer.read(1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
