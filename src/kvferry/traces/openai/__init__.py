"""OpenAI-style request logs: their records, how a chat becomes text and tokens, and the trace of it."""

from __future__ import annotations

from .read import open_openai
from .records import LoggedRequest, read_requests
from .template import ChatTemplate
from .tokens import Tokens

__all__ = ["ChatTemplate", "LoggedRequest", "Tokens", "open_openai", "read_requests"]
