"""From a recipe to requests, one after the other: sessions begin, grow and end in order of time.

Owns the life of a session. Blocks are numbers given out as prompts are first asked for, so that a trace of
any length needs memory for the sessions under way and the pools, and nothing else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..assemble import assemble
from ..chunk import Name, Trace, TraceChunk
from ..row import Row
from .draws import Draws, Popularity
from .recipe import PromptClass, Recipe

__all__ = ["synthesize"]

_SECONDS_PER_OUTPUT_TOKEN = 0.02
"""How fast answers are read off: what lies between a request and the earliest next one."""


def synthesize(recipe: Recipe) -> Trace:
    """The trace of a recipe; the same one each time it is read."""

    def read(trace: Trace, named: bool) -> Iterator[tuple[TraceChunk, list[Name]]]:
        return assemble(trace, _rows(recipe), named=named)

    return Trace(
        path="<synthetic>", format="kvferry", block_tokens=recipe.block_tokens, has_blocks=True, read=read
    )


@dataclass(slots=True)
class _Prefix:
    """Full blocks that several sessions begin with."""

    tokens: int
    runs: list[int]

    def full(self, block_tokens: int) -> int:
        return self.tokens // block_tokens


@dataclass(slots=True)
class _Session:
    """One conversation. `runs` are its full blocks so far, `tokens` its next prompt."""

    name: str
    kind: PromptClass
    label: str
    tokens: int
    boundary: int
    runs: list[int]
    full: int
    left: int
    """Requests still to come."""
    parent: _Session | None = None
    children: int = 0


@dataclass(slots=True)
class _Pool:
    """The prefixes of one class, made when first asked for."""

    kind: PromptClass
    popularity: Popularity
    root: _Prefix | None = None
    known: dict[int, _Prefix] = field(default_factory=dict)


class _World:
    """Block numbers, pools and the sessions that wait for their next request."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.draws = Draws(recipe.seed, recipe.burstiness)
        self.waiting: list[tuple[float, int, _Session]] = []
        self._order = 0
        self._next_block = 0
        self._sessions = 0
        self._pools = {one.name: _Pool(one, Popularity(one.prefixes, one.zipf)) for one in recipe.classes}
        self._sub_pools = {
            one.name: _Pool(one, Popularity(1, 0.0)) for one in recipe.classes if one.subagents
        }
        self._classes = Popularity.of_shares([one.share for one in recipe.classes])

    def begin(self, seconds: float) -> None:
        """A new session of some class asks at once."""
        kind = self.recipe.classes[self._classes.pick(self.draws.uniform())]
        self._sessions += 1
        session = self._session(f"s{self._sessions}", kind, kind.name, self._pools[kind.name], None)
        self.wait(seconds, session)

    def wait(self, seconds: float, session: _Session) -> None:
        self._order += 1
        heapq.heappush(self.waiting, (seconds, self._order, session))

    def ask(self, seconds: float, session: _Session) -> Row:
        """The session's next request, and what follows from it."""
        size = self.recipe.block_tokens
        full, tail = divmod(session.tokens, size)
        self._grow(session.runs, full - session.full)
        session.full = full
        runs = session.runs.copy()
        if tail:
            self._grow(runs, 1)
        kind = session.kind
        output = self.draws.length(kind.output_tokens, kind.spread)
        row = Row(
            seconds,
            session.tokens,
            output,
            runs,
            path="<synthetic>",
            runs=True,
            boundary=session.boundary,
            fields={"class": session.label, "session": session.name},
        )
        self._go_on(seconds + output * _SECONDS_PER_OUTPUT_TOKEN, session, output)
        return row

    def _go_on(self, seconds: float, session: _Session, output: int) -> None:
        kind, draws = session.kind, self.draws
        session.left -= 1
        more = draws.length(kind.content_tokens, kind.spread)
        if session.left < 1 or session.tokens + output + more > self.recipe.context_tokens:
            if session.parent is not None:
                # What the subagent found is what its parent's tool call returns.
                self._resume(seconds, session.parent, output)
            return
        session.tokens += output
        if session.parent is None and kind.subagents and draws.uniform() < kind.subagents:
            session.children += 1
            name = f"{session.name}/{session.children}"
            pool = self._sub_pools[kind.name]
            self.wait(seconds, self._session(name, kind, f"{kind.name}/subagent", pool, session))
            return
        session.tokens += more
        self.wait(seconds + draws.pause(kind.pause_seconds), session)

    def _resume(self, seconds: float, session: _Session, found: int) -> None:
        if session.tokens + found <= self.recipe.context_tokens:
            session.tokens += max(found, 1)
            self.wait(seconds, session)

    def _session(
        self, name: str, kind: PromptClass, label: str, pool: _Pool, parent: _Session | None
    ) -> _Session:
        draws = self.draws
        prefix = self._prefix(pool, pool.popularity.pick(draws.uniform()))
        turns = 1 if kind.kind == "single" else draws.geometric(kind.turns)
        content = draws.length(kind.content_tokens, kind.spread)
        return _Session(
            name=name,
            kind=kind,
            label=label,
            tokens=prefix.tokens + content,
            boundary=prefix.tokens,
            runs=prefix.runs.copy(),
            full=prefix.full(self.recipe.block_tokens),
            left=turns,
            parent=parent,
        )

    def _prefix(self, pool: _Pool, number: int) -> _Prefix:
        size, kind = self.recipe.block_tokens, pool.kind
        found = pool.known.get(number)
        if found is not None:
            return found
        if pool.root is None:
            pool.root = _Prefix(kind.system_tokens, [])
            self._grow(pool.root.runs, pool.root.full(size))
        length = self.draws.length(kind.prefix_tokens, kind.spread)
        made = _Prefix(pool.root.tokens + length, pool.root.runs.copy())
        self._grow(made.runs, made.full(size) - pool.root.full(size))
        pool.known[number] = made
        return made

    def _grow(self, runs: list[int], blocks: int) -> None:
        """Give out new numbers at the end of a prompt."""
        if blocks < 1:
            return
        if runs and runs[-2] + runs[-1] == self._next_block:
            runs[-1] += blocks
        else:
            runs += (self._next_block, blocks)
        self._next_block += blocks


def _rows(recipe: Recipe) -> Iterator[Row]:
    world = _World(recipe)
    requests = accesses = 0
    arriving = 0.0
    while True:
        if not world.waiting or world.waiting[0][0] >= arriving:
            world.begin(arriving)
            arriving += world.draws.gap() / recipe.sessions_per_second
            continue
        seconds, _, session = heapq.heappop(world.waiting)
        if recipe.seconds is not None and seconds > recipe.seconds:
            return
        row = world.ask(seconds, session)
        requests += 1
        accesses += -(-row.input_tokens // recipe.block_tokens)
        yield row
        if requests == recipe.requests or (recipe.accesses is not None and accesses >= recipe.accesses):
            return
