"""The two roles over one model each: one node computes a prompt's KV, another one decodes behind it.

Owns the way from a runner to both ends of the wire, and the decode node's way out: when a hand-off is
declined or fails, it computes the prompt itself, and says so in the ledger. Both answers are the same text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ...clock import Clock
from ...config import Config
from ...cost.prefill import PrefillModel
from ...cost.transfer import LegModel
from ...engines.transformers.build import namespaces_of
from ...engines.transformers.runner import Runner
from ...engines.transformers.span import Span
from ...gate.facts import Decision, Facts, GateTerms
from ...handoff.transports.address import Listener
from ...handoff.transports.contract import Outgoing
from ...handoff.wire.booking import book
from ...handoff.wire.failed import HandoffFailed
from ...handoff.wire.layers import Layers
from ...handoff.wire.legs import dominant_leg, legs_of
from ...handoff.wire.manifest import DEFAULT_CHUNK_TOKENS, Manifest, make_manifest, require_same
from ...handoff.wire.memory import HostKv
from ...handoff.wire.pricing import Pricing, decide_handoff
from ...handoff.wire.receiver import Received, receive
from ...handoff.wire.sender import Sent, send
from ...keys.namespace import Namespace
from ...outcomes import Outcome
from .spans import TellingSpan, WaitingSpan

__all__ = ["Answered", "DecodeNode", "HandedOver", "PrefillNode", "handoff_namespace"]

PREFILL_CHUNK_TOKENS = 256


def handoff_namespace(config: Config, runner: Runner) -> Namespace:
    """The namespace of a runner's KV as it is computed, whatever codec its tiers have."""
    space = namespaces_of(config, runner)[config.data_class]
    return msgspec.structs.replace(space, kv_dtype=runner.layout.dtype_name)


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-off on the prefill node."""

    sent: Sent
    prompt_tokens: int
    payload_bytes: int
    prefill_seconds: float
    """Of the prefill, whether it came before the offer or behind it; 0 where it never began."""
    total_seconds: float


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One request on the decode node."""

    received: Received
    ledger: dict[Outcome, int]
    token_ids: tuple[int, ...]
    first_token_seconds: float | None
    """From the offer's answer (or its failure) to the first token: install, or local prefill."""
    legs: dict[str, float]
    dominant: str
    """The leg that took longest; empty where nothing was handed over."""
    local_prefill_seconds: float
    """What the prompt took here; 0 where it was handed over."""


class PrefillNode:
    """Computes prompts and hands them over. One request at a time."""

    def __init__(self, runner: Runner, namespace: Namespace, secret: bytes, clock: Clock) -> None:
        self._runner, self._namespace = runner, namespace
        self._secret, self._clock = secret, clock
        self.prefill = measured_prefill(runner, clock)

    def hand_over(
        self,
        token_ids: Sequence[int],
        dial: Callable[[float], Outgoing],
        *,
        handoff_id: str,
        codec: str = "raw",
        sunk: bool = True,
        seconds: float = 60.0,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    ) -> HandedOver:
        """Send the KV of all but the last token.

        With `sunk` the prefill is done before the offer; without, the receiver is asked first, and layers
        cross while later ones are computed. Raises HandoffFailed, ValueError for a prompt of one token.
        """
        if len(token_ids) < 2:
            raise ValueError("a prompt of one token leaves nothing to hand over")
        runner, tokens = self._runner, len(token_ids) - 1
        layers = Layers(runner.layers, self._clock)
        span = TellingSpan(runner.layout, tokens, tokens, layers)
        began = self._clock.now()
        took: list[float] = []

        def compute() -> None:
            start = self._clock.now()
            try:
                prefill_in_chunks(runner, span, token_ids[:-1], self._clock, self.prefill)
            except BaseException as error:
                layers.fail(HandoffFailed(Outcome.FAILED, f"the prefill failed: {error}"))
                raise
            took.append(self._clock.now() - start)

        thread = threading.Thread(target=compute, name="kvferry-prefill", daemon=True)
        if sunk:
            compute()
        manifest = make_manifest(
            self._namespace,
            token_ids,
            handoff_id=handoff_id,
            layers=runner.layers,
            kv_heads=runner.kv_heads,
            head_dim=runner.head_dim,
            dtype=runner.layout.dtype_name,
            codec=codec,
            chunk_tokens=chunk_tokens,
            sunk=sunk,
            prefill_seconds=self._expected_seconds(tokens),
        )
        sent = send(
            HostKv.of_tensor(span.kv),
            manifest,
            dial,
            secret=self._secret,
            deadline=self._clock.now() + seconds,
            clock=self._clock,
            layers=layers,
            on_taken=lambda: None if sunk else thread.start(),
        )
        if thread.ident is not None:
            thread.join()
        return HandedOver(
            sent=sent,
            prompt_tokens=len(token_ids),
            payload_bytes=sent.legs.bytes,
            prefill_seconds=took[0] if took else 0.0,
            total_seconds=self._clock.now() - began,
        )

    def _expected_seconds(self, tokens: int) -> float:
        """At the high quantile: what is promised to the receiver."""
        seconds = self.prefill.seconds(tokens, 0, PREFILL_CHUNK_TOKENS)
        return seconds * max(1.0, self.prefill.spread.quantile(0.95))


