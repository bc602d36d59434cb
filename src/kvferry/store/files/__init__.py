"""A directory as a tier, on a local disk or a file system that machines share."""

from __future__ import annotations

from .tier import FilesTier

__all__ = ["FilesTier"]
