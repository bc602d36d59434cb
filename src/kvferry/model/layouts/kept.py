"""What each layer keeps on one rank, in bytes, by an engine's rules.

Owns the rules as data (`Rules`) and the sums that follow: bytes of K and V a token, of an index key, of a
state. Pages, pools and capacities are each engine's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from ...errors import ModelError, UsageError
from ..dtypes import DS_MLA, KvType, kv_type, latent_bytes
from ..layers import Attention, Latent, Layer, Model
from ..states import State
from .setup import Setup

__all__ = ["Keeper", "Kept", "Rules"]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine keeps what a model has."""

    auto: str | None = None
    """KV dtype that "auto" stands for; None for the dtype of the model."""
    latent: Literal["latent", "expanded", "copied"] = "latent"
    """MLA: the latent alone, the heads that it expands to, or the latent and its transposed copy."""
    sharing: bool = True
    """Whether a layer that reads another's cache has none."""
    windows: bool = True
    """Whether a window frees what lies before it."""
    current_in_window: bool = True
    """Whether what a window keeps includes the current token."""
    current_tap: bool = False
    """Whether the conv state holds the current input too (kernel and not kernel - 1)."""
    state_dtype: str | None = None
    """dtype of both parts of a state; None for the rules below."""
    matrix_dtype: str | None = None
    """dtype of the matrix part where the config names none; None for the dtype of the model."""
    scale_bytes: int = 0
    """Scales beside a head and token of an 8- or 4-bit integer cache."""
    packed_index: bool = True
    """Whether an indexer's key is fp8 with a float32 scale for each 128 numbers; otherwise as the cache."""
    packed_latent: bool = True
    """Whether the latent of a model with an indexer is fp8_ds_mla under fp8."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one layer on one rank."""

    key_bytes: int = 0
    """A token."""
    value_bytes: int = 0
    index_bytes: int = 0
    """A token's key of a sparse indexer."""
    window: int | None = None
    """Tokens after which it grows no more."""
    chunked: bool = False
    latent: bool = False
    state_bytes: int = 0
    """A request's."""
    conv_bytes: int = 0
    """Those of `state_bytes` in the conv part."""

    @property
    def token_bytes(self) -> int:
        """K, V and index key of one token."""
        return self.key_bytes + self.value_bytes + self.index_bytes

    @property
    def growing_bytes(self) -> int:
        """What each further token adds in a long context."""
        return 0 if self.window is not None else self.token_bytes

    @property
    def fixed_bytes(self) -> int:
        """What does not grow: a full window, and the state."""
        return self.state_bytes + (self.window or 0) * self.token_bytes

    def at(self, tokens: int) -> int:
        """Bytes of a request with a context of `tokens`."""
        held = tokens if self.window is None else min(tokens, self.window)
        return held * self.token_bytes + self.state_bytes


_NOTHING = Kept()
_INTEGERS = ("int8", "int4")


