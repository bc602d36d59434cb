"""Any arm as a model of lm-evaluation-harness, for those who have its data.

What the harness calls a request's context is what is handed over: the source prefills it, the arm makes the
target's KV of it, and the target reads on. A rolling likelihood has no context, so nothing would be handed
over: it is refused rather than answered by the target alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...engines.transformers.capture import Captured
from ...errors import MissingExtra, UsageError
from ...handoff.mapping.contract import KvMap
from .arms import Handed, hand_over, raw_refusal
from .reader import Reader, read_context
from .scoring import reread_of

__all__ = ["ARMS", "arm_for_lm_eval"]

ARMS = ("target", "mapped", "raw", "random", "none")
"""Those that one request can be put to by itself."""

_GENERATED_TOKENS = 256


def arm_for_lm_eval(
    source: Captured, target: Captured, map_: KvMap, *, arm: str = "mapped", hold_back: int = 1, seed: int = 0
) -> Any:
    """An `lm_eval.api.model.LM`; give it to `lm_eval.simple_evaluate(model=...)`.

    Raises `MissingExtra` where lm-evaluation-harness is not installed, `UsageError` for an arm that these
    two models have not.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise MissingExtra("an arm as a model of lm-evaluation-harness", "lm-eval") from error
    if arm not in ARMS:
        raise UsageError(f"there is no arm {arm!r} for lm-evaluation-harness; there are {', '.join(ARMS)}")
    if arm == "raw" and (reason := raw_refusal(source.kv, target.kv)):
        raise UsageError(f"these models have no arm raw: {reason}")
    told = _Arm(Reader(source), Reader(target), map_, arm, hold_back, seed)

    class HandedOverLm(LM):  # type: ignore[misc,unused-ignore]
        """One arm of a hand-off."""

        def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
            return [told.likelihood(*request.args) for request in requests]

        def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
            raise UsageError(
                "a rolling likelihood has no context to hand over; choose tasks with a context and a "
                "continuation, or ones that generate"
            )

        def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
            return [told.generate(*request.args) for request in requests]

    return HandedOverLm()


class _Arm:
    """The three questions of the harness, put to one arm."""

    def __init__(
        self, source: Reader, target: Reader, map_: KvMap, arm: str, hold_back: int, seed: int
    ) -> None:
        self.source, self.target, self.map = source, target, map_
        self.arm, self.hold_back, self.seed = arm, hold_back, seed

    def likelihood(self, context: str, continuation: str) -> tuple[float, bool]:
        """(log-likelihood of the continuation, whether greedy decoding would say it)."""
        context = context or "\n"
        held, reread = reread_of(self._hand(context), self.arm, self.hold_back)
        ids = self.target.continued(context, continuation)
        (said,) = self.target.behind(held.layers, held.tokens, reread, [ids])
        wanted = torch.tensor(ids, device=said.device)
        return float(said.gather(1, wanted[:, None]).sum()), bool((said.argmax(-1) == wanted).all())

    def generate(self, context: str, options: dict[str, Any] | None = None) -> str:
        """Greedy text up to the first of `until`; the harness's other options would need sampling."""
        settings = options or {}
        if settings.get("do_sample") and settings.get("temperature", 1.0) > 0:
            raise UsageError("this arm decodes greedily: set do_sample to false or temperature to 0")
        until = settings.get("until") or []
        ends = [until] if isinstance(until, str) else list(until)
        held, reread = reread_of(self._hand(context or "\n"), self.arm, self.hold_back)
        tokenizer = self.target.model.tokenizer
        said: list[int] = []
        for _ in range(int(settings.get("max_gen_toks", _GENERATED_TOKENS))):
            (logp,) = self.target.behind(held.layers, held.tokens, [*reread, *said], [[0]])
            token = int(logp[0].argmax())
            if token == tokenizer.eos_token_id:
                break
            said.append(token)
            text = str(tokenizer.decode(said))
            if found := [at for end in ends if end and (at := text.find(end)) >= 0]:
                return text[: min(found)]
        return str(tokenizer.decode(said))

    def _hand(self, context: str) -> Handed:
        arms = tuple({self.arm, "mapped"})
        read = read_context(context, self.source, self.target)
        return hand_over(read, self.source, self.target, self.map, arms=arms, seed=self.seed)
