"""KV whose layers a forward pass waits for, or tells of, one by one.

The model asks its cache layer by layer; that is the moment at which a receiver waits until the layer has
arrived, and a sender learns that it is computed.
"""

from __future__ import annotations

from typing import Any

from ...engines.transformers.layout import KvLayout
from ...engines.transformers.span import Span
from ...handoff.wire.layers import Layers

__all__ = ["TellingSpan", "WaitingSpan"]


class WaitingSpan(Span):
    """The first `tokens` come from elsewhere: attention to a layer waits until it is whole.

    Raises HandoffFailed out of the forward pass where it never will be; what the span holds is then of no
    use.
    """

    def __init__(self, layout: KvLayout, capacity: int, tokens: int, layers: Layers, deadline: float) -> None:
        super().__init__(layout, capacity)
        self._layers, self._deadline = layers, deadline
        self.length = tokens

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """One layer's new tokens, behind those that came."""
        self._layers.wait(layer_idx, self._deadline)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


class TellingSpan(Span):
    """Tells `layers` of each layer that has all of its first `tokens`."""

    def __init__(self, layout: KvLayout, capacity: int, tokens: int, layers: Layers) -> None:
        super().__init__(layout, capacity)
        self._layers, self._tokens = layers, tokens

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """One layer's new tokens."""
        answer = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if self.get_seq_length(layer_idx) >= self._tokens:
            self._layers.advance(layer_idx + 1)
        return answer
