"""The role prefill: one node computes a prompt's KV and hands it over.

Owns the way from a runner to the sending end of the wire, through a map where the receiver is another model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from ...clock import Clock
from ...config import RequestFields
from ...engines.transformers.runner import Runner
from ...engines.transformers.span import Span
from ...handoff.transports.contract import Outgoing
from ...handoff.wire.failed import HandoffFailed
from ...handoff.wire.layers import Layers
from ...handoff.wire.manifest import DEFAULT_CHUNK_TOKENS, make_manifest
from ...handoff.wire.memory import HostKv
from ...handoff.wire.sender import Sent, send
from ...keys.namespace import Namespace
from ...outcomes import Outcome
from .chunks import PREFILL_CHUNK_TOKENS, measured_prefill, prefill_in_chunks
from .mapped import KvCarrier
from .spans import TellingSpan

__all__ = ["HandedOver", "PrefillNode"]


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-off on the prefill node."""

    sent: Sent
    prompt_tokens: int
    payload_bytes: int
    prefill_seconds: float
    """Of the prefill, whether it came before the offer or behind it; 0 where it never began."""
    map_seconds: float = 0.0
    """Of the map, where the receiver is another model."""
    mapped: str = ""
    """The map's digest."""
    total_seconds: float


class PrefillNode:
    """Computes prompts and hands them over. One request at a time.

    With `carrier`, what it hands over is mapped KV, for another model.
    """

    def __init__(
        self,
        runner: Runner,
        namespace: Namespace,
        secret: bytes,
        clock: Clock,
        *,
        carrier: KvCarrier | None = None,
    ) -> None:
        self._runner, self._namespace, self._carrier = runner, namespace, carrier
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
        fields: RequestFields | None = None,
    ) -> HandedOver:
        """Send the KV of all but the last token.

        Of the request's `fields`, its word on mapped KV goes with the offer.

        With `sunk` the prefill is done before the offer; without, the receiver is asked first, and layers
        cross while later ones are computed. Raises HandoffFailed, ValueError for a prompt of one token.
        """
        if len(token_ids) < 2:
            raise ValueError("a prompt of one token leaves nothing to hand over")
        runner, tokens = self._runner, len(token_ids) - 1
        carrier = self._carrier
        layers = Layers(runner.layers if carrier is None else carrier.layers, self._clock)
        if carrier is None:
            span: Span = TellingSpan(runner.layout, tokens, tokens, layers)
            kv = span.kv
        else:
            span, kv = runner.new_span(tokens), carrier.room(tokens)
        began = self._clock.now()
        took: list[float] = []

        def compute() -> None:
            start = self._clock.now()
            try:
                prefill_in_chunks(runner, span, token_ids[:-1], self._clock, self.prefill)
                took.append(self._clock.now() - start)
                if carrier is not None:
                    carrier.carry(span.kv, tokens, kv, layers)
                took.append(self._clock.now() - start - took[0])
            except BaseException as error:
                layers.fail(HandoffFailed(Outcome.FAILED, f"the prefill failed: {error}"))
                raise

        thread = threading.Thread(target=compute, name="kvferry-prefill", daemon=True)
        if sunk:
            compute()
        manifest = make_manifest(
            self._namespace if carrier is None else carrier.namespace,
            token_ids,
            handoff_id=handoff_id,
            layers=layers.total,
            kv_heads=(carrier or runner).kv_heads,
            head_dim=(carrier or runner).head_dim,
            dtype=(carrier or runner.layout).dtype_name,
            codec=codec,
            chunk_tokens=chunk_tokens,
            accept_mapped=None if fields is None else fields.accept_mapped,
            sunk=sunk,
            prefill_seconds=self._expected_seconds(tokens),
        )
        sent = send(
            HostKv.of_tensor(kv),
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
            map_seconds=took[1] if carrier is not None and len(took) > 1 else 0.0,
            mapped="" if carrier is None else carrier.digest,
            total_seconds=self._clock.now() - began,
        )

    def _expected_seconds(self, tokens: int) -> float:
        """At the high quantile: what is promised to the receiver."""
        seconds = self.prefill.seconds(tokens, 0, PREFILL_CHUNK_TOKENS)
        seconds *= max(1.0, self.prefill.spread.quantile(0.95))
        return seconds if self._carrier is None else seconds + tokens * self._carrier.seconds_per_token