class Keeper:
    """Weighs layers by an engine's rules."""

    def __init__(self, model: Model, setup: Setup, rules: Rules) -> None:
        self._model, self._setup, self.rules = model, setup, rules
        self.key_type = self._type(setup.key_dtype, "--k-dtype")
        self.value_type = self._type(setup.value_dtype, "--v-dtype")
        self._sharing = rules.sharing if setup.sharing is None else setup.sharing
        self._made: dict[Layer, Kept] = {}

    def all(self, layers: Iterable[Layer]) -> list[Kept]:
        """Every layer's bytes. Raises `UsageError` and `ModelError` for what cannot be laid out."""
        made, found = self._made, []
        for layer in layers:
            kept = made.get(layer)
            if kept is None:
                kept = made[layer] = self._kept(layer)
            found.append(kept)
        return found

    def _kept(self, layer: Layer) -> Kept:
        if layer.shares is not None and self._sharing:
            return self._with_state(_NOTHING, layer.state)
        attention = layer.attention
        if attention is None:
            kept = _NOTHING
        elif isinstance(attention, Latent):
            kept = self._latent(attention)
        else:
            kept = self._heads(attention)
        return self._with_state(kept, layer.state)

    def _heads(self, attention: Attention) -> Kept:
        heads = self._rank_heads(attention.kv_heads)
        return Kept(
            key_bytes=self.key_type.row_bytes(heads, attention.key_width),
            value_bytes=self.value_type.row_bytes(heads, attention.value_width),
            window=self._window(attention.window),
            chunked=attention.chunked,
        )

    def _window(self, window: int | None) -> int | None:
        if window is None or not self.rules.windows:
            return None
        return window if self.rules.current_in_window else window - 1

    def _rank_heads(self, heads: int) -> int:
        tp = self._setup.tp
        if heads % tp and tp % heads:
            raise UsageError(f"--tp {tp} neither divides the {heads} KV heads nor is a multiple of them")
        return max(1, heads // tp)

    def _latent(self, latent: Latent) -> Kept:
        if self.rules.latent == "expanded":
            return self._expanded(latent)
        key_type = self.key_type
        if latent.index_width is not None and key_type.name == "fp8" and self.rules.packed_latent:
            key_type = DS_MLA
        copied = self.rules.latent == "copied"
        return Kept(
            key_bytes=latent_bytes(key_type, latent.rank, latent.rope_width),
            value_bytes=self.value_type.row_bytes(1, latent.rank) if copied else 0,
            index_bytes=self._index(latent.index_width),
            latent=True,
        )

    def _expanded(self, latent: Latent) -> Kept:
        if latent.nope_width is None or latent.value_width is None:
            missing = "qk_nope_head_dim" if latent.nope_width is None else "v_head_dim"
            raise ModelError(
                f"{self._model.source}: {missing} is missing: this engine keeps the expanded heads"
            )
        heads = self._rank_heads(latent.heads)
        return Kept(
            key_bytes=self.key_type.row_bytes(heads, latent.nope_width + latent.rope_width),
            value_bytes=self.value_type.row_bytes(heads, latent.value_width),
            index_bytes=self._index(latent.index_width),
        )

    def _index(self, width: int | None) -> int:
        if width is None:
            return 0
        return width + 4 * -(-width // 128) if self.rules.packed_index else self.key_type.row_bytes(1, width)

    # -- states --------------------------------------------------------------------------------------------

    def _with_state(self, kept: Kept, state: State | None) -> Kept:
        if state is None:
            return kept
        conv, matrix = self.state_parts(state)
        return Kept(
            key_bytes=kept.key_bytes,
            value_bytes=kept.value_bytes,
            index_bytes=kept.index_bytes,
            window=kept.window,
            chunked=kept.chunked,
            latent=kept.latent,
            state_bytes=conv + matrix,
            conv_bytes=conv,
        )

    def state_parts(self, state: State) -> tuple[int, int]:
        """Bytes of the conv and of the matrix part of one request on one rank."""
        tp = self._setup.tp
        taps = max(0, state.kernel - (0 if self.rules.current_tap else 1))
        if state.kernel and self._setup.engine == "vllm":
            taps += self._setup.drafted
        conv = matrix = 0
        if state.kernel:
            conv = state.conv_width(tp) * taps * self._plain(self.rules.state_dtype or self._model_dtype())
        if state.heads:
            matrix = state.matrix_numbers(tp) * self._plain(self._matrix_dtype(state))
        return conv, matrix

    def _matrix_dtype(self, state: State) -> str:
        if self._setup.state_dtype is not None:
            return self._setup.state_dtype
        if self.rules.state_dtype is not None:
            return self.rules.state_dtype
        if state.always_float32:
            return "float32"
        return self._model.state_dtype or self.rules.matrix_dtype or self._model_dtype()

    def _plain(self, name: str) -> int:
        return kv_type(name, "--state-dtype").row_bytes(1, 1)

    # -- dtypes --------------------------------------------------------------------------------------------

    def _type(self, name: str, flag: str) -> KvType:
        if name == "auto":
            name = self.rules.auto or self._model_dtype("--kv-dtype bf16")
        found = kv_type(name, flag)
        if self.rules.scale_bytes and found.name in _INTEGERS:
            return KvType(found.name, found.block_numbers, found.block_bytes, self.rules.scale_bytes)
        return found

    def _model_dtype(self, instead: str = "--state-dtype float32 and --kv-dtype") -> str:
        if self._model.dtype is None:
            raise ModelError(
                f"{self._model.source}: dtype (or torch_dtype) is missing, which auto stands for; "
                f"add it to the config, or write {instead}"
            )
        return self._model.dtype
