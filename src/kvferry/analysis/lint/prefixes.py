"""Which prompts came before, and how far a new one agrees with any of them.

Owns the index of prefixes (a cache that never evicts, up to a bound) and the prompts kept for comparison.
Memory is bounded: prefixes beyond the limit are forgotten oldest first, and prompts by their total length.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from .prompt import Prompt, common_length

__all__ = ["Prefixes"]

_STEP = 64
"""Characters between two nodes of the index."""
_MOST_CHILDREN = 64
"""Continuations kept at a node. Behind that many a further one is measured against these only."""
_MOST_NODES = 400_000
_MOST_TURNS = 200_000
_MOST_CHARACTERS = 48_000_000
_SHORTEST_TURN = 16
_BEGINNING = 256
"""Characters at the beginning of a turn that tell a document which many requests hold."""
_TURNS_BACK = 5


class Prefixes:
    """Earlier prompts, by what they begin with and by the turns that they hold."""

    def __init__(
        self,
        *,
        most_nodes: int = _MOST_NODES,
        most_characters: int = _MOST_CHARACTERS,
        most_turns: int = _MOST_TURNS,
    ) -> None:
        self._limits = most_nodes, most_characters, most_turns
        self._nodes: OrderedDict[bytes, tuple[int, list[str]]] = OrderedDict()
        self._turns: OrderedDict[bytes, int] = OrderedDict()
        self._prompts: OrderedDict[int, Prompt] = OrderedDict()
        self._names: tuple[Prompt | None, list[tuple[int, bytes]]] = (None, [])
        self._characters = 0
        self._next = 0
        self.forgotten = 0
        """Nodes dropped for want of room; cached tokens may be understated once there are any."""

    def longest(self, prompt: Prompt) -> tuple[int, int | None]:
        """Characters that some earlier prompt begins with too, and the number of the latest such prompt."""
        known, nearest = 0, None
        for at, name in self._named(prompt):
            node = self._nodes.get(name)
            if node is None:
                break
            known, (nearest, children) = at, node
            text = prompt.text[at : at + _STEP]
            best = max([common_length(text, 0, child, 0) for child in children], default=0)
            known += best
            if best < _STEP:
                break
        return known, nearest

    def mates(self, prompt: Prompt) -> list[int]:
        """The latest prompts that hold a turn of this one: its conversation, or the same document."""
        found: dict[int, None] = {}
        turns = _spoken(prompt)
        for start, end in reversed(turns[-_TURNS_BACK:-1]):
            number = self._turns.get(_turn(prompt, start, end))
            if number is not None:
                found[number] = None
                break
        for start, end in turns:
            if end - start >= _BEGINNING:
                number = self._turns.get(_turn(prompt, start, start + _BEGINNING))
                if number is not None:
                    found[number] = None
                    break
        return list(found)

    def get(self, number: int | None) -> Prompt | None:
        """A prompt by its number, if it is still kept."""
        if number is None:
            return None
        prompt = self._prompts.get(number)
        if prompt is not None:
            self._prompts.move_to_end(number)
        return prompt

    def add(self, prompt: Prompt) -> int:
        """Keep a prompt; its number."""
        number = self._next
        self._next += 1
        most_nodes, most_characters, most_turns = self._limits
        for at, name in self._named(prompt):
            text = prompt.text[at : at + _STEP]
            node = self._nodes.get(name)
            children = node[1] if node else []
            if text and text not in children and len(children) < _MOST_CHILDREN:
                children.append(text)
            self._nodes[name] = (number, children)
            self._nodes.move_to_end(name)
        while len(self._nodes) > most_nodes:
            self._nodes.popitem(last=False)
            self.forgotten += 1
        for start, end in _spoken(prompt):
            self._turns[_turn(prompt, start, end)] = number
            if end - start > _BEGINNING:
                self._turns[_turn(prompt, start, start + _BEGINNING)] = number
        while len(self._turns) > most_turns:
            self._turns.popitem(last=False)
        self._prompts[number] = prompt
        self._characters += len(prompt.text)
        while self._characters > most_characters and len(self._prompts) > 1:
            _, old = self._prompts.popitem(last=False)
            self._characters -= len(old.text)
        return number

    def _named(self, prompt: Prompt) -> list[tuple[int, bytes]]:
        # A prompt is looked up, then added: its names are made once.
        if self._names[0] is not prompt:
            self._names = prompt, _names(prompt)
        return self._names[1]


def _names(prompt: Prompt) -> list[tuple[int, bytes]]:
    """(offset, name of everything before it) for every node on a prompt's way."""
    chain = hashlib.blake2b(
        repr((prompt.model, prompt.setup)).encode("utf-8", "surrogatepass"), digest_size=12
    )
    names = [(0, chain.digest())]
    text = prompt.text
    for at in range(_STEP, len(text) + 1, _STEP):
        chain.update(text[at - _STEP : at].encode("utf-8", "surrogatepass"))
        names.append((at, chain.digest()))
    return names


def _spoken(prompt: Prompt) -> list[tuple[int, int]]:
    """Where the turns lie that are long enough to tell a conversation."""
    return [
        (piece.start, piece.end)
        for piece in prompt.messages
        if piece.end - piece.start >= _SHORTEST_TURN and piece.role not in ("system", "developer")
    ]


def _turn(prompt: Prompt, start: int, end: int) -> bytes:
    text = prompt.text[start:end].encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8, person=b"turn").digest()
