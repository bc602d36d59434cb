"""Carrying a whole prefill: to another node of the same model, and to another model.

wire         same model: what is said of a hand-off, its chunks, its price, sending and receiving
transports   how the chunks cross: TCP, shared memory on one host, any tier
"""

from __future__ import annotations

__all__: list[str] = []
