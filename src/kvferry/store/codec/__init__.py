"""KV blocks in fewer bytes, in tiers and on the way: exact, FP8, and 8- and 4-bit integers; one file each.

`open_codec` makes a codec for blocks of one layout; `store/framed.py` encodes and decodes with it. Add a
codec: a number in `frame.Codec`, a class with its sections, a line in `names.py` and one in docs/codecs.md.
"""

from __future__ import annotations

from .contract import Codec
from .layout import BlockLayout
from .names import CODECS, bytes_per_token, kv_dtype_name, open_codec

__all__ = ["CODECS", "BlockLayout", "Codec", "bytes_per_token", "kv_dtype_name", "open_codec"]
