"""Whether this replica may use a pool's namespaces, by numerics and not by names.

Beside each namespace lies the KV of a fixed short prompt, computed by the first replica that joined. A
newcomer compares its own; if it differs beyond tolerance, the namespace is not this replica's, whatever the
names say. Joining goes on in a thread of its own until the pool answers.

A pool that was emptied has lost the probe, and a stranger may have joined it first. So a word lies in the
pool, drawn by whoever found none: while it is the same, what was compared holds. It is read again now and
then, and at once when the pool has been away; where it differs, the namespaces are compared anew.
"""

from __future__ import annotations

import logging
import secrets
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
_CHECK_SECONDS = 2.0
_WORD = "incarnation"
"""The note with the word."""


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
    word: bytes = b""
    """The pool's word when the probe was compared last; empty before."""
    refused: str = ""
    """What the comparison said, where it said no."""


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
        """The pool has been away: nothing is exchanged before its word is known to be the same."""
        for member in self.members.values():
            if member.standing is Standing.JOINED:
                member.standing, member.why = Standing.PENDING, "the pool has been away"
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
            asked = self._again.wait(_CHECK_SECONDS)
            self._again.clear()
            for attempt in range(1_000_000):
                if self._closed.is_set():
                    return
                if self._settle(quietly=not asked):
                    break
                self._again.wait(_RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])
                self._again.clear()

    def _settle(self, *, quietly: bool) -> bool:
        """Bring every member's standing up to date; False when the pool did not let us.

        A pool that does not answer while nobody asked about it is no reason to try harder: whoever needs
        it will notice, and `rejoin` is called when it is back.
        """
        try:
            word = self._read_word()
            for member in self.members.values():
                if member.word != word:
                    self._compare(member, word)
                member.standing = Standing.REFUSED if member.refused else Standing.JOINED
                member.why = member.refused
        except (StoreError, FormatError) as error:
            log.info("the pool could not be joined: %s", error)
            pending = [m for m in self.members.values() if m.standing is Standing.PENDING]
            for member in pending:
                member.why = f"the pool could not be joined: {error}"
            return quietly and not pending
        return True

    def _read_word(self) -> bytes:
        drawn = secrets.token_hex(8).encode()
        found = self._pool.read_note(_WORD, self._timeout)
        if found is None and self._pool.write_note(_WORD, drawn, self._timeout, if_absent=True):
            return drawn
        return found or self._pool.read_note(_WORD, self._timeout) or b""

    def _compare(self, member: Member, word: bytes) -> None:
        # Nothing is exchanged meanwhile: whose blocks lie there now is not known.
        if member.standing is Standing.JOINED:
            member.standing, member.why = Standing.PENDING, "the pool has lost what it held"
        answer = join(
            self._pool,
            member.digest,
            member.namespace.fields(),
            msgspec.to_builtins(self._manifest),
            self._probe,
            self._tolerance,
            self._timeout,
        )
        refused = answer.reason if isinstance(answer, Refused) else ""
        if refused and not member.refused:
            log.error("the pool's blocks are not ours to use: %s", refused)
        member.refused, member.word = refused, word
