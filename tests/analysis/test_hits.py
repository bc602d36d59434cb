from __future__ import annotations

import pytest
from hypothesis import given
from traffic import BLOCK, Prompt, chains, prompts, touched, trace_of

from kvferry.analysis.hits import HitCount
from kvferry.analysis.result import Hits


def counted(asked: list[Prompt]) -> HitCount:
    count = HitCount()
    for part in touched(trace_of(asked)):
        count.add(part)
    return count


@given(asked=prompts)
def test_all_five_are_what_a_set_says(asked: list[Prompt]) -> None:
    seen: set[str] = set()
    tokens = blocks = full = hit = matched_blocks = matched_full = 0
    shares = []
    real = [prompt if prompt != ("", 0) else ("", 1) for prompt in asked]
    for path, rest in real:
        names = chains((path, rest))
        length = len(path) * BLOCK + rest
        matched = next((n for n, name in enumerate(names) if name not in seen), len(names))
        seen.update(names)
        tokens, blocks, full = tokens + length, blocks + len(names), full + length // BLOCK
        hit += min(matched * BLOCK, length)
        matched_blocks += matched
        matched_full += min(matched, length // BLOCK)
        shares.append(min(matched * BLOCK, length) / length)
    found = counted(real).ratios()
    assert found.by_token == (hit / tokens if tokens else 0)
    assert found.by_block == (matched_blocks / blocks if blocks else 0)
    assert found.by_full_block == (matched_full / full if full else 0)
    assert found.useful_tokens == (matched_full * BLOCK / tokens if tokens else 0)
    assert found.mean_of_requests == pytest.approx(sum(shares) / len(shares) if shares else 0)


def test_no_two_denominators_agree_on_a_short_prompt_and_a_long_one() -> None:
    found = counted([("aa", 1), ("aa", 2), ("b", 3), ("bb", 0)]).ratios()
    assert found == Hits(
        by_token=12 / 34,
        by_block=3 / 10,
        by_full_block=3 / 7,
        mean_of_requests=(8 / 10 + 4 / 8) / 4,
        useful_tokens=12 / 34,
    )


def test_a_request_does_not_hit_itself() -> None:
    assert counted([("aaaa", 0)]).ratios().by_token == 0


def test_counts_of_traces_that_share_nothing_add_up() -> None:
    one, other = counted([("aa", 1), ("aa", 1)]), counted([("b", 0), ("b", 2)])
    both = one.merged(other).ratios()
    assert both.by_token == (9 + 4) / (9 + 9 + 4 + 6)
    assert both.mean_of_requests == (9 / 9 + 4 / 6) / 4
