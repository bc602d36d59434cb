"""The embedded engine: a causal language model in Hugging Face transformers, on the CPU.

packaged, gguf_folder, resolve   where the model comes from
digests                          what its files are
layout, span, arena              where its KV lies: per block, per request, per replica
runner                           the forward pass
request, sampling, text          one request: its state, its next token, its words
cacheside                        what the engine asks of a shared cache
scheduler                        the one thread that joins them
engine                           the same, as an HTTP server sees it
"""

from __future__ import annotations

__all__: list[str] = []
