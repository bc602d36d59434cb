"""The adapter for lm-evaluation-harness, with a base class that stands in for its own."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvferry.engines.transformers.capture import Captured
from kvferry.errors import MissingExtra, UsageError
from kvferry.measure.retention.lm_eval import arm_for_lm_eval
from kvferry.measure.retention.reader import Reader

from .texts import Identity, Noise, letters

CONTEXT, REST = letters(5, 60)[:44], letters(5, 60)[44:]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> type:
    class LM:
        def __init__(self) -> None:
            self.cache_hook = None

    names = ("lm_eval", "lm_eval.api", "lm_eval.api.model")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["lm_eval.api.model"].LM = LM  # type: ignore[attr-defined]
    return LM


def request(*args: Any) -> SimpleNamespace:
    return SimpleNamespace(args=args)


def likelihood(model: Captured, map_: Any, arm: str) -> tuple[float, bool]:
    (found,) = arm_for_lm_eval(model, model, map_, arm=arm).loglikelihood([request(CONTEXT, REST)])
    return found


def test_it_is_the_harness_s_own_kind(harness: type, model: Captured) -> None:
    assert isinstance(arm_for_lm_eval(model, model, Identity()), harness)


def test_the_identity_s_likelihood_is_the_model_s_own(harness: type, model: Captured) -> None:
    reader = Reader(model)
    ids = reader.tokens(CONTEXT + REST)[0]
    (said,) = reader.behind(None, 0, ids[:1], [ids[1:]])
    own = sum(float(said[at, token]) for at, token in enumerate(ids[1:]) if at + 1 >= len(CONTEXT))
    assert likelihood(model, Identity(), "mapped")[0] == pytest.approx(own, rel=1e-4)
    assert likelihood(model, Identity(), "target")[0] == pytest.approx(own, rel=1e-4)


def test_the_arm_decides(harness: type, model: Captured) -> None:
    assert likelihood(model, Noise(), "mapped")[0] < likelihood(model, Noise(), "target")[0]
    assert likelihood(model, Identity(), "none")[0] < likelihood(model, Identity(), "target")[0]


def test_text_is_generated_up_to_an_end(harness: type, model: Captured) -> None:
    told = arm_for_lm_eval(model, model, Identity())
    whole, ended = told.generate_until(
        [request(CONTEXT, {"max_gen_toks": 12}), request(CONTEXT, {"until": [" "], "max_gen_toks": 12})]
    )
    assert len(whole) == 12
    assert ended == whole.split(" ")[0]


def test_what_is_generated_is_what_is_likeliest(harness: type, model: Captured) -> None:
    told = arm_for_lm_eval(model, model, Identity())
    (said,) = told.generate_until([request(CONTEXT, {"max_gen_toks": 6})])
    (found,) = told.loglikelihood([request(CONTEXT, said)])
    assert found[1] is True


def test_a_rolling_likelihood_is_refused(harness: type, model: Captured) -> None:
    with pytest.raises(UsageError, match="no context to hand over"):
        arm_for_lm_eval(model, model, Identity()).loglikelihood_rolling([request(CONTEXT)])


def test_sampling_is_refused(harness: type, model: Captured) -> None:
    with pytest.raises(UsageError, match="greedily"):
        arm_for_lm_eval(model, model, Identity()).generate_until([request(CONTEXT, {"do_sample": True})])


def test_an_unknown_arm_is_refused(harness: type, model: Captured) -> None:
    with pytest.raises(UsageError, match="no arm 'wrong'"):
        arm_for_lm_eval(model, model, Identity(), arm="wrong")


def test_without_the_harness_it_is_named(model: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(MissingExtra, match="lm-eval"):
        arm_for_lm_eval(model, model, Identity())
