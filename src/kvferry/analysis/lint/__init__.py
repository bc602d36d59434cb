"""Why prompts that look alike do not match: causes, what they cost, how to mend them.

Owns the reading of a message log as prompts, the comparison of relatives and the sums. Opens no file and
prints nothing. `rows` gives prompts, `walk` compares two of them, `run` lints a log, `baseline` compares two
logs.
"""

from __future__ import annotations

from .counting import Counting, by_bytes, by_tokenizer
from .prompt import Prompt
from .result import Example, FamilyResult, Finding, LintResult
from .rows import Render, fields_of, prompts_of
from .run import Lint, lint

__all__ = [
    "Counting",
    "Example",
    "FamilyResult",
    "Finding",
    "Lint",
    "LintResult",
    "Prompt",
    "Render",
    "by_bytes",
    "by_tokenizer",
    "fields_of",
    "lint",
    "prompts_of",
]
