"""profile.json: what was measured on one host, in a form that can be saved, merged and started from.

Every figure says where it comes from: measured here, published by somebody, or assumed. Beside the figures
lie the sums they were solved from, so that merging two profiles is exact and associative, and a replica
that starts from a profile goes on learning from it.
"""

from __future__ import annotations

from enum import StrEnum
from functools import reduce

import msgspec

from ..errors import FormatError
from .histogram import Histogram
from .interference import InterferenceModel
from .least_squares import Sums
from .prefill import PrefillModel
from .spread import Spread
from .transfer import LegModel

__all__ = [
    "SCHEMA_VERSION",
    "Figure",
    "LegProfile",
    "Origin",
    "PrefillProfile",
    "Profile",
    "SumsRecord",
    "decode_profile",
    "encode_profile",
]

SCHEMA_VERSION = 1


class Origin(StrEnum):
    """Where a figure comes from. Only measured ones feed the gate."""

    MEASURED = "measured"
    PUBLISHED = "published"
    ASSUMED = "assumed"


class Figure(msgspec.Struct, frozen=True):
    """One number and where it comes from."""

    value: float
    origin: Origin


class SumsRecord(msgspec.Struct, frozen=True):
    """The sums of a least-squares fit (see `least_squares.Sums`)."""

    n: float
    gram: tuple[tuple[float, ...], ...]
    right: tuple[float, ...]
    square: float


class SpreadRecord(msgspec.Struct, frozen=True):
    """Ratios of actual to predicted: bucket number (as text, for JSON) to count."""

    n: int
    counts: dict[str, float]


class PrefillProfile(msgspec.Struct, frozen=True):
    """a + b n + c n (context + n / 2)."""

    step_seconds: Figure
    token_seconds: Figure
    pair_seconds: Figure
    spread_p95: Figure
    observations: int
    tokens: int
    sums: SumsRecord
    spread: SpreadRecord


class LegProfile(msgspec.Struct, frozen=True):
    """setup + bytes / rate of one leg."""

    setup_seconds: Figure
    bytes_per_second: Figure | None
    spread_p95: Figure
    observations: int
    bytes: int
    setup_before_seconds: float
    """Setup as known before the link last changed; see `transfer.LegModel`."""
    sums: SumsRecord
    spread: SpreadRecord


class InterferenceProfile(msgspec.Struct, frozen=True):
    """Decode steps alone and beside transfers, and waits for memory held by loads."""

    growth: Figure
    alone_n: float
    alone_seconds: float
    beside_n: float
    beside_seconds: float
    held_seconds: float
    loads: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything learned on one host for one namespace."""

    version: int
    host: str
    namespace: str
    """Hex digest."""
    prefill: PrefillProfile
    legs: dict[str, LegProfile]
    """By tier name."""
    interference: InterferenceProfile

    @classmethod
    def of(
        cls,
        *,
        host: str,
        namespace: str,
        prefill: PrefillModel,
        legs: dict[str, LegModel],
        interference: InterferenceModel,
    ) -> Profile:
        """The profile of live estimators."""
        return cls(
            version=SCHEMA_VERSION,
            host=host,
            namespace=namespace,
            prefill=_prefill_profile(prefill),
            legs={name: _leg_profile(leg) for name, leg in legs.items()},
            interference=InterferenceProfile(
                growth=_figure(interference.growth, interference.beside_n >= 1.0),
                alone_n=interference.alone_n,
                alone_seconds=interference.alone_seconds,
                beside_n=interference.beside_n,
                beside_seconds=interference.beside_seconds,
                held_seconds=interference.held_seconds,
                loads=interference.loads,
            ),
        )

    def prefill_model(self) -> PrefillModel:
        """A live estimator that goes on where this one stopped."""
        model = PrefillModel()
        model.sums = _sums(self.prefill.sums)
        _restore(model.spread, self.prefill.spread)
        model.n = self.prefill.observations
        model.tokens_seen = self.prefill.tokens
        return model

    def leg_model(self, name: str) -> LegModel:
        """A live estimator for one leg; a new one where the profile has none of this name."""
        model = LegModel()
        leg = self.legs.get(name)
        if leg is not None:
            model.sums = _sums(leg.sums)
            _restore(model.spread, leg.spread)
            model.n = leg.observations
            model.bytes_seen = leg.bytes
            model.setup_before = leg.setup_before_seconds
        return model

    def interference_model(self) -> InterferenceModel:
        """A live estimator that goes on where this one stopped."""
        model = InterferenceModel()
        for name in InterferenceModel.__slots__:
            setattr(model, name, getattr(self.interference, name))
        return model

    def merged(self, other: Profile) -> Profile:
        """Both profiles together; hosts are joined, namespaces must agree.

        Raises FormatError when they do not: prefill times of different models do not add up.
        """
        if self.namespace != other.namespace:
            raise FormatError(
                f"profiles of different namespaces cannot be merged: {self.namespace[:16]} and "
                f"{other.namespace[:16]}; measure both under one model and layout"
            )
        names = sorted({*self.legs, *other.legs})
        return Profile.of(
            host="+".join(sorted({*self.host.split("+"), *other.host.split("+")})),
            namespace=self.namespace,
            prefill=self.prefill_model().merged(other.prefill_model()),
            legs={name: self.leg_model(name).merged(other.leg_model(name)) for name in names},
            interference=self.interference_model().merged(other.interference_model()),
        )

    @staticmethod
    def merge(profiles: list[Profile]) -> Profile:
        """Any number of profiles; ValueError when there is none."""
        if not profiles:
            raise ValueError("no profiles to merge")
        return reduce(Profile.merged, profiles)


def encode_profile(profile: Profile) -> bytes:
    """The bytes of profile.json: indented, so that a person can read it."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"


