"""The connector in real vLLM servers: what each way to a ready prompt costs, and what happens when it fails.

Servers are processes driven over HTTP; vLLM itself is never imported here. `run_vllm_demo` in `run.py` plays
the steps in order.
"""

from __future__ import annotations

__all__: list[str] = []
