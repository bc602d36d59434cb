"""Chains of stored blocks: none goes before one that continues it.

A block can only be used with all blocks before it, so the head of a chain is worth as much as everything
behind it. Owns which stored key continues which, and hands a policy what follows from that: a use of a block
is a use of all before it, and a block that another one continues is kept. Policies order keys, whatever
hangs on them; this holds for each of them.

What continues what is learned from the order of the keys in a batch that is written, and from `Hints.after`.
A wrong order (a batch that is no chain) only keeps some blocks longer. Called under the tier's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .policy import EvictionPolicy

__all__ = ["Evictor"]


class _Link:
    """A stored key in its chain."""

    __slots__ = ("continued", "key", "parent", "stored")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.parent: _Link | None = None
        self.continued = 0
        """How many stored keys continue this one."""
        self.stored = True


class Evictor:
    """The stored keys of a tier and a policy that orders them."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._links: dict[bytes, _Link] = {}
        self._lost: dict[bytes, _Link] = {}
        """Keys that went before what continues them; they take their place again when they come back."""

    def insert(
        self,
        chain: Sequence[bytes],
        fresh: Sequence[tuple[bytes, int, float | None]],
        after: bytes | None = None,
    ) -> None:
        """Keys came: `fresh` with their bytes and worth in seconds, in the order of `chain`, the whole batch.

        Keys of `chain` that are stored already, and `after` in front of it, are what the fresh ones continue.
        """
        came = {key: (size, worth) for key, size, worth in fresh}
        for key in came:
            link = self._links[key] = self._lost.pop(key) if key in self._lost else _Link(key)
            link.stored = True
        self._learn(chain if after is None else [after, *chain])
        child: _Link | None = None
        for key, _, _ in reversed(fresh):
            link = self._links[key]
            size, worth = came[key]
            follows = child is not None and child.parent is link
            self._policy.insert(key, size, worth, child.key if follows and child else None)
            child = link
        if fresh:
            self._touch_above(self._links[fresh[0][0]])

    def use(self, keys: Sequence[bytes]) -> None:
        """Stored keys were read, one batch in the order of their chain."""
        child: _Link | None = None
        for key in reversed(keys):
            link = self._links[key]
            follows = child is not None and child.parent is link
            self._policy.touch(key, child.key if follows and child else None)
            child = link
        if child is not None:
            self._touch_above(child)

    def remove(self, key: bytes) -> bytes | None:
        """A stored key went; the key before it, if that one is the tail of its chain now.

        What continued it stays.
        """
        self._policy.remove(key)
        link = self._links.pop(key)
        link.stored = False
        if link.continued:
            self._lost[key] = link
        return self._cut(link)

    def choose(self, pinned: Callable[[bytes], bool]) -> bytes | None:
        """The next key to evict, or None when every one is pinned or continued by one that is."""
        links = self._links
        return self._policy.choose(lambda key: links[key].continued > 0 or pinned(key))

    def is_continued(self, key: bytes) -> bool:
        """Whether a stored key continues this one."""
        return self._links[key].continued > 0

    def _learn(self, chain: Sequence[bytes]) -> None:
        before: _Link | None = None
        for key in chain:
            link = self._links.get(key)
            if link is None:
                continue
            orphan = link.parent is None or not link.parent.stored
            if orphan and before is not None and not _leads_to(before, link):
                self._cut(link)
                link.parent = before
                before.continued += 1
            before = link

    def _cut(self, link: _Link) -> bytes | None:
        """Take a link off what it continues; the key of that, if it is stored and a tail now."""
        parent, link.parent = link.parent, None
        if parent is None:
            return None
        parent.continued -= 1
        if parent.continued:
            return None
        if not parent.stored:
            del self._lost[parent.key]
            return None
        return parent.key

    def _touch_above(self, child: _Link) -> None:
        parent = child.parent
        while parent is not None and parent.stored:
            self._policy.touch(parent.key, child.key)
            child, parent = parent, parent.parent


def _leads_to(link: _Link | None, ancestor: _Link) -> bool:
    """Whether `ancestor` is `link` or before it: to continue the one with the other would make a ring."""
    while link is not None:
        if link is ancestor:
            return True
        link = link.parent
    return False
