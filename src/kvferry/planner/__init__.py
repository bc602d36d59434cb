"""What to do: expected benefit per class, break-even, and the verdict in a sentence.

benefit   what a pool would save a class, from a trace's analysis and a measured profile
verdict   local cache, routing or pool, and what is not known

First form: from the trace and the profile alone, without simulation. Pure.
"""

from __future__ import annotations

__all__: list[str] = []
