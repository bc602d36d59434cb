from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from kvferry.analysis.analyse import Question, analyse
from kvferry.analysis.result import Analysis
from kvferry.cost.interference import InterferenceModel
from kvferry.cost.prefill import PrefillModel
from kvferry.cost.profile import Figure, Origin, Profile
from kvferry.cost.transfer import LegModel
from kvferry.errors import FormatError, UsageError
from kvferry.planner.verdict import demo_sentence, plan
from kvferry.traces import Request, from_requests, open_trace
from kvferry.units import format_rate

BLOCK = 16
BYTES = 100_000.0
TOKEN_SECONDS = 1e-3


def profile(bytes_per_second: float | None, *, decoding_slowed: bool = False) -> Profile:
    """A millisecond a token of prefill, no attention; a link of this rate and 1 ms of setup."""
    prefill, leg, beside = PrefillModel(), LegModel(), InterferenceModel()
    for tokens in (64, 128, 256, 512) * 4:
        prefill.observe(tokens, 0, TOKEN_SECONDS * tokens)
    if bytes_per_second is not None:
        for size in (1 << 20, 1 << 22, 1 << 24) * 5:
            leg.observe(size, 1e-3 + size / bytes_per_second)
    for _ in range(20):
        beside.observe_decode(0.01, 0)
        if decoding_slowed:
            beside.observe_decode(0.02, 1)
            beside.observe_load()
    return Profile.of(
        host="here", namespace="00" * 32, prefill=prefill, legs={"pool": leg}, interference=beside
    )


def analysis(
    prompts: list[str], *, replicas: int = 1, capacity: int | None = None, pool: int | None = None
) -> Analysis:
    """Prompts as letters, one of them a block; 100 ms apart."""
    trace = from_requests(
        [
            Request(
                arrival_seconds=number * 0.1,
                input_tokens=len(letters) * BLOCK,
                blocks=[letters[: n + 1] for n in range(len(letters))],
            )
            for number, letters in enumerate(prompts)
        ],
        BLOCK,
    )
    return analyse(
        trace,
        Question(
            bytes_per_token=BYTES,
            replicas=replicas,
            capacity_tokens=capacity,
            pool_tokens=pool,
            compiled=False,
        ),
    )


LOOP = [letter * 10 for letter in "abcdef"] * 10
"""Six prompts in turn: one that fits three of them hits none."""


def test_nothing_to_share() -> None:
    found = plan(analysis([letter * 10 for letter in "abcdef"]), profile(1e9))
    assert found.verdict == "nothing"
    assert found.sentence.startswith("Nothing to share")


def test_local_cache_is_enough_where_everything_is_held() -> None:
    found = plan(analysis(["a" * 10] * 30), profile(1e9))
    assert (found.verdict, found.proven) == ("local", True)
    assert found.break_even_bytes_per_second is None


def test_routing_is_enough_where_a_prefix_finds_its_replica() -> None:
    prompts = [letter * 10 + tail for tail in "uvwxyz" for letter in "abcdefg"]
    found = plan(analysis(prompts, replicas=4), profile(1e9))
    assert found.verdict == "routing"
    assert found.local_hit > found.blind_hit + 0.02
    assert "Route by prefix" in found.sentence


def test_a_pool_on_a_fast_link_waits_for_a_load_test() -> None:
    found = plan(analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK), profile(1e9))
    assert (found.verdict, found.proven) == ("pool", False)
    assert "not proven" in found.sentence
    assert "load test" in found.sentence
    assert any(line.startswith("P_write") for line in found.unknown)
    assert any(line.startswith("P_eviction") for line in found.unknown)
    assert [(one.write_seconds, one.eviction_seconds) for one in found.classes] == [(None, None)] * 6


def test_the_same_pool_on_a_slow_link_does_not_pay() -> None:
    found = plan(analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK), profile(5e7))
    assert found.verdict == "local"
    assert found.benefit_seconds_per_second == 0.0
    assert "does not pay on this link" in found.sentence


def test_the_benefit_is_the_seconds_spared() -> None:
    found = plan(analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK), profile(1e9))
    (first, *_) = found.classes
    tokens = 10 * BLOCK
    assert first.h_remote == 0.9
    assert first.recompute_seconds == pytest.approx(tokens * TOKEN_SECONDS, rel=0.05)
    assert first.remote_seconds == pytest.approx(1e-3 + tokens * BYTES / 1e9, rel=0.05)
    spared = 0.9 * (first.recompute_seconds - first.remote_seconds)
    assert first.benefit_seconds == pytest.approx(spared)
    assert found.benefit_seconds_per_second == pytest.approx(60 / 5.9 * spared)


def test_the_sign_flips_at_the_break_even() -> None:
    traffic = analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK)
    threshold = plan(traffic, profile(1e9)).break_even_bytes_per_second
    assert threshold is not None
    # bytes / (recompute - setup) of one load.
    assert threshold == pytest.approx(10 * BLOCK * BYTES / (10 * BLOCK * TOKEN_SECONDS - 1e-3), rel=0.05)
    # The rule asks for a margin, and for the slow end of a load: clearly above it loads, clearly below not.
    assert plan(traffic, profile(threshold * 2)).benefit_seconds_per_second > 0
    assert plan(traffic, profile(threshold * 0.9)).benefit_seconds_per_second == 0


