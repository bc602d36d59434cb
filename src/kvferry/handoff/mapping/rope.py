"""Taking the position out of keys, and putting it back, as each layer of a model turns them.

Owns the frequencies of every scaling that model configurations name, and the turning itself. Knows nothing of
configurations (`ropes.py`) nor of attention.

A key is turned in pairs of numbers by the angle position x frequency. Frequencies and angles are computed in
float32 and in the order of operations that engines use: in another order the last bit of a frequency differs,
and at position 8,192 that is an angle of 4e-4. Engines round cosine and sine to the model's dtype before they
multiply; `rounded_to` does the same, and stripping inverts the rounded 2 x 2 matrix itself, not the rotation
that it stands for, so that strip(apply(x)) is x whatever the dtype and the attention factor.
"""

from __future__ import annotations

import math

import msgspec
import torch

from ...errors import ModelError

__all__ = ["KINDS", "Rope", "apply_rope", "strip_rope"]

KINDS = ("none", "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """How one layer turns its keys. Everything that a file must hold to do it again."""

    kind: str
    width: int
    """Numbers of a key."""
    rotated: int
    """How many of them, from the front, are turned."""
    theta: float = 10_000.0
    interleaved: bool = False
    max_length: int = 0
    """max_position_embeddings: from there on "dynamic" changes."""
    original_length: int = 0
    """Length of pretraining: from there on "longrope" changes."""
    turning_pairs: int = 0
    """proportional: pairs that turn; the others have a frequency of 0."""
    factor: float = 1.0
    attention_factor: float = 1.0
    """On cosine and sine: keys (and queries) of yarn and longrope are longer than what is turned."""
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ModelError(f"rope type {self.kind!r} is not known; known: {', '.join(KINDS)}")
        if self.rotated % 2 or not 0 <= self.rotated <= self.width:
            raise ModelError(
                f"rope turns {self.rotated} of {self.width} numbers: an even part of them is meant"
            )

    @property
    def varies(self) -> bool:
        """Whether frequencies depend on the length of the prompt."""
        return self.kind in ("dynamic", "longrope")

    def frequencies(self, length: int = 0) -> torch.Tensor:
        """Radians per position of each pair, float32 [rotated / 2].

        `length` is that of the whole sequence as the engine saw it when it turned the keys; only "dynamic"
        and "longrope" look at it.
        """
        if self.kind == "none" or not self.rotated:
            return torch.zeros(self.rotated // 2)
        steps = torch.arange(0, self.rotated, 2, dtype=torch.int64).float() / self.rotated
        match self.kind:
            case "linear":
                return 1.0 / (self.theta**steps) / self.factor
            case "dynamic":
                return 1.0 / (self._dynamic_base(length) ** steps)
            case "longrope":
                chosen = self.long_factors if length > self.original_length else self.short_factors
                return 1.0 / (torch.tensor(chosen, dtype=torch.float32) * self.theta**steps)
            case "llama3":
                return self._llama3(1.0 / (self.theta**steps))
            case "yarn":
                return self._yarn(self.theta**steps)
            case "proportional":
                return self._proportional()
        return 1.0 / (self.theta**steps)

    def _dynamic_base(self, length: int) -> torch.Tensor | float:
        if length <= self.max_length:
            return self.theta
        # An engine holds the length as a tensor, so the base is rounded to float32 here.
        stretched = self.factor * torch.tensor(length) / self.max_length - (self.factor - 1)
        return self.theta * stretched ** (self.rotated / (self.rotated - 2))

    def _llama3(self, plain: torch.Tensor) -> torch.Tensor:
        wavelength = 2 * math.pi / plain
        longest = self.original_length / self.low_frequency_factor
        shortest = self.original_length / self.high_frequency_factor
        scaled = torch.where(wavelength > longest, plain / self.factor, plain)
        smooth = (self.original_length / wavelength - self.low_frequency_factor) / (
            self.high_frequency_factor - self.low_frequency_factor
        )
        between = ~(wavelength < shortest) & ~(wavelength > longest)
        return torch.where(between, (1 - smooth) * scaled / self.factor + smooth * scaled, scaled)

    def _yarn(self, powers: torch.Tensor) -> torch.Tensor:
        def pair_that_turns(times: float) -> float:
            span = self.original_length / (times * 2 * math.pi)
            return self.rotated * math.log(span) / (2 * math.log(self.theta))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotated - 1)
        if low == high:
            high += 0.001
        pairs = torch.arange(self.rotated // 2, dtype=torch.float32)
        kept = 1 - torch.clamp((pairs - low) / (high - low), 0, 1)
        return 1.0 / (self.factor * powers) * (1 - kept) + 1.0 / powers * kept

    def _proportional(self) -> torch.Tensor:
        steps = torch.arange(0, 2 * self.turning_pairs, 2, dtype=torch.int64).float() / self.width
        still = torch.zeros(self.rotated // 2 - self.turning_pairs)
        return torch.cat([1.0 / (self.theta**steps), still]) / self.factor


def apply_rope(
    keys: torch.Tensor,
    rope: Rope,
    positions: torch.Tensor,
    *,
    length: int | None = None,
    rounded_to: torch.dtype | None = None,
) -> torch.Tensor:
    """Keys [..., tokens, width] turned to their positions [tokens], in at least float32.

    `length` is the engine's sequence length where the scaling depends on it; None: the last position + 1.
    """
    if rope.kind == "none" or not rope.rotated:
        return _wide(keys)
    cos, sin = _waves(keys, rope, positions, length, rounded_to)
    first, second, rest = _pairs(_wide(keys), rope)
    return _join(first * cos - second * sin, second * cos + first * sin, rest, rope)


def strip_rope(
    keys: torch.Tensor,
    rope: Rope,
    positions: torch.Tensor,
    *,
    length: int | None = None,
    rounded_to: torch.dtype | None = None,
) -> torch.Tensor:
    """The inverse of `apply_rope`, the attention factor included: keys as they were before."""
    if rope.kind == "none" or not rope.rotated:
        return _wide(keys)
    cos, sin = _waves(keys, rope, positions, length, rounded_to)
    first, second, rest = _pairs(_wide(keys), rope)
    size = cos * cos + sin * sin
    return _join((first * cos + second * sin) / size, (second * cos - first * sin) / size, rest, rope)


def _wide(keys: torch.Tensor) -> torch.Tensor:
    return keys if keys.dtype in (torch.float32, torch.float64) else keys.float()


def _waves(
    keys: torch.Tensor,
    rope: Rope,
    positions: torch.Tensor,
    length: int | None,
    rounded_to: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if keys.shape[-1] != rope.width or keys.shape[-2] != positions.shape[0]:
        raise ValueError(f"keys {tuple(keys.shape)} for {positions.shape[0]} positions of width {rope.width}")
    if length is None:
        length = int(positions.max()) + 1 if rope.varies and positions.numel() else 0
    frequencies = rope.frequencies(length).to(keys.device)
    angles = positions.to(keys.device).float()[:, None] * frequencies
    cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    if rounded_to is not None:
        cos, sin = cos.to(rounded_to), sin.to(rounded_to)
    wide = torch.float64 if keys.dtype == torch.float64 else torch.float32
    return cos.to(wide), sin.to(wide)


def _pairs(keys: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    turned, rest = keys[..., : rope.rotated], keys[..., rope.rotated :]
    if rope.interleaved:
        return turned[..., 0::2], turned[..., 1::2], rest
    half = rope.rotated // 2
    return turned[..., :half], turned[..., half:], rest


def _join(first: torch.Tensor, second: torch.Tensor, rest: torch.Tensor, rope: Rope) -> torch.Tensor:
    if rope.interleaved:
        turned = torch.stack([first, second], dim=-1).flatten(-2)
    else:
        turned = torch.cat([first, second], dim=-1)
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
