"""A model as its KV cache sees it: what every layer keeps, and nothing else of it.

Owns the words: a layer has an attention part (which grows, or stops at a window), a state part (fixed), both
(parallel hybrids), or neither (feed-forward layers, layers whose attention was removed, layers that read
another layer's cache). Knows no engine, no dtype of the cache and no file format.
"""

from __future__ import annotations

import msgspec

from .states import State

__all__ = ["Attention", "Latent", "Layer", "Model", "Naive"]


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and values a head: MHA, GQA and MQA, over everything, a window or a chunk."""

    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None
    """Tokens that stay reachable, the current one included; None for all of them."""
    chunked: bool = False
    """Whether the window is a fixed chunk (Llama 4) and does not slide."""
    query_heads: int | None = None

    @property
    def kind(self) -> str:
        """ "full", "sliding" or "chunked"."""
        if self.window is None:
            return "full"
        return "chunked" if self.chunked else "sliding"

    def heads_on_rank(self, tp: int) -> int:
        """KV heads of one of `tp` ranks: divided, and replicated above their number."""
        return max(1, self.kv_heads // tp)


class Latent(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: one latent and one rotary key for all heads, on every rank.

    The widths of the expanded heads are there for engines that do not keep the latent.
    """

    rank: int
    rope_width: int
    heads: int
    nope_width: int | None = None
    value_width: int | None = None
    index_width: int | None = None
    """Width of the sparse indexer's key (DeepSeek V3.2); None without an indexer of its own."""

    @property
    def kind(self) -> str:
        """ "mla" or "mla+indexer"."""
        return "mla" if self.index_width is None else "mla+indexer"

    @property
    def width(self) -> int:
        """Numbers a token."""
        return self.rank + self.rope_width


class Layer(msgspec.Struct, frozen=True):
    """What one layer keeps."""

    attention: Attention | Latent | None = None
    state: State | None = None
    shares: int | None = None
    """Index of the layer whose cache it reads; its own attention part is then what it would have kept."""

    @property
    def kind(self) -> str:
        """ "full", "sliding", "mla+indexer", "full+mamba2", "shared", "none"."""
        if self.shares is not None:
            return "shared"
        parts = [part.kind for part in (self.attention, self.state) if part is not None]
        return "+".join(parts) or "none"


class Naive(msgspec.Struct, frozen=True, kw_only=True):
    """The four numbers of the formula 2 L Hkv D q, as a reader would take them from the config."""

    layers: int
    kv_heads: int
    head_dim: int
    derived_head_dim: int | None = None
    """hidden_size / num_attention_heads, where both are there; what a reader takes who overlooks head_dim."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a model that its KV cache depends on."""

    source: str
    """Where it was read from, for messages."""
    architecture: str
    """Its model_type; empty when the config names none."""
    layers: tuple[Layer, ...]
    naive: Naive
    dtype: str | None = None
    """dtype of the weights as computed in (bfloat16), which "auto" stands for; None when not said."""
    state_dtype: str | None = None
    """dtype that the config asks for in the matrix part of states; None when it does not say."""
    state_chunk: int | None = None
    """Chunk of the state space's kernel in tokens, where the config has one."""
    context: int | None = None
    """Longest context that it is made for, in tokens."""
    parameters: float | None = None
    """Weights that take part in computing one token; None when not known."""
    assumed: bool = False
    """Whether the layers are an assumption (`--assume dense`) and not read."""
    notes: tuple[str, ...] = ()
    """What a reader should know about how it was read."""
