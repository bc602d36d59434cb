"""An engine of a few lines: it echoes token ids, as slowly as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import pytest

HAVE_HTTP = all(find_spec(name) is not None for name in ("starlette", "uvicorn", "aiohttp"))
collect_ignore_glob = [] if HAVE_HTTP else ["test_*.py"]

if HAVE_HTTP:
    from kvferry.errors import EngineError, InputError, KvferryError
    from kvferry.serving.contract import End, Event, Generation, Piece
    from kvferry.serving.listen import serving
    from kvferry.serving.server import make_app


class EchoEngine:
    """Answers with the prompt's own ids, one character each."""

    model = "echo"
    max_tokens = 100
    vocabulary = 256

    def __init__(self) -> None:
        self.seen: list[Generation] = []
        self.ended: list[str] = []
        self.pause_seconds = 0.0
        self.fails_at: int | None = None
        self.error: KvferryError = EngineError("the engine broke")
        self.ill: str | None = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        if any("content" not in message for message in messages):
            raise InputError("messages: the model's chat template refuses them")
        return self.encode("".join(str(message["content"]) for message in messages) + ("t" if tools else ""))

    async def generate(self, request: Generation) -> AsyncGenerator[Event, None]:
        self.seen.append(request)
        ids = request.prompt[: request.sampling.max_tokens]
        try:
            for index, token in enumerate(ids):
                await asyncio.sleep(self.pause_seconds)
                if index == self.fails_at:
                    raise self.error
                yield Piece(chr(token), (token,))
            yield End("length", ids, 3, {"choice": "load"}, 0.25)
        finally:
            self.ended.append(request.request_id)

    def health(self) -> str | None:
        return self.ill

    def reset_prefix_cache(self) -> int:
        return 7


class Switches:
    """Controls over a dict."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"mode": "on"}

    def settings(self) -> Mapping[str, Any]:
        return self.values

    def change(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in changes:
            if name not in self.values:
                raise InputError(f"{name!r} cannot be switched")
        self.values.update(changes)
        return self.values

    def decisions(self, since: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        return [{"number": number} for number in range(since, 3)], 3

    def metrics(self) -> bytes:
        return b"kvferry_up 1\n"


@pytest.fixture(scope="session")
def servers() -> Iterator[tuple[EchoEngine, Switches, str, str]]:
    """One engine behind two servers, with and without controls: starting one for each test takes longer."""
    engine, switches = EchoEngine(), Switches()
    with serving(make_app(engine, switches)) as url, serving(make_app(engine)) as bare:
        yield engine, switches, url, bare


@pytest.fixture
def engine(servers: tuple[EchoEngine, Switches, str, str]) -> EchoEngine:
    """As if it were new."""
    servers[0].__init__()  # type: ignore[misc]
    servers[1].__init__()  # type: ignore[misc]
    return servers[0]


@pytest.fixture
def url(engine: EchoEngine, servers: tuple[EchoEngine, Switches, str, str]) -> str:
    return servers[2]


@pytest.fixture
def bare_url(engine: EchoEngine, servers: tuple[EchoEngine, Switches, str, str]) -> str:
    return servers[3]


@pytest.fixture
def call() -> Callable[..., tuple[int, Any]]:
    """call(url, path, body) gives status and JSON, by a client that is not ours."""
    import json
    import urllib.error
    import urllib.request

    def ask(url: str, path: str, body: Any = None, raw: bytes | None = None) -> tuple[int, Any]:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data=data)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                content, status = response.read(), response.status
        except urllib.error.HTTPError as error:
            content, status = error.read(), error.code
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()

    return ask
