"""Detects images that stand before shared text: another picture, or the same one written differently.

Compares addresses and bytes; decodes no picture. Two PNG files with the same pixels stream are known to be
the same picture whatever their metadata says; two other files with different bytes are called different.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct

from .jump import Jump
from .prompt import Prompt

__all__ = ["meet_images"]

_DATA = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_PNG = b"\x89PNG\r\n\x1a\n"


def meet_images(left: Prompt, left_at: int, right: Prompt, right_at: int) -> list[Jump]:
    """Both prompts have an image here."""
    one, two = left.piece_at(left_at), right.piece_at(right_at)
    if one is None or two is None or one.kind != "image" or two.kind != "image":
        return []
    return [Jump("image", one.end, two.end, _difference(str(one.value), str(two.value)))]


def _difference(left: str, right: str) -> str:
    data, other = _DATA.match(left), _DATA.match(right)
    if bool(data) != bool(other):
        return "inline in one request, by address in the other"
    if not data or not other:
        if left.partition("?")[0] == right.partition("?")[0]:
            return "the same address with another query (a signature?)"
        return "another address"
    first, second = _bytes(left, data.end()), _bytes(right, other.end())
    if first is not None and first == second:
        return "the same bytes in another data URI"
    if data[1].lower() != other[1].lower():
        return f"{data[1].lower()} in one request, {other[1].lower()} in the other"
    if first and second and _pixels(first) is not None and _pixels(first) == _pixels(second):
        return "the same picture with other metadata"
    return "other bytes"


def _bytes(uri: str, start: int) -> bytes | None:
    try:
        return base64.b64decode("".join(uri[start:].split()) + "==", validate=False)
    except (binascii.Error, ValueError):
        return None


def _pixels(data: bytes) -> bytes | None:
    """The chunks of a PNG that make its pixels, still packed; None for anything else."""
    if not data.startswith(_PNG):
        return None
    kept, at = b"", len(_PNG)
    while at + 12 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] in (b"IHDR", b"PLTE", b"tRNS", b"IDAT"):
            kept += data[at + 4 : at + 8 + size]
        at += 12 + size
    return kept
