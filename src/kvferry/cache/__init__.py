"""The shared cache of one engine as a state machine without I/O.

It takes lookups and completions, asks the gate, and emits commands; executors carry them out. Pure: time
arrives as an argument, and nothing in here waits, so that every interleaving can be tested without a
thread and the simulator runs the very same code.
"""

from __future__ import annotations

__all__: list[str] = []
