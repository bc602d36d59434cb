"""What a codec of the wire costs on one text: in logits, in likelihood, and in what the model says.

The prefix is computed once, cut into the very chunks of a hand-off, encoded, decoded, and gone on with.
Everything is compared with the same prefix as it was computed: `raw` is the control.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from ...engines.transformers.runner import Runner
from ...handoff.wire.manifest import Manifest, make_manifest
from ...handoff.wire.memory import HostKv, copy_rows
from ...handoff.wire.plan import Plan
from ...keys.namespace import Namespace
from ..quality.carried import fork
from ..quality.codecs import prefix_kv
from ..quality.continuation import agreeing_tokens, greedy, mean_nll, text_logits

__all__ = ["WireQuality", "crossed", "measure_wire"]


class WireQuality(msgspec.Struct, frozen=True, kw_only=True):
    """One codec on one text."""

    bytes_per_token: float
    logit_error: float
    """Root mean square difference of logits, over their standard deviation; mean over positions."""
    worst_logit_error: float
    """Of the position where it is largest."""
    kl: float
    """KL(exact || carried) of the next token, nats, mean over positions."""
    nll_difference: float
    """Nats a token of the text's continuation; more than 0 where the codec made it less likely."""
    top1_agreement: float
    greedy_agreement: float
    """Share of the tokens of a greedy continuation before the first that differs."""


def crossed(kv: Any, manifest: Manifest) -> Any:
    """A copy of `kv` [layers, 2, KV heads, tokens, width] as a receiver of this hand-off would have it."""
    plan = Plan(manifest)
    source, arrived = HostKv.of_tensor(kv.contiguous()), kv.clone()
    sink = HostKv.of_tensor(arrived)
    for index in range(plan.chunks):
        chunk = plan.chunk(index)
        codec = plan.codec(chunk)
        block = memoryview(bytearray(chunk.block_bytes))
        wire = memoryview(bytearray(chunk.payload_bytes))
        copy_rows(source.read(chunk.layer, chunk.start, chunk.stop), block)
        codec.encode_into(block, wire)
        codec.decode_into(wire, block)
        copy_rows(sink.room(chunk.layer, chunk.start, chunk.stop), block, back=True)
    return arrived


def measure_wire(
    runner: Runner,
    namespace: Namespace,
    token_ids: Sequence[int],
    codecs: Sequence[str],
    *,
    prefix_tokens: int,
    greedy_tokens: int,
) -> dict[str, WireQuality]:
    """What each codec does to the first `prefix_tokens` of a text, and so to the rest of it.

    Raises ValueError where fewer than two tokens follow.
    """
    text, following = token_ids[prefix_tokens:-1], token_ids[prefix_tokens + 1 :]
    if not text:
        raise ValueError(f"{len(token_ids)} tokens leave nothing to continue behind {prefix_tokens}")
    exact = prefix_kv(runner, token_ids[:prefix_tokens])
    capacity = prefix_tokens + max(len(text), greedy_tokens)
    logits = text_logits(runner, fork(runner, exact, capacity), text)
    said = greedy(runner, fork(runner, exact, capacity), text[0], greedy_tokens)
    nll = mean_nll(logits, following)
    found = {}
    for name in codecs:
        manifest = make_manifest(
            namespace,
            token_ids[: prefix_tokens + 1],
            handoff_id="quality",
            layers=runner.layers,
            kv_heads=runner.kv_heads,
            head_dim=runner.head_dim,
            dtype=runner.layout.dtype_name,
            codec=name,
        )
        kv = crossed(exact, manifest)
        theirs = text_logits(runner, fork(runner, kv, capacity), text)
        repeated = greedy(runner, fork(runner, kv, capacity), text[0], greedy_tokens)
        ours, carried = logits.double().numpy(), theirs.double().numpy()
        errors = np.sqrt(((ours - carried) ** 2).mean(-1)) / ours.std(-1)
        found[name] = WireQuality(
            bytes_per_token=Plan(manifest).payload_bytes / prefix_tokens,
            logit_error=float(errors.mean()),
            worst_logit_error=float(errors.max()),
            kl=_mean_kl(ours, carried),
            nll_difference=mean_nll(theirs, following) - nll,
            top1_agreement=float((ours.argmax(-1) == carried.argmax(-1)).mean()),
            greedy_agreement=agreeing_tokens(repeated, said) / greedy_tokens,
        )
    return found


def _mean_kl(exact: Any, carried: Any) -> float:
    p, q = _log_softmax(exact), _log_softmax(carried)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def _log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
