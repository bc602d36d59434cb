"""Two small models' KV, made up, and texts as both of them read them."""

from __future__ import annotations

import torch

from kvferry.handoff.crossing.network import CrossShape
from kvferry.handoff.mapping.contract import Context
from kvferry.handoff.mapping.rope import Rope, apply_rope
from kvferry.handoff.mapping.shapes import LayerKv, LayerShape, ModelKv, Prefill


def model(name: str, layers: int, heads: int, width: int) -> ModelKv:
    rope = Rope(kind="default", width=width, rotated=width)
    layer = LayerShape(kv_heads=heads, query_heads=2 * heads, key_width=width, value_width=width, rope=rope)
    return ModelKv(
        name=name, weights_revision=name, tokenizer=name, position="default", layers=(layer,) * layers
    )


SOURCE, TARGET = model("ours", 3, 1, 8), model("theirs", 2, 2, 4)


def shape(*, width: int = 16, blocks: int = 1, code_width: int = 4) -> CrossShape:
    return CrossShape(
        source=SOURCE,
        target=TARGET,
        reads=(0, 2),
        width=width,
        blocks=blocks,
        heads=2,
        vocabulary=30,
        code_width=code_width,
    )


def context(tokens: int, seed: int = 0) -> Context:
    """Two target tokens for each three of the source, a mark before the source's."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 30, (tokens,), generator=generator).tolist()
    target = [(3 * at, 3 * at + 3) for at in range(tokens)]
    source = [(0, 0), *((2 * at, 2 * at + 2) for at in range(3 * tokens // 2 + tokens % 2))]
    return Context("x" * 3 * tokens, tuple(range(len(source))), tuple(ids), tuple(source), tuple(target))


def prefill(kv: ModelKv, tokens: int, seed: int = 0, start: int = 0) -> Prefill:
    """KV whose stripped keys do not depend on where they stand."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.arange(start, start + tokens)
    layers = []
    for one in kv.layers:
        keys = torch.randn(one.kv_heads, tokens, one.key_width, generator=generator)
        values = torch.randn(one.kv_heads, tokens, one.value_width, generator=generator)
        layers.append(LayerKv(apply_rope(keys, one.rope, positions), values))
    return Prefill(layers, positions)
