"""What is on the page of a map's retention, and in which order: the answer first."""

from __future__ import annotations

from pathlib import Path

from ...runs.retention_summary import Interval, Refused, Required, Retention
from ..page.content import Check, Page, Section, Table, Tile, Tone, in_rows
from ..page.document import write_page
from .arms import answers_section, arms_section, how_section
from .curves import along_sections, beyond_section, hold_back_section, longer_section, turns_section
from .figures import shown, span_of

__all__ = ["retention_page", "write_retention_page"]

_TILES = (
    ("top1@32", "agreement over 32 tokens"),
    ("floor_retention", "kept of the context's worth"),
    ("beyond_top1", "agreement beyond calibrated"),
    ("retention", "answers right, of the target's"),
    ("kl", "KL to the target, nats"),
    ("slope_nll", "NLL more a hand-off, nats"),
)
_SHARES = {
    "retention": "answers right, of the target's",
    "floor_retention_accuracy": "kept of what the context is worth (answers)",
    "gap_recovered_accuracy": "gap from source to target recovered (answers)",
    "floor_retention": "kept of what the context is worth (NLL)",
    "gap_recovered": "gap from source to target recovered (NLL)",
}


def write_retention_page(found: Retention, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the page. Raises `UsageError` where that is not possible, `MissingExtra` without its extra."""
    return write_page(retention_page(found), path, overwrite=overwrite)


def retention_page(found: Retention) -> Page:
    """What is on the page."""
    sections = (
        _required(found),
        arms_section(found),
        *along_sections(found),
        beyond_section(found),
        longer_section(found),
        hold_back_section(found),
        turns_section(found),
        answers_section(found),
        _shares(found),
        how_section(found),
    )
    counts = ", ".join(f"{count} {task}" for task, count in found.items.items())
    return Page(
        kind="Hand-off quality",
        title=f"{found.source} to {found.target}",
        subtitle=f"{found.map.name}, {found.map.file} · {counts} · {found.documents} documents",
        verdict=_verdict(found),
        tone=_tone(found),
        tiles=tuple(_tile(found, name, words) for name, words in _TILES),
        sections=in_rows(sections),
        facts=(
            ("trained on", f"{found.map.trained_tokens:,} tokens"),
            ("seed", str(found.settings.seed)),
            ("context tokens", str(found.settings.context_tokens)),
            ("injected KV's logits", f"within {found.gate.injected_logit_error:.1g} of native"),
            (
                "stripped keys",
                f"within {found.gate.source_strip_error:.1g} and {found.gate.target_strip_error:.1g}",
            ),
            *((f"{name} took", f"{value:.1f} s") for name, value in found.seconds.items()),
        ),
    )


def _verdict(found: Retention) -> tuple[str, ...]:
    answer = found.verdict.answer
    missed = [one.text for one in found.required if not one.met]
    sentences = [f"{answer[:1].upper()}{answer[1:]}."]
    sentences += [f"{reason[:1].upper()}{reason[1:]}." for reason in found.verdict.reasons]
    if found.verdict.longer:
        sentences.append(f"On {found.verdict.longer}.")
    if missed:
        sentences.append(f"Required and not met: {', '.join(missed)}.")
    least = found.verdict.thresholds
    sentences.append(
        f"Fixed beforehand: the lower ends of agreement over 32 tokens and of the context's worth kept must "
        f"reach {least['top1@32']:g} and {least['floor_retention']:g}, over at least "
        f"{least['documents']:.0f} documents."
    )
    return tuple(sentences)


def _tone(found: Retention) -> Tone:
    if not found.verdict.usable or not all(one.met for one in found.required):
        return "bad"
    return "good"


def _tile(found: Retention, name: str, words: str) -> Tile:
    figure = found.figures[name]
    if isinstance(figure, Refused):
        return Tile(words, "–", "refused: see below" if name in _SHARES else "not measured")
    threshold = found.verdict.thresholds.get(name)
    tone: Tone = "plain"
    if threshold is not None:
        tone = "good" if figure.low >= threshold else "bad"
    return Tile(words, f"{figure.value:.3f}", span_of(figure), tone)


def _required(found: Retention) -> Section | None:
    if not found.required:
        return None

    def words(one: Required) -> str:
        if isinstance(one.figure, Refused):
            return f"{one.text}: no figure, {one.figure.reason}"
        end = one.figure.high if one.end == "high" else one.figure.low
        return f"{one.text}: the {'upper' if one.end == 'high' else 'lower'} end is {end:.4f}"

    return Section(
        name="required",
        title="What was required",
        checks=tuple(Check(words(one), one.met) for one in found.required),
    )


def _shares(found: Retention) -> Section:
    rows = []
    for name, words in _SHARES.items():
        figure = found.figures[name]
        said = shown(figure) if isinstance(figure, Interval) else f"refused: {figure.reason}"
        rows.append((words, said))
    return Section(
        name="shares",
        title="Retention, and what is refused",
        lead="A share of a gap is given only where the gap's own interval lies above nothing.",
        table=Table(("share", "with its 95 % interval"), tuple(rows)),
        note="Kept of what the context is worth: (mapped - no context) / (target - no context). Gap "
        "recovered: (mapped - source) / (target - source). Both are ratios of means over items, "
        "resampled by document.",
    )
