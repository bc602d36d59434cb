"""Public conformance suites: what a part of yours must do to work with the rest.

Needs pytest and hypothesis, which a user of the suites has.
"""

from __future__ import annotations

__all__: list[str] = []
