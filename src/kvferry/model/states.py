"""What a layer without a growing cache keeps: the state of linear attention, a state space, a short conv.

A state has two parts. The *conv* part is the last inputs of a causal convolution: channels x taps. The
*matrix* part is what the recurrence carries on: heads x numbers a head. Which numbers there are follows from
the model; how many taps an engine keeps, and in which dtype, is the engine's (`engines/`).

    gated delta (GDN)   conv 2 Hk dk + Hv dv             matrix Hv dk dv
    KDA                 conv 3 H d                       matrix H d d
    lightning           -                                matrix H d d
    Mamba 2             conv inner + 2 groups N          matrix heads head_dim N
    Mamba 1             conv inner                       matrix inner N
    short conv          conv width                       -
    RG-LRU              conv width                       matrix width

Sources: Gated DeltaNet (arXiv 2412.06464), Kimi Linear (2510.26692), Mamba 2 (2405.21060), Griffin
(2402.19427).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import ModelError

__all__ = [
    "State",
    "StateKind",
    "gated_delta",
    "key_delta",
    "lightning",
    "mamba1",
    "mamba2",
    "rg_lru",
    "short_conv",
]

StateKind = Literal["gdn", "kda", "lightning", "mamba1", "mamba2", "short_conv", "rg_lru"]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one layer, before it is split over tensor-parallel ranks."""

    kind: StateKind
    heads: int = 0
    """What the matrix part is split by; 0 without a matrix part."""
    matrix_per_head: int = 0
    """Numbers a head in the matrix part."""
    kernel: int = 0
    """Width of the convolution in tokens, its current one included; 0 without one."""
    conv_channels: int = 0
    """Channels that are split evenly."""
    groups: int = 0
    """Groups of B and C (Mamba 2) or of keys (GDN), each with `channels_per_group`."""
    channels_per_group: int = 0
    groups_replicate: bool = False
    """Whether ranks beyond the number of groups hold copies; otherwise the groups must divide."""
    always_float32: bool = False
    """Whether every engine keeps the matrix part in float32, whatever it is told."""

    def conv_width(self, tp: int) -> int:
        """Channels of the conv part on one of `tp` ranks."""
        return _split(self.conv_channels, tp, self.kind) + self._groups(tp) * self.channels_per_group

    def matrix_numbers(self, tp: int) -> int:
        """Numbers of the matrix part on one of `tp` ranks."""
        return _split(self.heads, tp, self.kind) * self.matrix_per_head

    def _groups(self, tp: int) -> int:
        if self.groups_replicate and self.groups % tp:
            # vLLM adds groups until each rank has as many as the others.
            return -(-(self.groups + tp - self.groups % tp) // tp) if self.groups > tp else 1
        return _split(self.groups, tp, self.kind)


def gated_delta(*, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int) -> State:
    """Gated DeltaNet (Qwen3-Next, Qwen3.5, OLMo hybrid)."""
    return State(
        kind="gdn",
        heads=value_heads,
        matrix_per_head=key_dim * value_dim,
        kernel=kernel,
        conv_channels=value_heads * value_dim,
        groups=key_heads,
        channels_per_group=2 * key_dim,
    )


def key_delta(*, heads: int, head_dim: int, kernel: int) -> State:
    """Kimi Delta Attention: three convolutions (q, k, v) and one matrix a head, in float32."""
    return State(
        kind="kda",
        heads=heads,
        matrix_per_head=head_dim * head_dim,
        kernel=kernel,
        conv_channels=3 * heads * head_dim,
        always_float32=True,
    )


def lightning(*, heads: int, head_dim: int) -> State:
    """Lightning attention (MiniMax-Text-01): one matrix a head, in float32, no convolution."""
    return State(kind="lightning", heads=heads, matrix_per_head=head_dim * head_dim, always_float32=True)


def mamba1(*, inner: int, state_size: int, kernel: int) -> State:
    """Mamba 1 (Jamba, Falcon-Mamba)."""
    return State(kind="mamba1", heads=inner, matrix_per_head=state_size, kernel=kernel, conv_channels=inner)


def mamba2(*, heads: int, head_dim: int, groups: int, state_size: int, kernel: int) -> State:
    """Mamba 2 (Bamba, Granite 4 H, Nemotron-H, Falcon-H1); its inner width is heads x head_dim."""
    return State(
        kind="mamba2",
        heads=heads,
        matrix_per_head=head_dim * state_size,
        kernel=kernel,
        conv_channels=heads * head_dim,
        groups=groups,
        channels_per_group=2 * state_size,
        groups_replicate=True,
    )


def short_conv(*, width: int, kernel: int) -> State:
    """A gated short convolution (LFM2)."""
    return State(kind="short_conv", kernel=kernel, conv_channels=width)


def rg_lru(*, width: int, kernel: int) -> State:
    """The RG-LRU of Griffin (RecurrentGemma): one number a channel, in float32."""
    return State(
        kind="rg_lru",
        heads=width,
        matrix_per_head=1,
        kernel=kernel,
        conv_channels=width,
        always_float32=True,
    )


def _split(amount: int, tp: int, kind: str) -> int:
    if amount % tp:
        raise ModelError(f"--tp {tp} does not divide the {amount} heads or channels of a {kind} layer")
    return amount // tp
