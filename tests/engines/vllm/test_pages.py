from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.engines.vllm.pages import Pages
from kvferry.engines.vllm.pages_cuda import StagedCopies
from kvferry.engines.vllm.strips import layer_text, strips_of
from kvferry.errors import EngineError

ORDERS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
DTYPES = [torch.bfloat16, torch.float32, torch.uint8, torch.float8_e4m3fn, torch.int8]


@dataclass
class Cache:
    """An engine's KV cache: its tensors by layer, where blocks are counted, and everything allocated."""

    blocks: int
    groups: list[list[str]] = field(default_factory=list)
    layers: dict[str, torch.Tensor | list[torch.Tensor]] = field(default_factory=dict)
    axis: int = 0
    parts: int = 1
    storages: list[torch.Tensor] = field(default_factory=list)

    def storage(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        raw = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8)
        self.storages.append(raw)
        return raw.view(dtype)

    def add(self, name: str, tensor: torch.Tensor | list[torch.Tensor], group: int = 0) -> None:
        while len(self.groups) <= group:
            self.groups.append([])
        self.groups[group].append(name)
        self.layers[name] = tensor

    def views(self, group: int, block: int) -> list[torch.Tensor]:
        """What the engine reads as this block, tensor by tensor, by plain indexing."""
        found: list[torch.Tensor] = []
        for name in self.groups[group]:
            held = self.layers[name]
            for tensor in held if isinstance(held, list) else [held]:
                rows = slice(block * self.parts, (block + 1) * self.parts)
                found.append(tensor[rows] if self.axis == 0 else tensor[:, rows])
        return found

    def bytes_of(self, group: int, block: int) -> bytes:
        """A block as it should be copied: every tensor's part in the order of memory."""
        parts = []
        for view in self.views(group, block):
            order = sorted(range(view.ndim), key=lambda axis: -view.stride(axis))
            parts.append(view.permute(order).contiguous().view(torch.uint8).numpy().tobytes())
        return b"".join(parts)

    def everything(self) -> list[bytes]:
        return [raw.numpy().tobytes() for raw in self.storages]


def packed(order: str, blocks: int, layers: int, heads: int, dtype: torch.dtype, pad: int = 0) -> Cache:
    """One storage for all layers, as vLLM's Model Runner V2 places them; `pad` elements end every page."""
    cache, shape = Cache(blocks), (layers, blocks, heads, 4, 6)
    strides, step = [0] * 5, 1
    for place, axis in reversed(list(enumerate(ORDERS[order]))):
        if place == 1:
            step += pad
        strides[axis] = step
        step *= shape[axis]
    whole = cache.storage(step + 8, dtype).as_strided(shape, strides, 8)
    for layer in range(layers):
        cache.add(f"model.layers.{layer}.attn", whole[layer])
    return cache


def split_kv(blocks: int, layers: int, heads: int, dtype: torch.dtype) -> Cache:
    cache = Cache(blocks, axis=1)
    for layer in range(layers):
        shape = (2, blocks, 4, heads, 3)
        cache.add(f"model.layers.{layer}.attn", cache.storage(prod(shape), dtype).view(shape))
    return cache


def latent(blocks: int, layers: int, heads: int, dtype: torch.dtype) -> Cache:
    cache = Cache(blocks)
    for layer in range(layers):
        shape = (blocks, 4, 9)
        cache.add(f"model.layers.{layer}.mla", cache.storage(prod(shape), dtype).view(shape))
    return cache


def two_groups(blocks: int, layers: int, heads: int, dtype: torch.dtype) -> Cache:
    """Groups that overlay each other: a block belongs to one of them at a time."""
    cache, shape = Cache(blocks), (layers, blocks, heads, 4, 6)
    whole = cache.storage(prod(shape), dtype).view(shape)
    for group in range(2):
        for layer in range(layers):
            cache.add(f"model.layers.{2 * layer + group}.attn", whole[layer], group)
    return cache


def kernel_blocks(blocks: int, layers: int, heads: int, dtype: torch.dtype) -> Cache:
    cache, shape = Cache(blocks, parts=2), (layers, blocks * 2, heads, 2, 6)
    whole = cache.storage(prod(shape), dtype).view(shape)
    for layer in range(layers):
        cache.add(f"model.layers.{layer}.attn", whole[layer])
    return cache


