"""What a layer of a kind keeps: widths, heads, windows and states, read from the fields that say so.

Owns the names under which configs give them. Which layers are of which kind is decided elsewhere
(`patterns`); an architecture's name is not looked at, only what its family fixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError
from .families import Family
from .fields import Fields
from .layers import Attention, Latent, Layer
from .names import HEAD_DIM, HEADS, HIDDEN, KV_HEADS
from .states import State, gated_delta, key_delta, lightning, mamba1, mamba2, rg_lru, short_conv
from .varying import Varying, whole_numbers

__all__ = ["Parts"]


_GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")
_STATE = ("mamba_d_state", "ssm_state_size", "state_size")
_KERNEL = ("mamba_d_conv", "conv_kernel", "conv_kernel_size", "d_conv")
_MAMBA_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
_MAMBA_HEAD_DIM = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
_EXPAND = ("mamba_expand", "expand")


class Parts:
    """Reads the parts of a config's layers; every part is read when it is first asked for."""

    def __init__(self, fields: Fields, family: Family) -> None:
        self._fields = fields
        self._family = family
        self._cached: dict[str, Attention | Latent | State] = {}
        self._varies = Varying(fields)

    def layers(self, kinds: Sequence[str]) -> list[Layer]:
        """The layers of these kinds, with sharing resolved. Raises `ModelError` for what is missing."""
        made: dict[str, Layer] = {}
        found = []
        for index, kind in enumerate(kinds):
            if self._varies:
                found.append(self._varies.applied(index, self._layer(kind)))
                continue
            if kind not in made:
                made[kind] = self._layer(kind)
            found.append(made[kind])
        self._indexers(found)
        self._share(kinds, found)
        return [layer for layer in found for _ in range(self._family.attentions)]

    def _layer(self, kind: str) -> Layer:
        if kind == "none":
            return Layer()
        if kind in ("linear", "conv"):
            return Layer(state=self._state(kind))
        if kind in ("hybrid", "hybrid_sliding"):
            attention = self._attention("sliding" if kind == "hybrid_sliding" else "full")
            return Layer(attention=attention, state=self._state("linear"))
        return Layer(attention=self._attention(kind))

    # -- attention -----------------------------------------------------------------------------------------

    def _attention(self, kind: str) -> Attention | Latent:
        if kind not in self._cached:
            latent = "kv_lora_rank" in self._fields and kind in ("full", "indexed")
            self._cached[kind] = self._latent() if latent else self._heads(kind)
        part = self._cached[kind]
        assert not isinstance(part, State)
        return part

    def _latent(self) -> Latent:
        fields = self._fields
        return Latent(
            rank=fields.number("kv_lora_rank"),
            rope_width=fields.number("qk_rope_head_dim"),
            heads=fields.maybe_number(*HEADS) or 1,
            nope_width=fields.maybe_number("qk_nope_head_dim"),
            value_width=fields.maybe_number("v_head_dim"),
            index_width=fields.maybe_number("index_head_dim") if "index_topk" in fields else None,
        )

    def _heads(self, kind: str) -> Attention:
        fields = self._fields
        if kind == "indexed":
            raise ModelError(
                f"{fields.source}: indexed attention without kv_lora_rank is not known here; "
                "with --assume dense only the naive figure is computed"
            )
        key_heads, width, values = self.kv_heads(), None, None
        if kind == "sliding":
            key_heads = fields.maybe_number("swa_num_key_value_heads") or key_heads
            if self._family.own_sliding_heads:
                key_heads = fields.number("swa_num_key_value_heads")
            width, values = fields.maybe_number("swa_head_dim"), fields.maybe_number("swa_v_head_dim")
        elif kind == "full" and "global_head_dim" in fields:
            width = fields.number("global_head_dim")
            values = width
            if not fields.states("attention_k_eq_v") or fields.flag("attention_k_eq_v"):
                key_heads = fields.maybe_number("num_global_key_value_heads") or key_heads
        width = width or self.head_dim()
        window = None
        if kind == "sliding":
            window = fields.number(
                "sliding_window", "attention_window_size", "sliding_window_size", "window_size"
            )
        elif kind == "chunked":
            window = fields.number("attention_chunk_size")
        return Attention(
            kv_heads=key_heads,
            key_width=width,
            value_width=values or fields.maybe_number("v_head_dim") or width,
            window=window,
            chunked=kind == "chunked",
            query_heads=fields.maybe_number(*HEADS),
        )

    def kv_heads(self) -> int:
        """KV heads of a plain attention layer; of a list, the most."""
        fields = self._fields
        attention = fields.section("attn_config")
        if attention is not None and "kv_n_heads" in attention:
            return attention.number("kv_n_heads")
        if fields.states("multi_query") and not fields.flag("new_decoder_architecture"):
            return 1 if fields.flag("multi_query") else fields.number(*HEADS)
        for name in KV_HEADS:
            if isinstance(value := fields.raw(name), list) and value:
                return max(whole_numbers(value, f"{fields.source}: {name}"))
        if self._family.all_heads or "block_configs" in fields:
            return fields.number(*HEADS)
        return fields.number(*KV_HEADS)

    def head_dim(self) -> int:
        """Numbers a head, as the config says, or hidden_size / heads where the architecture derives it."""
        fields = self._fields
        explicit = fields.maybe_number(*HEAD_DIM)
        if explicit is not None:
            return explicit
        if self._family.own_width:
            raise fields.missing("head_dim", why="this architecture does not derive it from hidden_size")
        if fields.maybe_number(*HIDDEN) is None or fields.maybe_number(*HEADS) is None:
            raise fields.missing(*HEAD_DIM[:1], why="nor are hidden_size and num_attention_heads both there")
        hidden, heads = fields.number(*HIDDEN), fields.number(*HEADS)
        if hidden % heads:
            raise fields.missing("head_dim", why=f"{heads} heads do not divide hidden_size {hidden}")
        return hidden // heads

    # -- states --------------------------------------------------------------------------------------------

    def _state(self, kind: str) -> State:
        if kind not in self._cached:
            self._cached[kind] = self._convolution() if kind == "conv" else self._linear()
        part = self._cached[kind]
        assert isinstance(part, State)
        return part

    def _convolution(self) -> State:
        fields = self._fields
        return short_conv(
            width=fields.maybe_number("conv_dim") or fields.number(*HIDDEN),
            kernel=fields.number("conv_L_cache"),
        )

    def _linear(self) -> State:
        fields = self._fields
        if "linear_num_value_heads" in fields:
            return gated_delta(
                key_heads=fields.number("linear_num_key_heads"),
                value_heads=fields.number("linear_num_value_heads"),
                key_dim=fields.number("linear_key_head_dim"),
                value_dim=fields.number("linear_value_head_dim"),
                kernel=fields.number("linear_conv_kernel_dim"),
            )
        if (section := fields.section("linear_attn_config")) is not None:
            return key_delta(
                heads=section.number("num_heads"),
                head_dim=section.number("head_dim"),
                kernel=section.number("short_conv_kernel_size"),
            )
        if "linear_num_heads" in fields:
            return key_delta(
                heads=fields.number("linear_num_heads"),
                head_dim=fields.number("linear_head_dim"),
                kernel=fields.number("linear_conv_kernel_dim", "short_conv_kernel_size"),
            )
        if fields.raw(*_STATE) is not None:
            return self._state_space()
        if "lru_width" in fields:
            return rg_lru(width=fields.number("lru_width"), kernel=fields.number("conv1d_width"))
        if self._family.linear == "lightning":
            return lightning(heads=fields.number(*HEADS), head_dim=self.head_dim())
        if "conv_L_cache" in fields:
            return self._convolution()
        raise fields.missing(
            *("linear_num_value_heads", "linear_attn_config", "mamba_d_state", "conv_L_cache"),
            why="its linear layers are of no known kind without one of them",
        )

    def _state_space(self) -> State:
        fields = self._fields
        state, kernel = fields.number(*_STATE), fields.number(*_KERNEL)
        if fields.raw(*_GROUPS) is None:
            return mamba1(inner=self._inner(), state_size=state, kernel=kernel)
        heads, width = self._mamba_heads()
        return mamba2(
            heads=heads, head_dim=width, groups=fields.number(*_GROUPS), state_size=state, kernel=kernel
        )

    def _mamba_heads(self) -> tuple[int, int]:
        fields = self._fields
        heads = fields.maybe_number(*_MAMBA_HEADS)
        if heads is None and fields.raw(*KV_HEADS) is None:
            # A pure Mamba 2 config has no attention that the plain names could mean.
            heads = fields.maybe_number("num_heads")
        if heads is None:
            return self._inner(), 1
        if fields.raw(*_MAMBA_HEAD_DIM) not in (None, "auto"):
            return heads, fields.number(*_MAMBA_HEAD_DIM)
        if fields.raw(*_MAMBA_HEAD_DIM) is None and fields.raw(*KV_HEADS) is None:
            return heads, fields.number("head_dim")
        return heads, self._inner() // heads

    def _inner(self) -> int:
        fields = self._fields
        stated = fields.maybe_number("mamba_d_inner", "mamba_d_ssm")
        if stated is None and fields.raw(*KV_HEADS) is None:
            stated = fields.maybe_number("intermediate_size", "d_inner")
        if stated is not None:
            return stated
        expand = fields.raw(*_EXPAND)
        if not isinstance(expand, int | float) or not expand > 0:
            raise fields.missing(*_EXPAND)
        return int(expand * fields.number(*HIDDEN))

    # -- sharing -------------------------------------------------------------------------------------------

    def _indexers(self, layers: list[Layer]) -> None:
        """Layers whose indexer reuses another's choice keep no index keys."""
        modes = self._fields.raw("indexer_types", "index_topk_pattern")
        if modes is None:
            return
        if not isinstance(modes, list | str):
            raise ModelError(f"{self._fields.source}: indexer_types is {modes!r}; it must be a list")
        for index, mode in enumerate(modes[: len(layers)]):
            attention = layers[index].attention
            if mode in ("shared", "S") and isinstance(attention, Latent):
                own = Latent(**{**_as_dict(attention), "index_width": None})
                layers[index] = Layer(own, layers[index].state)

    def _share(self, kinds: Sequence[str], layers: list[Layer]) -> None:
        """Layers that read another's cache: the last ones (Gemma 3n, 4), or all but each n-th (CLA)."""
        fields = self._fields
        if fields.flag("use_cla"):
            factor = fields.number("cla_share_factor")
            for index, layer in enumerate(layers):
                if index % factor:
                    layers[index] = Layer(layer.attention, layer.state, index - index % factor)
        shared = fields.raw("num_kv_shared_layers")
        if not shared or any(name in fields for name in ("own_full_layers", "own_sliding_layers")):
            return
        first = len(layers) - fields.number("num_kv_shared_layers")
        own = kinds[:first]
        for index in range(max(first, 0), len(layers)):
            kind, layer = kinds[index], layers[index]
            if kind == "none":
                continue
            if kind not in own:
                raise ModelError(
                    f"{fields.source}: layer {index} shares its cache with a {kind} layer, "
                    f"but none of the first {first} is one"
                )
            layers[index] = Layer(layer.attention, layer.state, len(own) - 1 - own[::-1].index(kind))


def _as_dict(latent: Latent) -> dict[str, Any]:
    return {name: getattr(latent, name) for name in latent.__struct_fields__}
