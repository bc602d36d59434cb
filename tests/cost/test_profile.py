"""profile.json: saved, read, merged, and started from."""

from __future__ import annotations

from functools import reduce

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.cost.interference import InterferenceModel
from kvferry.cost.prefill import PrefillModel
from kvferry.cost.profile import Origin, Profile, decode_profile, encode_profile
from kvferry.cost.transfer import LegModel
from kvferry.errors import FormatError

SEEDS = st.integers(1, 1000)


def profile(seed: int = 1, host: str = "a", namespace: str = "ab" * 32, empty: bool = False) -> Profile:
    prefill, leg, interference = PrefillModel(), LegModel(), InterferenceModel()
    for i in range(0 if empty else 20):
        prefill.observe(64 + seed * i, 100 * i, 0.01 * seed * (1 + i % 3))
        leg.observe(1000 * (i + seed), 0.001 * (1 + (i * seed) % 5), 1 + i % 2)
        interference.observe_decode(0.01 * (1 + i % 2), i % 2)
        interference.observe_load(0.001 * seed)
    return Profile.of(
        host=host,
        namespace=namespace,
        prefill=prefill,
        legs={"pool": leg, f"tier-{seed % 2}": leg},
        interference=interference,
    )


def test_what_is_written_is_read() -> None:
    saved = profile()
    assert decode_profile(encode_profile(saved), "profile.json") == saved


def test_a_live_model_goes_on_where_the_profile_stopped() -> None:
    original = PrefillModel()
    for i in range(30):
        original.observe(100 + i, 10 * i, 0.1 + 0.001 * i)
    saved = Profile.of(host="a", namespace="", prefill=original, legs={}, interference=InterferenceModel())
    again = decode_profile(encode_profile(saved), "profile.json").prefill_model()
    for model in (original, again):
        model.observe(500, 0, 0.7)
    assert again.coefficients == pytest.approx(original.coefficients, rel=1e-12)
    assert again.spread.quantile(0.95) == original.spread.quantile(0.95)


def test_an_unknown_leg_is_a_new_one() -> None:
    assert not profile().leg_model("elsewhere").known
    assert profile().leg_model("pool").known


def test_what_was_not_measured_says_that_it_is_assumed() -> None:
    fresh, known = profile(empty=True), profile()
    assert fresh.prefill.token_seconds.origin is Origin.ASSUMED
    assert fresh.legs["pool"].setup_seconds.origin is Origin.ASSUMED
    assert fresh.legs["pool"].bytes_per_second is None
    assert known.prefill.token_seconds.origin is Origin.MEASURED
    assert known.legs["pool"].setup_seconds.origin is Origin.MEASURED


@given(SEEDS, SEEDS, SEEDS)
def test_merging_is_associative(a: int, b: int, c: int) -> None:
    x, y, z = profile(a, "a"), profile(b, "b"), profile(c, "c")
    left, right = x.merged(y).merged(z), x.merged(y.merged(z))
    assert left.host == right.host == "a+b+c"
    assert set(left.legs) == set(right.legs)
    for one, other in zip(_numbers(left), _numbers(right), strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-12)


def _numbers(profile: Profile) -> list[float]:
    found: list[float] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                walk(value[key])
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, int | float):
            found.append(float(value))

    walk(msgspec.to_builtins(profile))
    return found


def test_merging_one_is_itself_and_none_is_an_error() -> None:
    assert Profile.merge([profile()]) == profile()
    with pytest.raises(ValueError, match="no profiles"):
        Profile.merge([])
    many = [profile(i, f"h{i}") for i in range(1, 5)]
    assert Profile.merge(many) == reduce(Profile.merged, many)


def test_profiles_of_different_namespaces_do_not_add_up() -> None:
    with pytest.raises(FormatError, match="different namespaces"):
        profile(namespace="ab" * 32).merged(profile(namespace="cd" * 32))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"{}",
        b"[]",
        encode_profile(profile()).replace(b'"host": "a"', b'"host": 7'),
        encode_profile(profile()).replace(b'"measured"', b'"guessed"'),
    ],
)
def test_a_file_that_is_no_profile_is_named(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^runs/x/profile\.json: not a kvferry profile"):
        decode_profile(data, "runs/x/profile.json")


def test_another_version_is_refused_with_what_to_do() -> None:
    data = encode_profile(msgspec.structs.replace(profile(), version=99))
    with pytest.raises(FormatError, match=r"^p\.json: profile version 99 is not 1; measure again"):
        decode_profile(data, "p.json")