def states(blocks: int, layers: int, heads: int, dtype: torch.dtype) -> Cache:
    """Layers with a convolution and a recurrent state in one padded page, beside one of attention."""
    cache, page = Cache(blocks), 5 + 3 * heads + 2
    for layer in range(layers):
        raw = cache.storage(blocks * page, dtype)
        conv = raw.as_strided((blocks, 5), (page, 1))
        ssm = raw.as_strided((blocks, heads, 3), (page, 3, 1), 5)
        cache.add(f"model.layers.{layer}.mixer", [conv, ssm])
    shape = (blocks, heads, 4, 6)
    cache.add(f"model.layers.{layers}.attn", cache.storage(prod(shape), dtype).view(shape))
    return cache


Maker = Callable[[int, int, int, torch.dtype], Cache]


def in_order(order: str, pad: int = 0) -> Maker:
    return lambda blocks, layers, heads, dtype: packed(order, blocks, layers, heads, dtype, pad)


MAKERS: dict[str, Maker] = {
    **{order: in_order(order) for order in ORDERS},
    "padded LBHNC": in_order("LBHNC", 8),
    "padded BLNHC": in_order("BLNHC", 3),
    "split_kv": split_kv,
    "latent": latent,
    "two_groups": two_groups,
    "kernel_blocks": kernel_blocks,
    "states": states,
}


def on_host(cache: Cache) -> Pages:
    return Pages.of(cache.layers, cache.groups, cache.blocks)


def staged(cache: Cache) -> Pages:
    """The device's way of copying, on the host, with room for two blocks or so at a time."""
    host = on_host(cache)
    strips = [strips_of(i, names, cache.layers, cache.blocks)[1] for i, names in enumerate(cache.groups)]
    room = 2 * max(group.block_bytes for group in host.groups)
    return Pages(host.groups, cache.blocks, StagedCopies(strips, torch.device("cpu"), room))


def buffers(pages: Pages, group: int, count: int, pin: bool = False) -> list[memoryview]:
    size = pages.groups[group].block_bytes
    arena = memoryview(bytearray(size * max(1, count)))
    if pin:
        pages.pin(arena)
    return [arena[i * size : (i + 1) * size] for i in range(count)]


@pytest.mark.parametrize("way", [on_host, staged])
@pytest.mark.parametrize("pin", [False, True])
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(MAKERS)),
    st.sampled_from(DTYPES),
    st.integers(3, 7),
    st.integers(1, 4),
    st.integers(1, 3),
    st.data(),
)
def test_blocks_cross_to_other_ids_of_another_engine_and_touch_nothing_else(
    way: Callable[[Cache], Pages],
    pin: bool,
    kind: str,
    dtype: torch.dtype,
    blocks: int,
    layers: int,
    heads: int,
    data: st.DataObject,
) -> None:
    source, target = (MAKERS[kind](blocks, layers, heads, dtype) for _ in range(2))
    group = data.draw(st.integers(0, len(source.groups) - 1))
    ids = st.lists(st.integers(0, blocks - 1), unique=True, min_size=blocks - 1, max_size=blocks - 1)
    taken, given = data.draw(ids), data.draw(ids)
    reader, writer = way(source), way(target)
    into = buffers(reader, group, len(taken), pin)
    if pin:
        writer.pin(memoryview(into[0].obj))
    before = source.everything()

    reader.extract(group, taken, into)
    assert [bytes(buffer) for buffer in into] == [source.bytes_of(group, block) for block in taken]
    assert source.everything() == before

    writer.inject(group, given, into)
    written = target.everything()
    for old, new in zip(taken, given, strict=True):
        for read, write in zip(source.views(group, old), target.views(group, new), strict=True):
            write.copy_(read)
    assert written == target.everything()


@pytest.mark.parametrize("ids", [[1, 2, 3], [3, 2, 1], [1, 2, 4]])
def test_memory_between_buffers_is_left_alone(ids: list[int]) -> None:
    cache = packed("LHBNC", 5, 2, 2, torch.bfloat16)
    pages = on_host(cache)
    size = pages.groups[0].block_bytes
    arena = bytearray(b"\xaa" * (3 * (size + 7)))
    pages.extract(0, ids, [memoryview(arena)[i * (size + 7) :][:size] for i in range(3)])
    assert bytes(arena) == b"".join(cache.bytes_of(0, block) + b"\xaa" * 7 for block in ids)