def decode_profile(data: bytes, path: str) -> Profile:
    """Read profile.json; FormatError names the file and what is wrong with it."""
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: not a kvferry profile: {error}") from error
    if profile.version != SCHEMA_VERSION:
        raise FormatError(f"{path}: profile version {profile.version} is not {SCHEMA_VERSION}; measure again")
    return profile


def _figure(value: float, measured: bool) -> Figure:
    return Figure(value, Origin.MEASURED if measured else Origin.ASSUMED)


def _prefill_profile(model: PrefillModel) -> PrefillProfile:
    a, b, c = model.coefficients
    return PrefillProfile(
        step_seconds=_figure(a, model.known),
        token_seconds=_figure(b, model.known),
        pair_seconds=_figure(c, model.known),
        spread_p95=_figure(model.spread.quantile(0.95), model.spread.n > 0),
        observations=model.n,
        tokens=model.tokens_seen,
        sums=_record(model.sums),
        spread=_spread_record(model.spread),
    )


def _leg_profile(model: LegModel) -> LegProfile:
    setup, per_byte = model.coefficients
    return LegProfile(
        setup_seconds=_figure(setup, model.known),
        bytes_per_second=_figure(1.0 / per_byte, model.known) if per_byte > 0.0 else None,
        spread_p95=_figure(model.spread.quantile(0.95), model.spread.n > 0),
        observations=model.n,
        bytes=model.bytes_seen,
        setup_before_seconds=model.setup_before,
        sums=_record(model.sums),
        spread=_spread_record(model.spread),
    )


def _record(sums: Sums) -> SumsRecord:
    return SumsRecord(sums.n, tuple(tuple(row) for row in sums.gram), tuple(sums.right), sums.square)


def _sums(record: SumsRecord) -> Sums:
    sums = Sums(len(record.right))
    sums.gram = [list(row) for row in record.gram]
    sums.right = list(record.right)
    sums.square = record.square
    sums.n = record.n
    return sums


def _spread_record(spread: Spread) -> SpreadRecord:
    return SpreadRecord(spread.n, {str(b): c for b, c in sorted(spread.histogram.counts().items())})


def _restore(spread: Spread, record: SpreadRecord) -> None:
    spread.histogram = Histogram({int(b): c for b, c in record.counts.items()})
    spread.n = record.n
