"""`python -m kvferry`: the same as the command `kvferry`."""

from __future__ import annotations

import sys

from .cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
