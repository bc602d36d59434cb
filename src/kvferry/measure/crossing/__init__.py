"""Training a map between two families, and what it is worth when one agent hands over to another.

To read in this order: `pieces`, `facts` (what is trained and judged on); `behind` (what a model says behind a
given KV); `recipe`, `calibrating`, `steps`, `train`, `checkpoint`, `judging` (the training); `agents` (the
agent-to-agent task); `device` (what it all computes on).
"""

from __future__ import annotations

__all__: list[str] = []
