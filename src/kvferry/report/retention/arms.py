"""The arms side by side: what each says of the same continuations and questions."""

from __future__ import annotations

from ...runs.retention_summary import Interval, Retention
from ..page.charts import chart, label
from ..page.content import Figure, Section, Table
from .figures import COLOURS, NAMES, brief, dots, in_order, line, shown

__all__ = ["answers_section", "arms_section", "how_section"]

_ANSWERED = ("target", "source", "mapped", "none")


def arms_section(found: Retention) -> Section | None:
    """Likelihood of the continuations, arm by arm."""
    if not found.nll_per_character:
        return None
    names = in_order(found.nll_per_character)
    rows = tuple(
        (
            NAMES[name],
            brief(found.nll_per_character[name]),
            brief(found.nll_per_token.get(name)),
            brief(found.kl.get(name)),
            *(brief(found.top1[horizon].get(name)) for horizon in found.top1),
        )
        for name in names
    )
    values = [one for one in found.nll_per_character.values() if isinstance(one, Interval)]
    low, high = min(one.low for one in values), max(one.high for one in values)
    room = 0.06 * (high - low or 1.0)
    return Section(
        name="arms",
        title="The same continuation, arm by arm",
        lead="Further left is better. The mapped arm should lie at the target's own, far from the "
        "controls below it.",
        figures=(
            Figure(
                name="arms-chart",
                chart=chart(
                    [
                        dots(
                            [(NAMES[name], found.nll_per_character[name]) for name in names],
                            [COLOURS[name] for name in names],
                            unit=" nats",
                        )
                    ],
                    hovermode="closest",
                    xaxis={"range": [low - room, high + room], "nticks": 7},
                    yaxis={"autorange": "reversed", "fixedrange": True, "showgrid": True},
                ),
                alt="NLL a character: "
                + "; ".join(f"{NAMES[name]} {shown(found.nll_per_character[name])}" for name in names),
                axes="NLL of the continuation, nats a character, with 95 % intervals",
                height=90 + 32 * len(names),
            ),
        ),
        table=Table(
            (
                "arm",
                "NLL a character",
                "NLL a token",
                "KL(target || arm)",
                *(f"top-1 at {horizon}" for horizon in found.top1),
            ),
            rows,
            frozenset(range(1, 4 + len(found.top1))),
        ),
        note="Every arm reads the same text, token by token, and is asked before each token. Means over "
        "items, intervals from resampling documents; the first token's agreement has Wilson's interval. "
        "Top-1 at 32 is over the first 32 tokens. Intervals of single arms overlap even where one is "
        "surely better: "
        + "; ".join(
            f"{NAMES[name]} less mapped {shown(gain)}"
            for name, gain in found.gains.items()
            if name != "target"
        )
        + " (paired, nats a character; more than 0: mapped is better).",
    )


def answers_section(found: Retention) -> Section | None:
    """Questions about the context, by task."""
    tasks = [task for task in found.accuracy if task != "all"]
    if not tasks:
        return None
    shown_tasks = [*tasks, "all"] if len(tasks) > 1 else tasks
    names = in_order(name for task in shown_tasks for name in found.accuracy[task])
    drawn = [name for name in _ANSWERED if name in names]
    traces = []
    for number, name in enumerate(drawn):
        one = line(
            NAMES[name],
            [at + 0.16 * (number - (len(drawn) - 1) / 2) for at in range(len(shown_tasks))],
            [found.accuracy[task][name] for task in shown_tasks],
            COLOURS[name],
        )
        traces.append({**one, "mode": "markers", "marker": {"color": COLOURS[name], "size": 10}})
    for trace in traces:
        trace["hovertemplate"] = trace["hovertemplate"].replace(", %{x}", "")
    return Section(
        name="answers",
        title="Questions about the context",
        lead="The share of right answers among the choices. Where the target itself is near what it says "
        "without context, the task says nothing about a map.",
        figures=(
            Figure(
                name="answers-chart",
                chart=chart(
                    traces,
                    hovermode="closest",
                    xaxis={
                        "tickvals": list(range(len(shown_tasks))),
                        "ticktext": [label(task) for task in shown_tasks],
                        "range": [-0.6, len(shown_tasks) - 0.4],
                        "showgrid": False,
                    },
                    yaxis={"range": [0, 1.05], "nticks": 6},
                ),
                alt="Share of right answers: "
                + "; ".join(
                    f"{task}, {NAMES[name]}: {shown(found.accuracy[task][name], 2)}"
                    for task in shown_tasks
                    for name in drawn
                ),
                axes="Share of right answers, with Wilson's 95 % intervals",
                height=300,
            ),
        ),
        table=Table(
            ("arm", *(f"{task} (n = {_trials(found, task)})" for task in shown_tasks)),
            tuple(
                (NAMES[name], *(brief(found.accuracy[task].get(name)) for task in shown_tasks))
                for name in names
            ),
            frozenset(range(1, 1 + len(shown_tasks))),
        ),
    )


def how_section(found: Retention) -> Section:
    """How each arm came about, and which arms this pair has not."""
    return Section(
        name="how",
        title="What the arms are",
        table=Table(
            ("arm", "its context"),
            tuple(
                (NAMES[name], arm.note if not arm.absent else f"not for this pair: {arm.absent}")
                for name, arm in found.arms.items()
            ),
        ),
        note=" ".join(f"{note[:1].upper()}{note[1:]}." for note in found.notes),
    )


def _trials(found: Retention, task: str) -> int:
    return max((one.n for one in found.accuracy[task].values() if isinstance(one, Interval)), default=0)
