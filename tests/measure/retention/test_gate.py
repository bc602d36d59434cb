"""The first gate is passed by a model that is understood, and refuses one whose cache is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import kvferry.measure.retention.reader as reading
from kvferry.engines.transformers.capture import Captured, restore
from kvferry.errors import ModelError
from kvferry.handoff.mapping.shapes import LayerKv
from kvferry.measure.retention.gate import check_gate
from kvferry.measure.retention.reader import Reader


def test_a_model_that_is_understood_passes(reader: Reader) -> None:
    found = check_gate(reader, reader)
    assert found.injected_logit_error < 1e-4
    assert found.target_strip_error < 1e-4


def test_injected_kv_that_says_something_else_is_refused(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(model: Any, layers: Sequence[LayerKv], tokens: int) -> Any:
        return restore(model, [LayerKv(one.keys.roll(1, 1), one.values) for one in layers], tokens)

    monkeypatch.setattr(reading, "restore", shifted)
    with pytest.raises(ModelError, match="nothing that is injected can be judged"):
        check_gate(reader, reader)


def test_positions_that_are_not_understood_are_refused(model: Captured) -> None:
    class Misread(Captured):
        def strip_error(self) -> float:
            return 0.5

    wrong = Misread(
        model.model, name="tiny", weights_revision="1", tokenizer_revision="t", tokenizer=model.tokenizer
    )
    for pair in ((wrong, model), (model, wrong)):
        with pytest.raises(ModelError, match="not understood"):
            check_gate(Reader(pair[0]), Reader(pair[1]))
