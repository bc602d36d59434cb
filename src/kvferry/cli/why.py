"""`kvferry why RUN [REQUEST]`: one request's story, told from its record in decisions.jsonl.

Owns the telling: what was on offer, what both ways were predicted to take, what was chosen and why, where
the seconds went, and what the other choice would have given. It computes nothing that the record does not
hold, except sums.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from cyclopts import App

from ..errors import FormatError, UsageError
from ..gate.facts import Decision, Reason
from ..runs.decisions import DecisionRecord, LoadRecord
from ..runs.directory import RunDirectory
from ..units import counted, format_bytes, format_rate, format_seconds
from .output import Json, write_columns, write_json
from .why_list import list_requests

__all__ = ["REASONS", "app"]

app = App(name="why")

REASONS = {
    Reason.PAYS: "loading is clearly faster",
    Reason.PAYS_IN_PART: "loading the leading blocks is clearly faster; the rest does not fit",
    Reason.EXPLORES_LOAD: "the rule declined; loaded all the same, to keep the estimates alive",
    Reason.UNMEASURED: "nothing is known of this tier yet; loaded, to learn",
    Reason.ALWAYS: "the policy is to load always",
    Reason.NOTHING_FOUND: "no tier held anything beyond the local blocks",
    Reason.SLOWER: "loading is not clearly faster",
    Reason.EXPLORES_RECOMPUTE: "the rule accepted; computed all the same, to keep the estimates alive",
    Reason.NEVER: "the policy is to load never",
    Reason.OFF: "the gate is off",
    Reason.SHADOW: "shadow mode decides and moves nothing",
    Reason.HOLDOUT: "one of the few that never load, to measure what sharing saves",
    Reason.OUTSIDE: "outside the canary's share",
    Reason.NO_MEMORY: "no free blocks to load into",
    Reason.NOT_ALLOWED: "the request allows less than one block to be loaded",
    Reason.DEADLINE: "not even one block would arrive in time",
    Reason.BUSY: "every slot for loads is taken, and waiting would cost more than computing",
    Reason.UNKNOWN_PREFILL: "nothing has been computed here yet, so computing cannot be priced",
}


@app.default
def run(run: str, request: str | None = None, /, *, json: Json = False) -> None:
    """One request's story: decision, counterfactual, legs, cause.

    Parameters
    ----------
    run
        A run directory.
    request
        The request's id, its decision_id, or the beginning of one that no other request shares. Without it,
        the requests are listed, those whose decision lost the most first, then the newest.
    """
    every = _read(run)
    if request is None:
        if not every and not json:
            raise UsageError(
                f"{run} records no request yet; with record={run} a replica writes one a request"
            )
        if json:
            write_json(every)
        else:
            list_requests(run, every)
        return
    records = _find(run, request, every)
    if json:
        write_json(records if len(records) > 1 else records[0])
        return
    for number, record in enumerate(records):
        if number:
            print()
        _tell(record)


def _read(run: str) -> list[DecisionRecord]:
    """Every record that parses; how many do not is said on standard error."""
    directory = RunDirectory.open(run)
    if not (directory.path / "decisions.jsonl").exists():
        return []
    bad: list[str] = []
    records: list[DecisionRecord] = list(directory.decisions(DecisionRecord, skipped=bad.append))
    if bad and not records:
        raise FormatError(f"no line parses: {bad[0]}")
    if bad:
        print(f"kvferry: {counted(len(bad), 'line')} left out, the first: {bad[0]}", file=sys.stderr)
    return records


def _find(run: str, request: str, records: Sequence[DecisionRecord]) -> Sequence[DecisionRecord]:
    """The records of the one request meant; several when it was served more than once."""
    exact = [record for record in records if request in (record.request_id, record.decision_id)]
    if exact:
        return exact
    begun = [record for record in records if record.request_id.startswith(request)]
    ids = sorted({record.request_id for record in begun})
    if len(ids) == 1:
        return begun
    if ids:
        raise UsageError(
            f"{len(ids)} requests begin with {request!r}, such as {', '.join(ids[:3])}; write more"
        )
    known = list(dict.fromkeys(record.request_id for record in records))
    close = difflib.get_close_matches(request, known, n=3) or known[:3]
    hint = f"; there are {len(known)}, such as {', '.join(close)}" if known else "; it records none"
    raise UsageError(f"{run} has no request {request!r}{hint}")


def _tell(record: DecisionRecord) -> None:
    when = datetime.fromtimestamp(record.arrival, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    label = f", {record.arm_label}" if record.arm_label else ""
    print(f"{record.request_id} on {record.replica}, {when}, mode {record.mode}{label}: {record.path}")
    write_columns([*_request(record), *_decision(record), *_what_happened(record)], indent="  ")


def _request(record: DecisionRecord) -> Iterator[tuple[str, str]]:
    blocks, tail = divmod(record.prompt_tokens, record.block_tokens)
    yield (
        "prompt",
        f"{counted(record.prompt_tokens, 'token')}: {counted(blocks, 'block')} of {record.block_tokens}, "
        f"a tail of {tail}",
    )
    if record.facts is None:
        yield "on offer", "unknown: no decision was reached"
        return
    offered = record.offered_tokens
    size = format_bytes(offered * record.bytes_per_token)
    yield (
        "on offer",
        f"{counted(offered, 'token')} ({size}) beyond {record.facts.local_tokens:,} held locally",
    )
    if record.alien_fields:
        yield "incompatible", f"held under another namespace, which differs in {record.alien_fields}"


def _decision(record: DecisionRecord) -> Iterator[tuple[str, str]]:
    decision = record.decision
    if decision is None:
        short = record.prompt_tokens < record.block_tokens
        why = "the prompt has no whole block" if short else "the request ended, or no tier could be asked"
        yield "decision", f"none: {why}"
        return
    if decision.candidate_bytes:
        yield "load", _predicted_load(record, decision)
        yield "recompute", _predicted_recompute(record, decision)
    chosen = f"load up to block {decision.end_block}" if decision.loads else "recompute"
    yield "decision", f"{chosen}: {REASONS[decision.reason]} ({decision.reason.value})"


def _predicted_load(record: DecisionRecord, decision: Decision) -> str:
    if _load_is_unknown(record, decision):
        looked_up = 0.0 if record.facts is None else record.facts.lookup_seconds
        return f"unknown: nothing was read from there before; look-up {format_seconds(looked_up)}"
    return (
        f"predicted {format_seconds(decision.load_median_seconds)}, at most "
        f"{format_seconds(decision.load_high_seconds)} in {record.terms.load_quantile:.0%} of cases, "
        f"{format_seconds(decision.interference_seconds)} taken from others"
    )


def _predicted_recompute(record: DecisionRecord, decision: Decision) -> str:
    if record.facts is not None and record.facts.live.prefill_observations == 0:
        return "unknown: nothing was computed here before"
    return (
        f"predicted {format_seconds(decision.recompute_seconds)}; the load has to win by "
        f"{format_seconds(decision.margin_seconds)}"
    )


def _load_is_unknown(record: DecisionRecord, decision: Decision) -> bool:
    """Whether a tier that held candidates had never been read: the figure is then the look-up alone."""
    if record.facts is None:
        return False
    first = record.facts.local_tokens // record.facts.block_tokens
    for segment in record.facts.segments:
        if segment.observations == 0 and first < decision.candidate_end_block:
            return True
        first = segment.stop_block
    return False


def _what_happened(record: DecisionRecord) -> Iterator[tuple[str, str]]:
    for load in record.loads:
        yield "leg", _leg(load)
    actual = record.actual
    steps = [f"lookup {format_seconds(actual.lookup_seconds)}"]
    if actual.load_seconds is not None:
        steps.append(f"load {format_seconds(actual.load_seconds)}")
    steps.append(
        f"prefill {format_seconds(actual.prefill_seconds)} for {counted(actual.computed_tokens, 'token')}"
    )
    if actual.ttft_seconds is not None:
        steps.append(f"first token after {format_seconds(actual.ttft_seconds)}")
    yield "actual", ", ".join(steps)
    if record.fallback is not None:
        yield "fallback", f"the load brought less than was asked for: {record.fallback.value}"
    if record.decision is not None and record.decision.candidate_bytes:
        yield "otherwise", _counterfactual(record, record.decision)
    ledger = [f"{outcome.value} {tokens:,}" for outcome, tokens in record.ledger.items() if tokens]
    yield "ledger", f"{' + '.join(ledger) or '0'} = {counted(sum(record.ledger.values()), 'token')}"
    if record.published:
        yield "published", ", ".join(f"blocks {start}-{stop - 1}" for start, stop in record.published)
    if record.aborted:
        yield "end", "aborted"
    for note in record.notes:
        yield "note", note


def _leg(load: LoadRecord) -> str:
    text = (
        f"{load.tier}: blocks {load.start_block}-{load.stop_block - 1}, {load.good_blocks} usable, "
        f"{format_bytes(load.bytes)}: queue {format_seconds(load.queue_seconds)}, "
        f"wire {format_seconds(load.wire_seconds)}"
    )
    if load.bytes and load.wire_seconds > 0:
        text += f" ({format_rate(load.bytes / load.wire_seconds)}, {load.in_flight:.3g} in flight)"
    text += f", install {format_seconds(load.install_seconds)}"
    if load.cause is not None:
        text += f"; {load.cause.value}"
    return f"{text}: {load.detail}" if load.detail else text


def _counterfactual(record: DecisionRecord, decision: Decision) -> str:
    """What the other way was predicted to take, beside what this one took."""
    if decision.loads:
        took, other, name = record.actual.load_seconds, decision.recompute_seconds, "recomputing"
    else:
        took = record.actual.recompute_seconds
        other, name = decision.load_median_seconds + decision.interference_seconds, "loading"
    unknown = record.facts is not None and record.facts.live.prefill_observations == 0
    if unknown if decision.loads else _load_is_unknown(record, decision):
        return f"what {name} would have taken is unknown"
    if took is None:
        return f"{name} was predicted to take {format_seconds(other)}"
    if record.lost_seconds > 0:
        verdict = f"{format_seconds(record.lost_seconds)} lost"
    else:
        verdict = f"{format_seconds(max(0.0, other - took))} saved"
    return (
        f"{name} was predicted to take {format_seconds(other)}; this took {format_seconds(took)}: {verdict}"
    )
