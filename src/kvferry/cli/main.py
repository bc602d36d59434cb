"""The frame of the command line: which commands exist, and how they end.

Owns the list of commands and the exit statuses: 0 done, 1 a tier, an engine or a check failed, 2 the user's
input, 130 interrupted. An error of kvferry is one line on standard error, never a traceback; anything else
is a bug, and its traceback stays. A command's module is imported only when the command runs, so that help
is quick and a missing extra breaks only its own commands.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from .. import __version__
from ..errors import KvferryError, MissingExtra, UsageError
from .extras import extra_of
from .parsing import explain

__all__ = ["app", "main"]

_FIRST = Group("First steps", sort_key=1)
_MEASURE = Group("What happened, and what would pay", sort_key=2)
_OPERATE = Group("Running it", sort_key=3)

app = App(
    name="kvferry",
    help="Carry KV caches between tiers, replicas, machines and models, when the crossing beats recompute.",
    version=__version__,
    help_format="plaintext",
    version_flags=["--version"],
    default_parameter=Parameter(negative=()),
)

_COMMANDS = (
    ("size", _FIRST, "What a model's KV cache weighs, and what that means."),
    ("demo", _FIRST, "Two replicas share a real KV cache, and only when it pays: five minutes on two cores."),
    ("doctor", _FIRST, "What is installed, what is missing, and whether the pool answers."),
    ("trace", _FIRST, "What requests were, and what they say: analyze, lint, record, convert, synthesize."),
    ("plan", _FIRST, "Local cache, routing or a pool: the verdict from a trace, a model and a profile."),
    ("why", _MEASURE, "One request's story: decision, counterfactual, legs, cause."),
    ("break-even", _MEASURE, "The bandwidth above which loading beats recompute."),
    ("report", _MEASURE, "A run as one page for a browser, which needs no network."),
    ("replica", _OPERATE, "Serve a model over the OpenAI HTTP API, with kvferry beside it."),
    ("handoff", _OPERATE, "A finished prefill goes to another node, and to another model."),
    ("store", _OPERATE, "What a pool holds: stat, ls, verify, purge, sweep."),
    ("config", _OPERATE, "The settings, each with its origin."),
)
for _name, _group, _help in _COMMANDS:
    app.command(f"kvferry.cli.{_name.replace('-', '_')}:app", name=_name, group=_group, help=_help)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (None: the process's) and give its exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _run(words)
    except KvferryError as error:
        return _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # Whoever read our output (head, less) has left; writing more at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    names = [name for name, _, _ in _COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in names:
        # The parser's own message would import every command to list them.
        close = difflib.get_close_matches(words[0], names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise UsageError(f"there is no command {words[0]!r}; {hint}")
    try:
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise UsageError(explain(error)) from error
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        extra = extra_of(cause.name or "")
        if extra is None:
            raise
        raise MissingExtra(f"kvferry {words[0]}", extra) from error
    return result if isinstance(result, int) else 0


def _fail(message: str, status: int) -> int:
    # A name or a line from a file may hold what a terminal would obey.
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.split()))
    print(f"kvferry: {shown}", file=sys.stderr)
    return status