@dataclass(slots=True)
class _Waiting:
    """The decode node as the receiving thread sees it."""

    node: DecodeNode
    answer_tokens: int
    token_ids: Sequence[int] | None
    opened: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    span: WaitingSpan | None = None
    prompt: Sequence[int] = ()
    opened_at: float | None = None

    def check(self, manifest: Manifest) -> None:
        if self.token_ids is not None:
            self.prompt = self.token_ids
        elif self.node.reads(manifest):
            # Whatever becomes of the KV, the request is one that can be answered.
            self.prompt = manifest.token_ids
        self.node.check(manifest, self.token_ids, self.answer_tokens)

    def judge(self, manifest: Manifest, payload_bytes: int, seconds: float) -> tuple[Facts, Decision]:
        return decide_handoff(manifest, payload_bytes, self.node.pricing, deadline_seconds=seconds)

    def open(self, manifest: Manifest, layers: Layers, deadline: float) -> HostKv:
        runner = self.node.runner
        self.span = WaitingSpan(
            runner.layout,
            manifest.prompt_tokens + self.answer_tokens,
            manifest.tokens,
            layers,
            deadline,
        )
        self.opened_at = self.node.clock.now()
        self.opened.set()
        return HostKv.of_tensor(self.span.kv)


class DecodeNode:
    """Takes prefills over and decodes behind them. One request at a time.

    `codecs` are the forms of KV that it agrees to; a lossy one only where it is named.
    """

    def __init__(
        self,
        runner: Runner,
        namespace: Namespace,
        secret: bytes,
        clock: Clock,
        *,
        codecs: Sequence[str] = ("raw",),
        terms: GateTerms | None = None,
    ) -> None:
        self.runner, self.clock = runner, clock
        self._namespace, self._secret = namespace, secret
        self._codecs = tuple(codecs)
        self.pricing = Pricing(
            prefill=measured_prefill(runner, clock),
            link=LegModel(),
            chunk_tokens=PREFILL_CHUNK_TOKENS,
            terms=terms or GateTerms(),
        )

    def reads(self, manifest: Manifest) -> bool:
        """Whether the ids of an offer mean here what they mean there, and fit this model."""
        ours, ids = self._namespace.fields(), manifest.token_ids
        return (
            all(manifest.fields[name] == ours[name] for name in ("tokenizer", "tenant"))
            and 2 <= len(ids) < self.runner.max_tokens
            and max(ids) < self.runner.vocabulary
        )

    def check(self, manifest: Manifest, token_ids: Sequence[int] | None, answer_tokens: int) -> None:
        """Raise HandoffFailed (incompatible) for KV that this node cannot go on with."""
        # A codec that was not agreed to is named as the field that differs.
        codec = manifest.codec if manifest.codec in self._codecs else self._codecs[0]
        require_same(manifest, self._namespace, codec=codec, token_ids=token_ids)
        layout = self.runner.layout
        ours = (layout.layers, layout.kv_heads, layout.width, layout.dtype_name)
        theirs = (manifest.layers, manifest.kv_heads, manifest.head_dim, manifest.dtype)
        if ours != theirs:
            raise HandoffFailed(Outcome.INCOMPATIBLE, f"KV of shape {theirs}; ours is {ours}")
        if manifest.positions != ((0, manifest.prompt_tokens - 1),):
            raise HandoffFailed(
                Outcome.INCOMPATIBLE,
                f"positions {manifest.positions} of {manifest.prompt_tokens}: this engine goes on behind all "
                "but the last token",
            )
        if manifest.prompt_tokens + answer_tokens > self.runner.max_tokens:
            raise HandoffFailed(
                Outcome.INCOMPATIBLE,
                f"{manifest.prompt_tokens} tokens and an answer of {answer_tokens} are more than "
                f"{self.runner.max_tokens}",
            )

    def serve(
        self,
        listener: Listener,
        *,
        answer_tokens: int,
        wait_seconds: float = 600.0,
        seconds: float = 60.0,
        grace_seconds: float = 5.0,
        token_ids: Sequence[int] | None = None,
    ) -> Answered:
        """One request: its prompt from the hand-off, or from `token_ids`; the answer chosen greedily.

        Waits `wait_seconds` for the offer, and `seconds` for what was offered. The first forward pass begins
        as soon as the offer is taken, and waits layer by layer. Where the hand-off does not arrive, the
        prompt is computed here; raises HandoffFailed only where there is no prompt to compute, since no
        offer came that says it.
        """
        waiting = _Waiting(self, answer_tokens, token_ids)
        ended: list[Received] = []
        broken: list[BaseException] = []

        def run() -> None:
            try:
                ended.append(
                    receive(
                        listener.accept,
                        waiting,
                        secret=self._secret,
                        deadline=self.clock.now() + wait_seconds,
                        clock=self.clock,
                        arrival_seconds=seconds,
                        grace_seconds=grace_seconds,
                    )
                )
            except BaseException as error:
                broken.append(error)
                raise
            finally:
                waiting.over.set()
                waiting.opened.set()

        thread = threading.Thread(target=run, name="kvferry-handoff-receive", daemon=True)
        thread.start()
        waiting.opened.wait()
        first, span, computed = None, waiting.span, 0.0
        said: tuple[int, ...] = ()
        if span is not None:
            try:
                logits = self.runner.decode(span, waiting.prompt[-1])
                first = self.clock.now()
                said = self._say(span, int(logits.argmax()), answer_tokens)
            except HandoffFailed:
                span = None
        thread.join()
        if broken:
            raise broken[0]
        (received,) = ended
        began = waiting.opened_at
        if span is None:
            prompt = self._prompt(received, waiting)
            began = self.clock.now() if began is None else began
            start = self.clock.now()
            own = self.runner.new_span(len(prompt) + answer_tokens)
            prefill_in_chunks(self.runner, own, prompt[:-1], self.clock, self.pricing.prefill)
            logits = self.runner.decode(own, prompt[-1])
            first = self.clock.now()
            computed = first - start
            said = self._say(own, int(logits.argmax()), answer_tokens)
        self._learn(received)
        return self._answered(received, waiting, said, first, began, computed)

    def _say(self, span: Span, token: int, count: int) -> tuple[int, ...]:
        said = [token]
        while len(said) < count:
            said.append(int(self.runner.decode(span, said[-1]).argmax()))
        return tuple(said)

    def _prompt(self, received: Received, waiting: _Waiting) -> Sequence[int]:
        if waiting.prompt:
            return waiting.prompt
        if waiting.token_ids is not None:
            return waiting.token_ids
        raise HandoffFailed(received.cause or Outcome.FAILED, received.detail)

    def _learn(self, received: Received) -> None:
        ready = received.receiver.ready_seconds
        if received.cause is None and ready is not None and not received.resumed_from:
            link = legs_of(received.sender, received.receiver)["wire"]
            # What a remote prefill that ran meanwhile took is not the link's.
            self.pricing.link.observe(
                received.payload_bytes, max(link, ready - received.sender.prefill_seconds)
            )

    def _answered(
        self,
        received: Received,
        waiting: _Waiting,
        said: tuple[int, ...],
        first: float | None,
        began: float | None,
        computed: float,
    ) -> Answered:
        prompt_tokens = len(waiting.prompt or waiting.token_ids or ())
        handed = prompt_tokens - 1
        arrived = received.cause is None
        legs: Mapping[str, float] = legs_of(received.sender, received.receiver) if arrived else {}
        return Answered(
            received=received,
            ledger=book(prompt_tokens, handed, cause=received.cause),
            token_ids=said,
            first_token_seconds=None if first is None or began is None else first - began,
            legs=dict(legs),
            dominant=dominant_leg(received.sender, received.receiver) if arrived else "",
            local_prefill_seconds=computed,
        )


