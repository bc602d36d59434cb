"""The one thing to do next, in a sentence.

Owns the order in which causes are named: what makes every other figure doubtful first, then what costs the
most tokens. One sentence, because a list of ten is read by nobody.
"""

from __future__ import annotations

from ..units import counted
from .result import ClassResult, Hits, Misses, PoolGain, TraceProblems

__all__ = ["recommend"]

_MANY_BAD = 0.1
"""Fewer bad rows hide no larger cause: they are named behind it."""
_SOME_BAD = 0.01
_NO_REUSE = 0.02
_WORTH = 0.02
_EVEN = 0.05
_PREFIX_ROUTINGS = ("longest-prefix", "prefix-plus-load")


def recommend(
    *,
    path: str,
    format: str,
    has_blocks: bool,
    problems: TraceProblems,
    requests: int,
    hit: Hits | None,
    misses: Misses | None,
    routing: str | None,
    gain: PoolGain | None,
    enough_tokens: int | None,
    block_tokens: int,
    classes: tuple[ClassResult, ...],
) -> str:
    """What to do about the largest cause; `enough_tokens` is the capacity that reaches 90 % of all hits."""
    if requests == 0:
        why = f": line {problems.first[0].line}: {problems.first[0].message}" if problems.first else ""
        return f"{path} has no usable requests{why}; mend its rows, or convert it to a known format."
    left_out = _left_out(problems, requests)
    if problems.rows > _MANY_BAD * (problems.rows + requests):
        return f"Mend the log first: {left_out}, and every figure here is without them."
    said = _cause(
        path, format, has_blocks, requests, hit, misses, routing, gain, enough_tokens, block_tokens, classes
    )
    return f"{said} Also, {left_out}." if problems.rows > _SOME_BAD * requests else said


def _left_out(problems: TraceProblems, requests: int) -> str:
    first = problems.first[0] if problems.first else None
    where = f", the first at line {first.line} ({first.message})" if first else ""
    left = "was" if problems.rows == 1 else "were"
    return f"{problems.rows:,} of {counted(problems.rows + requests, 'row')} {left} left out{where}"


def _cause(
    path: str,
    format: str,
    has_blocks: bool,
    requests: int,
    hit: Hits | None,
    misses: Misses | None,
    routing: str | None,
    gain: PoolGain | None,
    enough_tokens: int | None,
    block_tokens: int,
    classes: tuple[ClassResult, ...],
) -> str:
    """The largest cause of what is missed."""
    if not has_blocks or hit is None or misses is None:
        if format == "openai":
            return (
                "Say --tokenizer FOLDER, so that the prompts of this log can be cut into blocks; "
                f"kvferry trace lint {path} needs none, and says why prompts do not match."
            )
        return (
            "This trace has lengths only and says nothing of reuse: record one with blocks "
            "(kvferry trace record keeps keyed hashes and lengths, never prompts)."
        )
    total = sum((misses.hit, misses.never_seen, misses.evicted, misses.placement, misses.partial_block))
    if requests < 2 or not total:
        return "One request says nothing of reuse: analyze a log of many."
    if hit.useful_tokens < _NO_REUSE:
        return (
            f"Prompts share {hit.useful_tokens:.1%} of their tokens, so no cache will help: look at how they "
            "are assembled with kvferry trace lint, where a date or an id may stand before what is common."
        )
    shares = {
        "placement": misses.placement / total,
        "evicted": misses.evicted / total,
        "partial": misses.partial_block / total,
    }
    worst = max(shares, key=lambda name: shares[name])
    by_prefix = _by_prefix(gain, max(shares[worst], _WORTH))
    if by_prefix is not None:
        return by_prefix
    if shares[worst] < _WORTH:
        unread = _unread(classes)
        if unread is not None:
            return unread
        return (
            f"Nothing to mend: {misses.hit / total:.1%} of the tokens are hits, {hit.useful_tokens:.1%} is "
            "the most that any cache could hit."
        )
    if worst == "partial":
        return (
            f"Use smaller blocks in the engine: {shares['partial']:.1%} of the tokens lie behind the last "
            f"full block of {counted(block_tokens, 'token')} and can never be loaded; blocks of "
            f"{max(1, block_tokens // 4)} would leave about a quarter of them."
        )
    if worst == "placement":
        return (
            f"{shares['placement']:.1%} of the tokens lie on another replica even under {routing} routing: "
            "share them through a pool, and check with kvferry plan that loading beats computing."
        )
    local = ""
    if gain is not None and gain.best_local in _PREFIX_ROUTINGS:
        local = f" even under {gain.best_local} routing"
    where = (
        "" if enough_tokens is None else f"; {counted(enough_tokens, 'token')} hold nine tenths of all hits"
    )
    return (
        f"Give the cache more room: {shares['evicted']:.1%} of the tokens were there and were "
        f"evicted{local}{where}."
    )


def _by_prefix(gain: PoolGain | None, worth: float) -> str | None:
    """Routing, where looking at prefixes gains more than all that is left to mend behind it."""
    if gain is None or gain.best_local not in _PREFIX_ROUTINGS:
        return None
    random = gain.pool_hit_by_token / gain.against_random if gain.against_random else 0.0
    if gain.best_local_hit_by_token - random < worth:
        return None
    return (
        f"Route by prefix, unless you do: {gain.best_local} routing hits {gain.best_local_hit_by_token:.1%} "
        f"of the tokens in the replicas' own memory, random routing {random:.1%}; one shared pool would hit "
        f"{gain.pool_hit_by_token:.1%}."
    )


def _unread(classes: tuple[ClassResult, ...]) -> str | None:
    written = unread = saved = served = kept = 0
    for one in classes:
        by_name = {policy.policy: policy for policy in one.publication}
        written += by_name["all"].written_tokens
        unread += by_name["all"].never_read_tokens
        served += by_name["all"].served_tokens
        saved += by_name["all"].written_tokens - by_name["second-touch"].written_tokens
        kept += by_name["second-touch"].served_tokens
    if not written or unread < 0.5 * written or not served or kept < (1 - _EVEN * 4) * served:
        return None
    return (
        f"Publish on the second touch: {unread / written:.0%} of what publishing everything writes is never "
        f"read; second-touch writes {saved / written:.0%} less and still serves {kept / served:.0%} of it."
    )
