"""Reads a PromQL query far enough to say which metrics and labels it names. Refuses what it does not know."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Names", "names_in"]

_FUNCTIONS = {
    "avg_over_time",
    "clamp_min",
    "histogram_quantile",
    "increase",
    "label_values",
    "max_over_time",
    "min_over_time",
    "rate",
}
_AGGREGATIONS = {"avg", "count", "max", "min", "sum", "topk"}
_WORDS = {"and", "or", "unless", "bool", "group_left", "group_right", "offset"}
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
"""Words before a list of labels in brackets."""

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<range>\[(?:[^\]]*)\])
    |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])
    """,
    re.VERBOSE,
)
_RANGE = re.compile(r"\[(\d+[smhdw]|\$__rate_interval|\$__interval)\]")


@dataclass
class Names:
    """What a query names. `matched` holds (metric, label, operator, text) of every selector."""

    metrics: set[str] = field(default_factory=set)
    grouped: set[str] = field(default_factory=set)
    matched: list[tuple[str, str, str, str]] = field(default_factory=list)


def names_in(query: str) -> Names:
    """The names in `query`. Raises ValueError where it cannot be read."""
    tokens = _tokens(query)
    found, metric, at = Names(), "", 0

    def here(offset: int = 0) -> tuple[str, str]:
        return tokens[at + offset] if at + offset < len(tokens) else ("", "")

    while at < len(tokens):
        kind, token = here()
        if kind == "name" and token in _LISTS and here(1)[1] == "(":
            at += 2
            while here()[1] != ")":
                kind, label = here()
                if kind == "name":
                    found.grouped.add(label)
                elif label != ",":
                    raise ValueError(f"{label!r} in a list of labels: {query}")
                at += 1
        elif kind == "name" and here(1)[1] == "(" and token not in _WORDS:
            if token not in _FUNCTIONS | _AGGREGATIONS:
                raise ValueError(f"{token}() is not known here: {query}")
        elif kind == "name" and token in _AGGREGATIONS and here(1)[1] in _LISTS:
            pass
        elif kind == "name" and token not in _WORDS:
            metric = token
            found.metrics.add(metric)
        elif token == "{":
            if not metric:
                raise ValueError(f"a selector without a metric: {query}")
            at += 1
            while here()[1] != "}":
                (kind, label), (_, operator), (text_kind, text) = here(), here(1), here(2)
                if (kind, text_kind) != ("name", "text") or operator not in ("=", "!=", "=~", "!~"):
                    raise ValueError(f"{label!r} {operator!r} {text!r} is no matcher: {query}")
                found.matched.append((metric, label, operator, text[1:-1]))
                at += 3
                if here()[1] == ",":
                    at += 1
        elif kind == "range" and not _RANGE.fullmatch(token):
            raise ValueError(f"{token} is no range: {query}")
        at += 1
    return found


def _tokens(query: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            raise ValueError(f"cannot read {query[at : at + 20]!r} in {query}")
        if match.lastgroup:
            tokens.append((match.lastgroup, match.group()))
        at = match.end()
    depth = 0
    for _, token in tokens:
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(token, 0)
        if depth < 0:
            break
    if depth:
        raise ValueError(f"brackets do not match: {query}")
    return tokens
