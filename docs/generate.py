"""Writes the pages that come from the code; with --check only says whether they are in step.

docs/settings.md   every setting, from the schema
docs/metrics.md    every metric, label and span, from the list of names
"""

from __future__ import annotations

import sys
from pathlib import Path

from metrics_page import metrics_page

from kvferry.config import Config
from kvferry.config.fields import Field, fields_of, show_value

__all__: list[str] = []

_HEAD = """# Settings

*Written by `make docs` from `src/kvferry/config/schema.py`; change it there.*

Every setting can be given in four ways; the later ones win, value by value:

1. a YAML file: `--file FILE`, or named by the variable `KVFERRY_CONFIG`;
2. the environment: `gate.margin` is `KVFERRY_GATE__MARGIN`, two underscores for the dot;
3. vLLM's `kv_connector_extra_config`: `{"gate": {"margin": "5ms"}}`;
4. flags: `--set gate.margin=5ms`.

Sizes, spans and rates carry their unit, and case decides: `16GiB` is 2<sup>34</sup> bytes, `16GB` is
16,000,000,000, `5ms` is 0.005 s. A bare number is refused. `null` unsets what may be unset. An unknown name
or a value out of bounds ends the program with status 2 and says what to write.
`kvferry config show` prints every value with its origin, as YAML that can be saved.
"""


_TABLE = ("| setting | takes | default | what it does |", "|---|---|---|---|")


def _row(field: Field) -> str:
    kind = " \\| ".join(f"`{choice}`" for choice in field.choices) or _KINDS[field.kind]
    default = show_value(field, field.default)
    return f"| `{field.path}` | {kind} | `{default}` | {field.doc} |"


_KINDS = {
    "bytes": "size",
    "seconds": "span",
    "rate": "rate",
    "tokens": "tokens",
    "int": "whole number",
    "float": "number",
    "bool": "`true` \\| `false`",
    "text": "text",
    "texts": "list of texts",
}


def _settings() -> str:
    lines = [_HEAD, *_TABLE]
    for path, field in fields_of(Config).items():
        if field.kind == "group":
            lines += ["", f"## {path}: {field.doc}", "", *_TABLE]
        else:
            lines.append(_row(field))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the pages, or check them."""
    check, status = "--check" in sys.argv[1:], 0
    for name, text in (("settings.md", _settings()), ("metrics.md", metrics_page())):
        page = Path(__file__).with_name(name)
        if not check:
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"{page} is not in step with the code: run `make docs`", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
