"""How engines lay a model's KV out in memory, and what they count.

setup      what the user says about the deployment
kept       bytes of every layer on one rank, by an engine's rules
contract   what every layout answers
placed     layers and draft layers on their stages (stages)
vllm       pages, groups and blocks (pages, grouping)
sglang     one pool, or two, and state slots
llama_cpp  cells, a second pool for windows, recurrent cells
flat       engines that keep every layer for every token: TensorRT-LLM, LMDeploy; and transformers
choose     from an engine's name to its layout
"""

from __future__ import annotations

__all__: list[str] = []
