"""The role decode: one node takes prefills over and answers behind them.

Owns the way from the receiving end of the wire to a runner, and the way out: when a hand-off is declined or
fails, it computes the prompt itself, and says so in the ledger. Both answers are the same text, except behind
mapped KV, which is lossy: it is taken only where the operator permits it and the request does not refuse it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ...clock import Clock
from ...config import RequestFields
from ...cost.transfer import LegModel
from ...engines.transformers.runner import Runner
from ...engines.transformers.span import Span
from ...gate.facts import Decision, Facts, GateTerms
from ...handoff.mapping.namespace import mapped_from, refusal
from ...handoff.transports.address import Listener
from ...handoff.wire.booking import book
from ...handoff.wire.failed import HandoffFailed
from ...handoff.wire.layers import Layers
from ...handoff.wire.legs import dominant_leg, legs_of
from ...handoff.wire.manifest import Manifest, require_same
from ...handoff.wire.memory import HostKv
from ...handoff.wire.pricing import Pricing, decide_handoff
from ...handoff.wire.receiver import Received, receive
from ...keys.namespace import Namespace
from ...outcomes import Outcome
from .chunks import PREFILL_CHUNK_TOKENS, measured_prefill, prefill_in_chunks
from .spans import WaitingSpan

__all__ = ["MAPPED", "Answered", "DecodeNode"]

MAPPED = "mapped"
"""The detail of a hand-off whose KV was mapped from another model."""


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
    mapped: str = ""
    """Digest of the map that made the KV which was used; empty for this model's own."""


@dataclass(slots=True)
class _Waiting:
    """The decode node as the receiving thread sees it."""

    node: DecodeNode
    answer_tokens: int
    token_ids: Sequence[int] | None
    permit_mapped: bool
    fields: RequestFields
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
        self.node.check(
            manifest,
            self.token_ids,
            self.answer_tokens,
            permit_mapped=self.permit_mapped,
            accept_mapped=self.fields.accept_mapped,
        )

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

    def check(
        self,
        manifest: Manifest,
        token_ids: Sequence[int] | None,
        answer_tokens: int,
        *,
        permit_mapped: bool = False,
        accept_mapped: bool | None = None,
    ) -> None:
        """Raise HandoffFailed (incompatible) for KV that this node cannot go on with.

        `permit_mapped` is the operator's word on KV that was mapped from another model, `accept_mapped` the
        request's, as it came here; the offer may bring the request's word as well, and a no counts from
        either way.
        """
        # A codec that was not agreed to is named as the field that differs.
        codec = manifest.codec if manifest.codec in self._codecs else self._codecs[0]
        wanted = self._namespace
        # What the codec does to numbers is asked below: here, whose KV it was.
        found = msgspec.structs.replace(Namespace.from_fields(manifest.fields), kv_dtype=wanted.kv_dtype)
        if mapped_from(found) is not None:
            words = {accept_mapped, manifest.accept_mapped}
            accepted = False if False in words else True if True in words else None
            if (reason := refusal(wanted, found, permitted=permit_mapped, accepted=accepted)) is not None:
                raise HandoffFailed(Outcome.INCOMPATIBLE, reason)
            wanted = msgspec.structs.replace(wanted, implementation=found.implementation)
        require_same(manifest, wanted, codec=codec, token_ids=token_ids)
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
        permit_mapped: bool = False,
        fields: RequestFields | None = None,
    ) -> Answered:
        """One request: its prompt from the hand-off, or from `token_ids`; the answer chosen greedily.

        `permit_mapped`: the operator lets KV that was mapped from another model, which is lossy, serve
        requests here. `fields` are the request's own, where it came to this node; its `accept_mapped`, there
        or in the offer, can refuse such KV, and the prompt is computed here then.

        Waits `wait_seconds` for the offer, and `seconds` for what was offered. The first forward pass begins
        as soon as the offer is taken, and waits layer by layer. Where the hand-off does not arrive, the
        prompt is computed here; raises HandoffFailed only where there is no prompt to compute, since no
        offer came that says it.
        """
        waiting = _Waiting(self, answer_tokens, token_ids, permit_mapped, fields or RequestFields())
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
        mapped = _map_of(received.manifest) if arrived else ""
        if mapped:
            received = msgspec.structs.replace(received, detail=received.detail or MAPPED)
        return Answered(
            received=received,
            mapped=mapped,
            ledger=book(prompt_tokens, handed, cause=received.cause),
            token_ids=said,
            first_token_seconds=None if first is None or began is None else first - began,
            legs=dict(legs),
            dominant=dominant_leg(received.sender, received.receiver) if arrived else "",
            local_prefill_seconds=computed,
        )


def _map_of(manifest: Manifest | None) -> str:
    """The digest of the map that made a hand-off's KV; empty where it is the model's own."""
    origin = None if manifest is None else mapped_from(Namespace.from_fields(manifest.fields))
    return "" if origin is None else origin.map
