"""A thread that looks at the memory limit now and then.

Owns the thread, which ends with its tier, closed or forgotten. A limit is looked at although nothing is
stored or read meanwhile: it is the engine's memory, or a neighbour's, that grows.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

__all__ = ["watch"]

log = logging.getLogger(__name__)


def watch(look: Callable[[], object], every_seconds: float) -> Callable[[], None]:
    """Call the method `look` again and again, in a thread of its own; returns what ends that.

    Holds the method's object weakly.
    """
    stop = threading.Event()
    method = weakref.WeakMethod(look)

    def work() -> None:
        while not stop.wait(every_seconds):
            alive = method()
            if alive is None:
                return
            try:
                alive()
            except Exception:
                # A limit that cannot be read must not end the watch: it may be readable next time.
                log.exception("looking at the memory limit failed")
            del alive

    threading.Thread(target=work, name="kvferry-memory-limit", daemon=True).start()
    return stop.set
