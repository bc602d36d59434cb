"""What a model's KV cache weighs, from its config alone.

fields, names          a config as fields that are there or are missing
families               which architectures are known, and what each fixes
patterns, parts        which layer is what, and what it keeps (varying, states)
config, gguf, open     from a config.json, a GGUF file or a preset to a `Model`
layers                 the model as its cache sees it
dtypes                 bytes of a KV dtype, scales included
layouts                how engines lay it out, and what they count
size, naive            the answer, and the textbook's figure beside it
prefill, transfer      carrying it against computing it again (channels)
logs, agreement        whether an engine's log fits (nearby)

Pure, and without numpy: text in, numbers out.
"""

from __future__ import annotations

__all__: list[str] = []
