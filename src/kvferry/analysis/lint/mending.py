"""How to mend a finding, in one sentence that names the place.

Owns the words. Knows nothing of how a finding was made.
"""

from __future__ import annotations

from ...units import counted
from .jump import Cause

__all__ = ["mend", "recommend", "where"]

_SENTENCES: dict[Cause, str] = {
    "date": (
        "Take the date or time out of {spot}{inside}, or put it behind what is shared, in the last message."
    ),
    "id": (
        "Take the identifier out of {spot}{inside}: send it as a field of the request, or put it into the "
        "last message."
    ),
    "counter": "Take the changing number out of {spot}, or put it into the last message.",
    "tool-order": "Sort the {spot} by name before a request is sent{inside}.",
    "tool-set": (
        "Send the same {spot} with every request{inside} and restrict them by tool_choice, or put those that "
        "vary at the end of the list."
    ),
    "json-key-order": (
        "Write the JSON in {spot} with sorted keys{inside} in every service (sort_keys=True)."
    ),
    "json-spacing": (
        "Write the JSON in {spot} with one serializer and one setting of spaces and escapes{inside}."
    ),
    "template": (
        "Serve one version of the chat template ({spot}), and change it on all replicas and services at once."
    ),
    "tokenizer": (
        "Serve one version of the tokenizer ({spot}): no token sequence is shared between different ones."
    ),
    "image": (
        "Send the picture in {spot} by one stable address and encoding{inside}, or put it behind the text "
        "that is shared."
    ),
    "whitespace": (
        "Write {spot} with one form of line ends, spaces and Unicode{inside}: strip and normalise to NFC "
        "where the prompt is put together."
    ),
    "early-text": (
        "Move what varies at {spot} (personal or per-request text) behind the text that all requests share."
    ),
    "trimmed-history": (
        "Trim conversations at {spot} in large, rare steps (half of one at once, say), not a little at every "
        "turn{inside}: what follows a cut is not shared."
    ),
    "other": "Use one wording at {spot}, or move the edited text behind what all versions share.",
}


def where(place: str, line: int) -> str:
    """A place in words: `line 3 of messages[0] (system)`."""
    return f"line {line} of {place}" if line else place


def mend(cause: Cause, place: str, line: int, detail: str) -> str:
    """What to change, and where."""
    return _SENTENCES[cause].format(spot=where(place, line), inside=f" ({detail})" if detail else "")


def recommend(mending: str, own: int, blocked: int, requests: int, total: int) -> str:
    """The one thing to do first. `own` tokens come back by it alone, `blocked` with what is behind it."""
    share = 100 * blocked / total if total else 0.0
    what = f"{counted(blocked, 'token')} of {counted(requests, 'request')}"
    kept = f"It keeps {what} from being shared ({share:.1f} % of all input)"
    if own < blocked:
        kept += f"; {blocked - own:,} of them come back only once the findings behind it are mended too"
    return f"{mending} {kept}."
