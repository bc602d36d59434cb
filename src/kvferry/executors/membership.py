"""Whether this replica may use a pool's namespaces, by numerics and not by names.

Beside each namespace lies the KV of a fixed short prompt, computed by the first replica that joined. A
newcomer compares its own; if it differs beyond tolerance, the namespace is not this replica's, whatever the
names say. Joining goes on in a thread of its own until the pool answers, and again whenever the pool has
been away, since it may have come back empty.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import numpy as np

from ..errors import FormatError, StoreError
from ..keys.namespace import Manifest, Namespace, differences
from ..store.namespaces import Refused, join, others
from ..store.tier import Tier

__all__ = ["Member", "Membership", "Standing"]

log = logging.getLogger(__name__)

_RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


class Standing(Enum):
    """What the pool's probe said."""

    PENDING = "pending"
    JOINED = "joined"
    REFUSED = "refused"


@dataclass(slots=True)
class Member:
    """One namespace of this replica."""

    namespace: Namespace
    digest: bytes
    standing: Standing = Standing.PENDING
    why: str = "the pool has not answered yet"


class Membership:
    """The namespaces of this replica, one per data class that may be shared."""

    def __init__(
        self,
        pool: Tier,
        namespaces: Mapping[str, Namespace],
        manifest: Manifest,
        probe: np.ndarray[Any, np.dtype[np.float32]],
        *,
        tolerance: float,
        timeout_seconds: float,
    ) -> None:
        self.members = {name: Member(space, space.digest()) for name, space in namespaces.items()}
        self._pool = pool
        self._manifest = manifest
        self._probe = probe
        self._tolerance = tolerance
        self._timeout = timeout_seconds
        self._again = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvferry-join", daemon=True)

    def start(self) -> None:
        """Begin to join; returns at once."""
        self._again.set()
        self._thread.start()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until no member is pending; False when it takes longer."""
        until = threading.Event()
        for _ in range(max(1, int(timeout_seconds / 0.02))):
            if all(m.standing is not Standing.PENDING for m in self.members.values()):
                return True
            until.wait(0.02)
        return False

    def rejoin(self) -> None:
        """The pool has been away: write what it may have lost, compare again. Members stay what they are."""
        self._again.set()

    def close(self) -> None:
        """Stop trying."""
        self._closed.set()
        self._again.set()

    def others(self, ours: bytes) -> dict[bytes, str]:
        """Other namespaces in the pool: digest to the names of the fields that differ from ours."""
        mine = next(m.namespace for m in self.members.values() if m.digest == ours)
        return {
            digest: ", ".join(differences(mine, fields)) or "numerics"
            for digest, fields in others(self._pool, self._timeout, than=ours).items()
        }

    def _run(self) -> None:
        while True:
            self._again.wait()
            self._again.clear()
            for attempt in range(1_000_000):
                if self._closed.is_set():
                    return
                if self._join_all():
                    break
                self._closed.wait(_RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])

    def _join_all(self) -> bool:
        try:
            for member in self.members.values():
                answer = join(
                    self._pool,
                    member.digest,
                    member.namespace.fields(),
                    msgspec.to_builtins(self._manifest),
                    self._probe,
                    self._tolerance,
                    self._timeout,
                )
                if isinstance(answer, Refused):
                    if member.standing is not Standing.REFUSED:
                        log.error("the pool's blocks are not ours to use: %s", answer.reason)
                    member.standing, member.why = Standing.REFUSED, answer.reason
                else:
                    member.standing, member.why = Standing.JOINED, ""
        except (StoreError, FormatError) as error:
            log.info("the pool could not be joined: %s", error)
            for member in self.members.values():
                if member.standing is Standing.PENDING:
                    member.why = f"the pool could not be joined: {error}"
            return False
        return True
