"""Which arm a request is in: a pure function of the mode and of a hash of the request's id.

The hash is of the request, never of its prefix: requests that share a prefix must spread over the arms, or
the arms would differ in what they ask.
"""

from __future__ import annotations

from hashlib import blake2b

from .facts import Arm

__all__ = ["arm_of", "uniform"]


def uniform(request_id: str, purpose: str) -> float:
    """A number in [0, 1) that depends on nothing but the id and the purpose it is drawn for."""
    digest = blake2b(request_id.encode(), digest_size=8, person=purpose.encode()[:16]).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def arm_of(mode: str, u: float, *, canary_share: float, holdout_share: float) -> Arm:
    """The arm for a uniform number `u`.

    The holdout is the upper end of [0, 1) and stays what it is when the canary grows from below, so
    that raising `canary_share` moves no request out of the holdout.
    """
    if mode == "off":
        return Arm.OFF
    if mode == "shadow":
        return Arm.SHADOW
    if u >= 1.0 - holdout_share:
        return Arm.HOLDOUT
    if mode == "canary" and u >= canary_share:
        return Arm.OUTSIDE
    return Arm.ON