@pytest.mark.parametrize("ids", [[1, 2, 3], [3, 2, 1]])
def test_buffers_may_lie_backwards(ids: list[int]) -> None:
    cache = packed("LBHNC", 5, 2, 2, torch.bfloat16)
    pages = on_host(cache)
    into = buffers(pages, 0, 3)[::-1]
    pages.extract(0, ids, into)
    assert [bytes(buffer) for buffer in into] == [cache.bytes_of(0, block) for block in ids]


def test_layers_of_one_storage_are_one_strip() -> None:
    cache = packed("LBHNC", 5, 4, 2, torch.bfloat16)
    assert [strip.layers for strip in strips_of(0, cache.groups[0], cache.layers, 5)[1]] == [4]


def test_a_page_without_gaps_is_one_run() -> None:
    cache = packed("LBNHC", 5, 2, 2, torch.bfloat16)
    (strip,) = strips_of(0, cache.groups[0], cache.layers, 5)[1]
    assert strip.axes == ((2 * 4 * 6 * 2, 1),)


def test_block_bytes_count_content_and_no_padding() -> None:
    cache = packed("LBHNC", 5, 3, 2, torch.bfloat16, pad=8)
    assert on_host(cache).groups[0].block_bytes == 3 * 2 * 4 * 6 * 2


def test_a_layer_that_reuses_another_is_copied_once() -> None:
    cache = packed("LBHNC", 5, 2, 2, torch.bfloat16)
    alone = on_host(cache).groups[0].block_bytes
    cache.add("model.layers.2.attn", cache.layers["model.layers.0.attn"])
    assert on_host(cache).groups[0].block_bytes == alone


def test_memory_of_inference_mode_can_be_written() -> None:
    with torch.inference_mode():
        cache = packed("LBHNC", 5, 2, 2, torch.bfloat16)
        pages = staged(cache)
    (block,) = buffers(pages, 0, 1)
    pages.inject(0, [3], [block])
    assert cache.bytes_of(0, 3) == bytes(block)


@pytest.mark.parametrize("way", [on_host, staged])
def test_threads_copy_different_blocks_at_a_time(way: Callable[[Cache], Pages]) -> None:
    cache = packed("LBHNC", 40, 4, 2, torch.bfloat16)
    pages = way(cache)
    want = [cache.bytes_of(0, block) for block in range(20)]
    into = buffers(pages, 0, 20)

    def carry(blocks: Sequence[int]) -> None:
        for block in blocks:
            pages.extract(0, [block], [into[block]])
            pages.inject(0, [block + 20], [into[block]])

    threads = [threading.Thread(target=carry, args=(range(start, 20, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cache.bytes_of(0, block + 20) for block in range(20)] == want


def test_the_fingerprint_says_what_a_block_is() -> None:
    said = on_host(packed("LBNHC", 5, 3, 2, torch.bfloat16)).groups[0].fingerprint
    isa = torch.backends.cpu.get_cpu_capability().lower()
    assert said == f"model.layers.#.attn[0-2]/3*bfloat16[1:4,0:2,2:6]/{sys.byteorder}/cpu-{isa}"


@pytest.mark.parametrize("other", ["LHBNC", "BLHNC", "BHLNC", "padded LBHNC"])
def test_layouts_that_differ_in_place_only_share_blocks(other: str) -> None:
    one, two = (MAKERS[kind](5, 2, 2, torch.bfloat16) for kind in ("LBHNC", other))
    assert on_host(one).groups[0].fingerprint == on_host(two).groups[0].fingerprint


def test_the_number_of_blocks_is_not_in_the_fingerprint() -> None:
    one, two = (packed("LBHNC", blocks, 2, 2, torch.bfloat16) for blocks in (5, 6))
    assert on_host(one).groups[0].fingerprint == on_host(two).groups[0].fingerprint


def test_fingerprints_of_other_bytes_differ() -> None:
    made = [
        packed("LBHNC", 5, 2, 2, torch.bfloat16),
        packed("LBNHC", 5, 2, 2, torch.bfloat16),
        packed("LBHNC", 5, 3, 2, torch.bfloat16),
        packed("LBHNC", 5, 2, 3, torch.bfloat16),
        packed("LBHNC", 5, 2, 2, torch.float16),
        kernel_blocks(5, 2, 2, torch.bfloat16),
        split_kv(5, 2, 2, torch.bfloat16),
    ]
    made.append(two_groups(5, 2, 2, torch.bfloat16))
    said = [group.fingerprint for cache in made for group in on_host(cache).groups]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["l.0.a", "l.1.a", "l.3.a"], "l.#.a[0-1,3]"),
        (["l.0.a", "l.0.b", "l.1.a"], "l.#.a[0]+l.#.b[0]+l.#.a[1]"),
        (["encoder"], "encoder"),
        (["l.2.a", "l.1.a"], "l.#.a[2,1]"),
    ],
)
def test_layer_names_are_folded_without_losing_their_order(names: list[str], text: str) -> None:
    assert layer_text(names) == text


