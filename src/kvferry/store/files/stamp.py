"""What a value's file says of its use and its life: all of it fits into two timestamps.

    mtime   the end of its life, in whole milliseconds; 0 never
    atime   when it was last used, in steps of ten seconds, and below that, in decimal digits, from the left:
            999,999 - position in its chain; how long it may be idle (a code, 0 for ever); 1 when it was read

So every process that shares the directory sees it, a read costs one `utime` as before, and the order of the
atimes is the order of eviction: by last use, and within ten seconds a chain from its tail, unread ones first.
An atime that somebody else set (a backup that reads) ends in another digit, or passes for one of ours: the
block may stay a little longer or go a little earlier, no more.

Owns these figures; refuses to know files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["NEVER", "Stamp", "expiry_of", "idle_code_of", "is_over", "stamp_of"]

NEVER = 0
"""The mtime (nanoseconds) of a value that does not expire."""

_MILLISECOND = 1_000_000
_STEP = 10_000_000_000
_DEEPEST = 999_999
_POSITION = 10_000
_CODE = 10
_CODES = 999
_LONGEST_IDLE = 365 * 86_400.0
_RATIO = _LONGEST_IDLE ** (1 / (_CODES - 1))


@dataclass(frozen=True, slots=True)
class Stamp:
    """The use of a value."""

    used_ns: int
    """Within ten seconds before its last use."""
    position: int = 0
    """Blocks before it in its chain, as far as its writer knew."""
    idle_code: int = 0
    read: bool = False

    @property
    def atime_ns(self) -> int:
        place = (_DEEPEST - min(self.position, _DEEPEST)) * _POSITION
        return self.used_ns // _STEP * _STEP + place + self.idle_code * _CODE + self.read


def stamp_of(atime_ns: int) -> Stamp:
    """What an atime says; one that is not ours says only when."""
    digits = atime_ns % _STEP
    if digits % _CODE > 1:
        return Stamp(atime_ns, read=True)
    return Stamp(
        atime_ns - digits, _DEEPEST - digits // _POSITION, digits % _POSITION // _CODE, bool(digits % _CODE)
    )


def idle_code_of(seconds: float | None) -> int:
    """A code for at least so many seconds (one second to a year, in steps of less than 2 %); 0 for ever."""
    if seconds is None or seconds > _LONGEST_IDLE:
        return 0
    return 1 + math.ceil(math.log(max(1.0, seconds), _RATIO) - 1e-9)


def expiry_of(now_ns: int, life_seconds: float) -> int:
    """The mtime of a value that lives for `life_seconds` from now: whole milliseconds, rounded up."""
    return -(-(now_ns + int(life_seconds * 1e9)) // _MILLISECOND) * _MILLISECOND


def is_over(atime_ns: int, mtime_ns: int, now_ns: int, unread_seconds: float) -> bool:
    """Whether a value's life is over: at its end, idle for too long, or unread for too long.

    An mtime that is not of whole milliseconds was set by somebody who wrote to the file, not by us: it says
    nothing of a life, and the value's checksum will tell what was done to it.
    """
    if mtime_ns % _MILLISECOND:
        return False
    if mtime_ns != NEVER and mtime_ns <= now_ns:
        return True
    digits = atime_ns % _STEP
    flag = digits % _CODE
    code = digits % _POSITION // _CODE
    if flag > 1 or (flag == 1 and code == 0):
        return False
    idle = _RATIO ** (code - 1) if code else math.inf
    limit = idle if flag else min(idle, unread_seconds)
    return limit < math.inf and now_ns - (atime_ns - digits + _STEP) >= limit * 1e9