def test_what_loads_take_from_decoding_is_charged() -> None:
    traffic = analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK)
    free, charged = (
        plan(traffic, profile(1e9, decoding_slowed=slowed), decoding=2.0) for slowed in (False, True)
    )
    assert [one.stall_seconds for one in free.classes] == [None] * 6
    assert any(line.startswith("P_stall") for line in free.unknown)
    assert all((one.stall_seconds or 0) > 0 for one in charged.classes)
    assert (charged.benefit_seconds_per_second or 0) < (free.benefit_seconds_per_second or 0)


def test_a_link_carries_no_more_than_its_seconds() -> None:
    trace = analysis([letter * 300 for letter in "abcdef"] * 10, capacity=3 * 300 * BLOCK, pool=10**6)
    found = plan(trace, profile(5e8))
    assert found.link_busy_share > 1
    assert found.benefit_seconds_per_second < sum(one.benefit_seconds_per_second for one in found.classes)
    assert any(line.startswith("queues") for line in found.unknown)


def test_a_link_that_nobody_measured_leaves_the_pool_open() -> None:
    found = plan(analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK), profile(None))
    assert (found.verdict, found.proven) == ("local", False)
    assert any("not measured" in line for line in found.unknown)
    threshold = found.break_even_bytes_per_second
    assert threshold is not None
    assert math.isfinite(threshold)
    assert found.sentence.endswith(f"was never measured; it pays above {format_rate(threshold)}.")
    assert "does not pay" not in found.sentence


def test_on_a_link_that_nobody_measured_loads_have_no_figures() -> None:
    found = plan(analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK), profile(None))
    assert (found.link_busy_share, found.benefit_seconds_per_second) == (None, None)
    assert found.most_seconds_per_second > 0.0
    assert {
        (one.loaded_share, one.remote_seconds, one.stall_seconds, one.benefit_seconds, one.link_busy_share)
        for one in found.classes
    } == {(None,) * 5}


def test_a_profile_without_links_leaves_the_pool_open() -> None:
    alone = msgspec.structs.replace(profile(None), legs={})
    found = plan(analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK), alone)
    assert (found.link.tier, found.link.measured, found.proven) == ("pool", False, False)


def test_nothing_to_add_needs_no_link() -> None:
    found = plan(analysis(["a" * 10] * 30), profile(None))
    assert (found.verdict, found.proven) == ("local", True)
    assert "too little to matter" in found.sentence


def test_a_link_that_only_an_estimate_knows_proves_nothing() -> None:
    slow = profile(5e7)
    leg = slow.legs["pool"]
    assert leg.bytes_per_second is not None
    published = msgspec.structs.replace(
        leg, bytes_per_second=Figure(leg.bytes_per_second.value, Origin.PUBLISHED)
    )
    found = plan(
        analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK),
        msgspec.structs.replace(slow, legs={"pool": published}),
    )
    assert (found.verdict, found.proven) == ("local", False)


def test_prefill_beyond_what_replicas_can_do_is_a_warning() -> None:
    # 60 prompts of 160 tokens in 5.9 s at 1 ms a token: 1.63 s a second, as nothing is held.
    traffic = analysis(LOOP, capacity=3 * 10 * BLOCK, pool=100 * 10 * BLOCK)
    found = plan(traffic, profile(1e9))
    assert found.prefill_load == pytest.approx(60 * 160 * TOKEN_SECONDS / 5.9, rel=0.05)
    (warning,) = found.warnings
    assert "asks each replica for 1.627 s of prefill" in warning
    assert "takes 2 or more" in warning


def test_hits_in_local_caches_are_not_computed() -> None:
    found = plan(analysis(["a" * 10] * 30), profile(1e9))
    assert found.prefill_load == pytest.approx(160 * TOKEN_SECONDS / 2.9, rel=0.05)
    assert found.warnings == ()


def test_replicas_share_the_prefill() -> None:
    one, four = (plan(analysis(LOOP, replicas=n, capacity=160), profile(1e9)).prefill_load for n in (1, 4))
    assert one is not None
    assert four == pytest.approx(one / 4, rel=0.3)


def test_a_moment_has_no_load() -> None:
    found = plan(analysis(["ab"]), profile(1e9))
    assert (found.prefill_load, found.warnings) == (None, ())


def test_few_tokens_that_take_much_of_a_replicas_time_matter() -> None:
    # Besides what is held, one prompt comes back after it was evicted: 1.9 % of the tokens, 3 % of the time.
    prompts = ["z" * 40, *(chr(200 + n) * 10 for n in range(100)), *["y" * 10] * 100, "z" * 40]
    traffic = analysis(prompts, capacity=45 * BLOCK, pool=10_000 * BLOCK)
    found = plan(traffic, profile(1e9))
    assert 0.015 < found.pool_hit - found.local_hit < 0.02
    assert found.benefit_seconds_per_second is not None
    assert found.benefit_seconds_per_second > 0.02
    assert found.verdict == "pool"


def test_a_trace_without_usable_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 1, "hash_ids": "no"}\n')
    with pytest.raises(FormatError, match="no usable requests: line 1"):
        plan(analyse(open_trace(tmp_path / "t.jsonl"), Question(bytes_per_token=1.0)), profile(1e9))


def test_an_unknown_tier_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="it has pool"):
        plan(analysis(LOOP), profile(1e9), tier="tape")


def test_the_demos_sentence_says_where_it_turns() -> None:
    assert "clearly faster than 25.0 MB/s" in demo_sentence(25e6)
