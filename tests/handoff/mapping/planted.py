"""Two models whose KV is related by a map that the test knows: different in layers, heads and widths."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvferry.handoff.mapping.rope import Rope, apply_rope
from kvferry.handoff.mapping.rows import Sequences
from kvferry.handoff.mapping.shapes import LayerKv, LayerShape, ModelKv, Prefill

__all__ = ["Planted", "Source", "model_kv", "text_of"]

VOCABULARY = 997


def model_kv(
    name: str, layers: int, heads: int, width: int, *, theta: float = 1e4, query_heads: int | None = None
) -> ModelKv:
    """A model with equal layers."""
    shape = LayerShape(
        kv_heads=heads,
        query_heads=heads if query_heads is None else query_heads,
        key_width=width,
        value_width=width,
        rope=Rope(kind="default", width=width, rotated=width, theta=theta),
    )
    return ModelKv(
        name=name, weights_revision=f"{name}-1", tokenizer="t", position="p", layers=(shape,) * layers
    )


class Source:
    """Keys and values drawn for every token of a vocabulary: rich enough to tell heads and layers apart."""

    def __init__(self, kv: ModelKv, seed: int = 1, key_bias: float = 0.0) -> None:
        self.kv = kv
        generator = torch.Generator().manual_seed(seed)
        self.keys, self.values = (
            [
                torch.randn(VOCABULARY, shape.kv_heads, shape.key_width, generator=generator)
                for shape in kv.layers
            ]
            for _ in range(2)
        )
        self.bias = key_bias

    def plain(self, token_ids: Sequence[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Keys before they are turned, and values: by layer, [heads, tokens, width]."""
        ids = torch.tensor(list(token_ids)) % VOCABULARY
        keys = [table[ids].transpose(0, 1) + self.bias for table in self.keys]
        return keys, [table[ids].transpose(0, 1) for table in self.values]

    def prefill(self, token_ids: Sequence[int], *, offset: int = 0, queries: bool = False) -> Prefill:
        return turned(self.kv, *self.plain(token_ids), offset, queries)


class Planted:
    """Its layer t is a linear map of source layer `from_layer[t]`, head h of source head `from_head[h]`."""

    def __init__(
        self,
        kv: ModelKv,
        source: Source,
        from_layer: Sequence[int],
        from_head: Sequence[int],
        *,
        noise: float = 0.0,
        bent: bool = False,
    ) -> None:
        self.kv, self.source = kv, source
        self.from_layer, self.from_head, self.noise, self.bent = from_layer, from_head, noise, bent
        generator = torch.Generator().manual_seed(5)
        width = source.kv.layers[0].key_width
        self.maps = [
            torch.randn(2, shape.kv_heads, width, shape.key_width, generator=generator) / width**0.5
            for shape in kv.layers
        ]

    def plain(self, token_ids: Sequence[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        keys, values = self.source.plain(token_ids)
        found: list[list[torch.Tensor]] = [[], []]
        generator = torch.Generator().manual_seed(int(sum(token_ids)))
        for layer, maps in zip(self.from_layer, self.maps, strict=True):
            for kind, (part, one) in enumerate(zip((keys[layer], values[layer]), maps, strict=True)):
                heads = part[list(self.from_head)]
                mapped = heads @ one + 0.5
                if self.bent:
                    mapped = mapped + mapped.square()
                mapped = mapped + self.noise * torch.randn(mapped.shape, generator=generator)
                found[kind].append(mapped)
        return found[0], found[1]

    def prefill(self, token_ids: Sequence[int], *, offset: int = 0, queries: bool = False) -> Prefill:
        return turned(self.kv, *self.plain(token_ids), offset, queries)


def turned(
    kv: ModelKv,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    offset: int,
    queries: bool,
) -> Prefill:
    tokens = keys[0].shape[1]
    positions = torch.arange(offset, offset + tokens)
    layers = [
        LayerKv(apply_rope(key, shape.rope, positions), value)
        for key, value, shape in zip(keys, values, kv.layers, strict=True)
    ]
    generator = torch.Generator().manual_seed(tokens)
    asked = [
        torch.randn(shape.query_heads, tokens, shape.key_width, generator=generator) for shape in kv.layers
    ]
    return Prefill(
        layers,
        positions,
        queries=asked if queries else [],
        scales=[shape.key_width**-0.5 for shape in kv.layers] if queries else [],
    )


def text_of(documents: int = 16, tokens: int = 64, seed: int = 3) -> Sequences:
    """Random token ids as training, validation and test documents."""
    generator = torch.Generator().manual_seed(seed)

    def part(name: str, count: int) -> list[tuple[str, list[int]]]:
        return [
            (f"{name}-{at}", torch.randint(0, 100_000, (tokens,), generator=generator).tolist())
            for at in range(count)
        ]

    return Sequences(part("train", documents), part("validation", 3), part("test", 3))