def prefill_in_chunks(
    runner: Runner, span: Span, token_ids: Sequence[int], clock: Clock, model: PrefillModel | None = None
) -> None:
    """Compute tokens in the engine's chunks; `model` learns from each."""
    for start in range(0, len(token_ids), PREFILL_CHUNK_TOKENS):
        chunk = token_ids[start : start + PREFILL_CHUNK_TOKENS]
        began = clock.now()
        runner.prefill_chunk(span, chunk)
        if model is not None:
            model.observe(len(chunk), start, clock.now() - began)


def measured_prefill(runner: Runner, clock: Clock) -> PrefillModel:
    """A few timed steps, so that the first request can be priced; the very first one only warms up."""
    model = PrefillModel()
    chunk = min(PREFILL_CHUNK_TOKENS, max(8, runner.max_tokens // 4))
    sizes = (chunk, chunk, max(4, chunk // 8), chunk)
    span = runner.new_span(sum(sizes))
    for number, size in enumerate(sizes):
        context = span.length
        if context + size > runner.max_tokens:
            break
        ids = [(7 * (context + i) + 1) % runner.vocabulary for i in range(size)]
        began = clock.now()
        runner.prefill_chunk(span, ids)
        if number:
            model.observe(size, context, clock.now() - began)
    return model
