"""Blocks and a server, as the tests of the store have them."""

from __future__ import annotations

from ..store.conftest import blocks, server

__all__ = ["blocks", "server"]
