"""A replica process, `python -m kvferry replica`, and a plain client that waits for whole answers."""

from __future__ import annotations

import http.client
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvferry.config import child_environment
from kvferry.runs.decisions import DecisionRecord

__all__ = ["Answer", "Recipe", "Refusal", "Served", "eventually", "served"]

_START_SECONDS = 120.0
_NUMBERS = itertools.count(1)


class Refusal(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Recipe:
    """How to start one replica."""

    model: Path
    settings: Mapping[str, str]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a replica said, and what it recorded."""

    token_ids: tuple[int, ...]
    text: str
    cached_tokens: int
    record: DecisionRecord
    seconds: float
    """As the client saw it."""

    @property
    def ledger(self) -> dict[str, int]:
        return {outcome.value: tokens for outcome, tokens in self.record.ledger.items() if tokens}

    @property
    def path(self) -> str:
        return self.record.path


class Served:
    """One running replica."""

    def __init__(self, name: str, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.name = name
        self.process = process
        self.port = port
        self.log = log

    def ask(
        self,
        prompt: Sequence[int],
        *,
        answer_tokens: int = 6,
        fields: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Answer:
        """One completion of token ids, greedy. Raises Refusal."""
        body = {
            "prompt": list(prompt),
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "request_id": f"{self.name}-{next(_NUMBERS):04d}",
            **options,
        }
        if fields is not None:
            body["kv_transfer_params"] = {"kvferry": dict(fields)}
        began = time.monotonic()
        answer = self.post("/v1/completions", body)
        ours = answer["kvferry"]
        return Answer(
            token_ids=tuple(ours["token_ids"]),
            text=answer["choices"][0]["text"],
            cached_tokens=answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            record=msgspec.convert(ours["decision"], DecisionRecord, strict=False),
            seconds=time.monotonic() - began,
        )

    def forget(self) -> None:
        """Empty the replica's own prefix cache."""
        self.post("/reset_prefix_cache", {})

    def switch(self, **changes: Any) -> None:
        """Change mode, policy or bytes_per_second at run time."""
        names = {"policy": "gate.policy", "mode": "gate.mode", "bytes_per_second": "pool.bytes_per_second"}
        self.post("/kvferry/settings", {names[name]: value for name, value in changes.items()})

    def state(self) -> dict[str, Any]:
        """The run-time state: estimates, loads in flight, bytes."""
        state: dict[str, Any] = self.call("GET", "/kvferry/settings")["state"]
        return state

    def standing(self, data_class: str = "default") -> str:
        """Whether the pool's namespace of this class has been joined."""
        standing: str = self.state()["namespaces"][data_class]["standing"]
        return standing

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.call("POST", path, body)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise Refusal(response.status, content.decode(errors="replace"))
        return json.loads(content)

    def kill(self) -> None:
        """End the process as a crash would."""
        self.process.kill()
        self.process.wait(20)


@contextmanager
def served(folder: Path, recipes: Mapping[str, Recipe]) -> Iterator[dict[str, Served]]:
    """Start replicas by name, all at once; logs go to `folder`, and all are ended on the way out."""
    processes: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, recipe in recipes.items():
            command = [sys.executable, "-m", "kvferry", "replica", "--model", str(recipe.model)]
            command += ["--threads", "1", "--local-cache", "4MiB", "--chunk-tokens", "64", *recipe.options]
            for setting, value in {"replica": name, **recipe.settings}.items():
                command += ["--set", f"{setting}={value}"]
            with (folder / f"{name}.log").open("a") as log:
                processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=child_environment({"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}, settings=False),
                )
        yield {
            name: Served(name, process, _port(process, folder / f"{name}.log"), folder / f"{name}.log")
            for name, process in processes.items()
        }
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=10)


def eventually(what: str, seconds: float = 15.0, pause: float = 0.05) -> Iterator[int]:
    """Numbers of tries until `seconds` have passed; then an AssertionError that says what was waited for."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        yield number
        if time.monotonic() > end:
            raise AssertionError(f"within {seconds:g} s: {what}")
        time.sleep(pause)


def _port(process: subprocess.Popen[str], log: Path) -> int:
    watchdog = threading.Timer(_START_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
    if not line:
        raise RuntimeError(f"a replica did not start: {log.read_text()[-2000:]}")
    return int(json.loads(line)["port"])
