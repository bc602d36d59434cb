"""The environment that a process started by kvferry gets.

Owns the copying of our own environment, so that no other room reads it. Refuses to know which processes
there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from .places import CACHE_VARIABLE, PREFIX

__all__ = ["child_environment"]


def child_environment(
    changes: Mapping[str, str] | None = None, *, settings: bool = True, env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A copy of the environment (`env`; None: the process's) with `changes` made.

    Without `settings` the child does not see our KVFERRY_ settings nor the file they name, only those in
    `changes`: an experiment must not depend on what its user had set. The cache folder is kept.
    """
    inherited = dict(os.environ if env is None else env)
    if not settings:
        inherited = {
            name: value
            for name, value in inherited.items()
            if not name.startswith(PREFIX) or name == CACHE_VARIABLE
        }
    return inherited | dict(changes or {})