Caches = Mapping[str, torch.Tensor | list[torch.Tensor]]
OVER = torch.zeros(5 * 48 + 24)
REFUSED: dict[str, tuple[Caches, list[list[str]], int, str]] = {
    "no axis of blocks": ({"a": torch.zeros(3, 4, 8)}, [["a"]], 5, "no axis counts its 5 blocks"),
    "raw bytes": ({"a": torch.zeros(500)}, [["a"]], 5, "no axis counts its 5 blocks"),
    "two axes of blocks": ({"a": torch.zeros(2, 2, 8)}, [["a"]], 2, "both of the first two axes"),
    "one row for all": ({"a": torch.zeros(1, 8).expand(5, 8)}, [["a"]], 5, "its blocks share bytes"),
    "layers overlap": (
        {"a": OVER[: 5 * 48].view(5, 48), "b": OVER[24:].view(5, 48)},
        [["a", "b"]],
        5,
        "layers 'a' and 'b' share bytes",
    ),
    "no such layer": ({"a": torch.zeros(5, 8)}, [["a", "b"]], 5, "names layer 'b', which has no KV cache"),
    "no layers": ({"a": torch.zeros(5, 8)}, [["a"], []], 5, "group 1 has no layers"),
    "no tensors": ({"a": []}, [["a"]], 5, "layers without a tensor"),
    "no blocks": ({"a": torch.zeros(5, 8)}, [["a"]], 0, "0 blocks"),
    "two devices": (
        {"a": torch.zeros(5, 8), "b": torch.zeros(5, 8, device="meta")},
        [["a"], ["b"]],
        5,
        "2 devices",
    ),
    "another device": ({"a": torch.zeros(5, 8, device="meta")}, [["a"]], 5, "'meta' cannot be copied"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_cannot_be_mapped_is_refused(case: str) -> None:
    caches, groups, blocks, says = REFUSED[case]
    with pytest.raises(EngineError, match=says):
        Pages.of(caches, groups, blocks)


@pytest.mark.parametrize(
    ("ids", "sizes", "says"),
    [
        ([5], [0], "block 5 is not one"),
        ([-1], [0], "block -1 is not one"),
        ([1, 2], [0], "2 blocks do not fit 1 buffers"),
        ([1, 2], [0, 1], "contiguous bytes, not"),
        ([1, 1], [0, 0], "twice"),
    ],
)
def test_wrong_arguments_write_nothing(ids: list[int], sizes: list[int], says: str) -> None:
    cache = packed("LBHNC", 5, 2, 2, torch.bfloat16)
    pages, before = on_host(cache), cache.everything()
    blocks = [memoryview(bytearray(pages.groups[0].block_bytes + more)) for more in sizes]
    with pytest.raises(ValueError, match=says):
        pages.inject(0, ids, blocks)
    assert cache.everything() == before


def test_a_group_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no KV cache group 1"):
        on_host(packed("LBHNC", 5, 2, 2, torch.bfloat16)).extract(1, [], [])


def test_read_only_memory_is_not_extracted_into() -> None:
    pages = on_host(packed("LBHNC", 5, 2, 2, torch.bfloat16))
    with pytest.raises(ValueError, match="read-only"):
        pages.extract(0, [1], [memoryview(bytes(pages.groups[0].block_bytes))])


def test_read_only_memory_can_be_injected() -> None:
    cache = packed("LBHNC", 5, 2, 2, torch.bfloat16)
    pages = on_host(cache)
    block = bytes(range(256)) * (pages.groups[0].block_bytes // 256 + 1)
    block = block[: pages.groups[0].block_bytes]
    pages.inject(0, [2], [memoryview(block)])
    assert cache.bytes_of(0, 2) == block
