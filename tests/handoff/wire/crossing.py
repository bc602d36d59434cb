"""A prefill without a model: KV of random numbers, both sides of a hand-off, and ways to break it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kvferry.clock import MonotonicClock
from kvferry.cost.prefill import PrefillModel
from kvferry.cost.transfer import LegModel
from kvferry.gate.facts import Decision, Facts, GateTerms
from kvferry.handoff.transports.contract import Incoming, Outgoing
from kvferry.handoff.transports.tcp import TcpListener, dial_tcp
from kvferry.handoff.wire.failed import HandoffFailed
from kvferry.handoff.wire.layers import Layers
from kvferry.handoff.wire.manifest import Manifest, make_manifest, require_same
from kvferry.handoff.wire.memory import HostKv
from kvferry.handoff.wire.pricing import Pricing, decide_handoff
from kvferry.handoff.wire.receiver import Received, receive
from kvferry.handoff.wire.sender import Sent, send
from kvferry.keys.namespace import Namespace

LAYERS, HEADS, WIDTH, TOKENS = 3, 2, 16, 100
SECRET = bytes(32)
CLOCK = MonotonicClock()


def namespace(**changes: Any) -> Namespace:
    fields: dict[str, Any] = {
        "model": "tiny",
        "weights_revision": "1",
        "tokenizer": "t",
        "attention": "{}",
        "position": "{}",
        "implementation": "none",
        "kv_dtype": "float32",
        "layout": "plain",
        "block_tokens": 32,
    }
    return Namespace(**fields | changes)


def ids(tokens: int = TOKENS + 1) -> list[int]:
    return [(7 * i + 3) % 1000 for i in range(tokens)]


def manifest_of(**changes: Any) -> Manifest:
    options: dict[str, Any] = {
        "handoff_id": "h-1",
        "layers": LAYERS,
        "kv_heads": HEADS,
        "head_dim": WIDTH,
        "dtype": "float32",
        "chunk_tokens": 32,
    }
    space = changes.pop("space", None) or namespace()
    return make_manifest(space, changes.pop("token_ids", None) or ids(), **options | changes)


def numbers(seed: int = 0, tokens: int = TOKENS) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal((LAYERS, 2, HEADS, tokens, WIDTH)).astype(np.float32)


class Engine:
    """The receiver's host: memory, and what it was asked."""

    def __init__(self, *, policy: str = "always", codec: str = "raw", space: Namespace | None = None) -> None:
        self.kv = np.zeros((LAYERS, 2, HEADS, TOKENS + 8, WIDTH), np.float32)
        self.pricing = Pricing(
            prefill=PrefillModel(), link=LegModel(), chunk_tokens=256, terms=GateTerms(policy=policy)
        )
        self.codec = codec
        self.space = space or namespace()
        self.layers: Layers | None = None
        self.opened = threading.Event()

    def check(self, manifest: Manifest) -> None:
        require_same(manifest, self.space, codec=self.codec)

    def judge(self, manifest: Manifest, payload_bytes: int, seconds: float) -> tuple[Facts, Decision]:
        return decide_handoff(manifest, payload_bytes, self.pricing, deadline_seconds=seconds)

    def open(self, manifest: Manifest, layers: Layers, deadline: float) -> HostKv:
        self.layers = layers
        self.opened.set()
        return HostKv(self.kv.view(np.uint8))

    @property
    def carried(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return self.kv[:, :, :, :TOKENS]


class Receiver:
    """One `receive` in a thread of its own."""

    def __init__(self, accept: Callable[[float], Incoming], engine: Engine, **options: Any) -> None:
        self.engine = engine
        self._answer: list[Received | BaseException] = []
        settings = {"secret": SECRET, "deadline": CLOCK.now() + 20, "clock": CLOCK, "grace_seconds": 5.0}
        settings |= options

        def run() -> None:
            try:
                self._answer.append(receive(accept, engine, **settings))
            except BaseException as error:  # told to the test
                self._answer.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> Received:
        self._thread.join(30)
        (answer,) = self._answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Pair:
    """A sender and a receiver over TCP on this host."""

    def __init__(self) -> None:
        self.listener = TcpListener("127.0.0.1", 0, CLOCK)

    def dial(self, deadline: float) -> Outgoing:
        return dial_tcp("127.0.0.1", self.listener.port, deadline, CLOCK)

    def receiver(self, engine: Engine | None = None, **options: Any) -> Receiver:
        return Receiver(self.listener.accept, engine or Engine(), **options)

    def send(
        self,
        kv: np.ndarray[Any, Any],
        manifest: Manifest | None = None,
        dial: Callable[[float], Outgoing] | None = None,
        **options: Any,
    ) -> Sent:
        settings = {"secret": SECRET, "deadline": CLOCK.now() + 20, "clock": CLOCK} | options
        memory = HostKv(kv.view(np.uint8))
        return send(memory, manifest or manifest_of(), dial or self.dial, **settings)


class Tampering:
    """An `Outgoing` that breaks at chosen chunks; each fault happens once."""

    def __init__(self, real: Outgoing, faults: dict[int, Callable[..., Any]]) -> None:
        self._real = real
        self._faults = faults
        self.wants_digest = real.wants_digest

    def chunk(self, index: int, payload: Sequence[memoryview], digest: bytes, deadline: float) -> None:
        fault = self._faults.pop(index, None)
        if fault is None:
            self._real.chunk(index, payload, digest, deadline)
        else:
            fault(self._real, index, payload, digest, deadline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def tampering(pair: Pair, faults: dict[int, Callable[..., Any]]) -> Callable[[float], Outgoing]:
    """A dial whose connections share the faults that are still to come."""
    return lambda deadline: Tampering(pair.dial(deadline), faults)  # type: ignore[return-value]


def failing(call: Callable[[], Any]) -> HandoffFailed:
    with pytest.raises(HandoffFailed) as caught:
        call()
    return caught.value
