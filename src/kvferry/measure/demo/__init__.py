"""The main job on one machine: two replica processes share a real KV cache, and only when it pays.

Every step drives real processes over HTTP and judges what they recorded; nothing is simulated. `run_demo`
in `run.py` plays the steps in order.
"""

from __future__ import annotations

__all__: list[str] = []
