"""Exercise 13.2: mapping keys with and without their positions, and what happens past the calibrated ones.

Run it with `python examples/exercise_13_2.py`. It needs the extra transformers, for torch alone; two toy
models with random weights, no download, seconds on one core.

The two models are relatives: they see the same hidden states, and each target head is a source head in
another basis, plus noise of a third of the weights' spread. Keys are really turned to their positions; both
maps are fitted on the same rows, are applied to the same caches, and are compared with the same native keys,
as the target's cache holds them. The map of stripped keys turns its result again; the raw map reads and
writes turned keys.

The change of basis mixes numbers whose pairs turn slowly, and those are the larger ones, as in real models,
whose content is carried by slow pairs. Within the calibrated positions such pairs hardly turn, so a raw map
seems to work: stripping buys nothing there. It buys all that lies beyond, since the same map of turned keys
would have to be another at each position. Values know no position, and both maps do the same to them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from kvferry.handoff.mapping.judging import Tally, attention_cosine
from kvferry.handoff.mapping.mapper import Mapper
from kvferry.handoff.mapping.passing import fit_map
from kvferry.handoff.mapping.rope import Rope, apply_rope
from kvferry.handoff.mapping.rows import Recipe, Sequences
from kvferry.handoff.mapping.shapes import LayerKv, LayerShape, ModelKv, Prefill

LAYERS, HEADS, WIDTH, HIDDEN = 6, 4, 32, 128
VOCABULARY, CALIBRATED, NOISE = 1_000, 256, 0.35
LOUD = 2.5
"""How much larger the weights of slow pairs are."""
SLOW = 0.25
"""Radians: a pair that turns no further over the calibrated positions is slow."""
STARTS = (0, 256, 1_024, 4_096, 16_384)
ROPE = Rope(kind="default", width=WIDTH, rotated=WIDTH, theta=10_000.0)


class Toy:
    """Keys, values and queries straight from the hidden states of a token: a model without depth."""

    def __init__(self, name: str, weights: torch.Tensor) -> None:
        shape = LayerShape(kv_heads=HEADS, query_heads=HEADS, key_width=WIDTH, value_width=WIDTH, rope=ROPE)
        self.kv = ModelKv(
            name=name, weights_revision=name, tokenizer="toy", position="toy", layers=(shape,) * LAYERS
        )
        self.weights = weights
        """[q, k or v, layer, head, hidden, width]"""
        self.states = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1))

    def prefill(self, token_ids: Sequence[int], *, offset: int = 0, queries: bool = False) -> Prefill:
        hidden = self.states[torch.tensor(list(token_ids))]
        positions = torch.arange(offset, offset + len(token_ids))
        query, key, value = (hidden @ part for part in self.weights)
        layers = [
            LayerKv(apply_rope(keys, ROPE, positions), values)
            for keys, values in zip(key, value, strict=True)
        ]
        asked = [apply_rope(one, ROPE, positions) for one in query] if queries else []
        return Prefill(layers, positions, queries=asked, scales=[WIDTH**-0.5] * len(asked))


def relatives() -> tuple[Toy, Toy]:
    """The source, and a target whose heads are the source's in another basis and another order."""
    generator = torch.Generator().manual_seed(2)
    spread = HIDDEN**-0.5
    source = torch.randn(3, LAYERS, HEADS, HIDDEN, WIDTH, generator=generator) * spread
    basis = torch.eye(WIDTH).repeat(3, LAYERS, HEADS, 1, 1)
    half = WIDTH // 2
    turning = ROPE.frequencies() * CALIBRATED
    slow = [at for pair in range(half) if turning[pair] < SLOW for at in (pair, pair + half)]
    mixed = torch.linalg.qr(torch.randn(3, LAYERS, HEADS, len(slow), len(slow), generator=generator))[0]
    source[1][..., slow] *= LOUD
    for row, at in enumerate(slow):
        basis[..., at, slow] = mixed[..., row, :]
    order = torch.randperm(HEADS, generator=generator)
    noise = torch.randn(source.shape, generator=generator) * source.std(-2, keepdim=True) * NOISE
    return Toy("small", source), Toy("large", source[:, :, order] @ basis + noise)


def text() -> Sequences:
    """Random tokens as documents of the calibrated length."""
    generator = torch.Generator().manual_seed(3)

    def part(name: str, count: int) -> list[tuple[str, list[int]]]:
        return [
            (f"{name}-{at}", torch.randint(0, VOCABULARY, (CALIBRATED,), generator=generator).tolist())
            for at in range(count)
        ]

    return Sequences(part("train", 16), part("validation", 2), part("test", 2))


def judge(
    mapper: Mapper, source: Toy, target: Toy, ids: Sequence[int], start: int
) -> tuple[float, float, float]:
    """R2 of keys and of values as the target's cache holds them, and the cosine of attention's output."""
    native = target.prefill(ids, offset=start, queries=True)
    mapped = mapper.apply(source.prefill(ids, offset=start))
    keys, values, cosine = 0.0, 0.0, 0.0
    for at, (ours, theirs) in enumerate(zip(mapped.layers, native.layers, strict=True)):
        tallies = Tally(), Tally()
        tallies[0].add(theirs.keys, ours.keys)
        tallies[1].add(theirs.values, ours.values)
        shape, scale = target.kv.layers[at], native.scales[at]
        keys += tallies[0].mean() / LAYERS
        values += tallies[1].mean() / LAYERS
        cosine += attention_cosine(native.queries[at], shape, scale, theirs, ours) / LAYERS
    return keys, values, cosine


def main() -> int:
    torch.set_num_threads(1)
    source, target = relatives()
    maps = {
        name: fit_map(
            source,
            target,
            text(),
            Recipe(inputs="local", weighted=False, most_layers=1, stripped=name == "stripped", stride=2),
        )
        for name in ("stripped", "raw")
    }
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, VOCABULARY, (CALIBRATED,), generator=generator).tolist()
    print(f"calibrated on positions 0 to {CALIBRATED - 1}; new text, keys compared as the cache holds them")
    print("positions          keys R2           values R2         attention cosine")
    print("                   stripped   raw    stripped   raw    stripped   raw")
    found: dict[tuple[str, int], tuple[float, float, float]] = {}
    for start in STARTS:
        for name, mapper in maps.items():
            found[name, start] = judge(mapper, source, target, ids, start)
        pairs = zip(found["stripped", start], found["raw", start], strict=True)
        cells = "    ".join(f"{ours:8.3f} {theirs:6.3f}" for ours, theirs in pairs)
        print(f"{start:>6,} to {start + CALIBRATED - 1:<6,}   {cells}")
    far = STARTS[-1]
    held = found["stripped", 0][0] - found["stripped", far][0] < 0.02
    collapsed = found["raw", 0][0] - found["raw", far][0] > 0.3
    print(f"stripped {'holds' if held else 'DOES NOT HOLD'} past the calibrated positions, ", end="")
    print(f"raw {'collapses' if collapsed else 'DOES NOT COLLAPSE'}")
    return 0 if held and collapsed else 1


if __name__ == "__main__":
    sys.exit(main())
