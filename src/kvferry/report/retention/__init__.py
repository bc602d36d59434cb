"""The page of a map's retention: the verdict, every arm, and the curves behind it.

`page` says what is on it, `curves` draws along the continuation, beyond the calibrated positions, over what
is re-read and over hand-offs, `arms` the arms side by side. The file is made as every page is.
"""

from __future__ import annotations

from .page import retention_page, write_retention_page

__all__ = ["retention_page", "write_retention_page"]
