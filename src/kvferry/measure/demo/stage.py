"""What every step of the demo works on: two replicas, a pool, prompts, and the record of what was asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...runs.demo_summary import LINK
from ...runs.directory import RunDirectory
from .plan import Plan
from .pools import DemoPool
from .replicas import Asked, Replica
from .workload import Prefix, Question

__all__ = ["Narrator", "Stage"]


class Narrator(Protocol):
    """Who tells a person what happens; the demo itself prints nothing."""

    def step(self, number: int, title: str, requests: int) -> None:
        """A step of about `requests` requests begins."""

    def asked(self, asked: Asked) -> None:
        """One request has ended."""

    def note(self, text: str) -> None:
        """One sentence about what was seen."""


@dataclass(slots=True)
class Stage:
    """The demo in progress."""

    plan: Plan
    pool: DemoPool
    a: Replica
    b: Replica
    prefixes: Sequence[Prefix]
    second: Sequence[Prefix]
    links: Mapping[str, Prefix]
    """A short published prefix for each replica, by name: what its link is measured with."""
    run: RunDirectory
    narrator: Narrator
    random: random.Random
    asked: list[Asked] = field(default_factory=list)

    @property
    def replicas(self) -> tuple[Replica, Replica]:
        return (self.a, self.b)

    async def ask(
        self,
        replica: Replica,
        question: Question,
        arm: str,
        *,
        forget: bool = False,
        fields: Mapping[str, Any] | None = None,
    ) -> Asked:
        """One request, recorded; with `forget` the replica's own prefix cache is emptied before."""
        if forget:
            await replica.forget()
        tokens = 1 if arm == LINK else self.plan.answer_tokens
        asked = await replica.ask(question, arm=arm, answer_tokens=tokens, fields=fields)
        self.asked.append(asked)
        self.run.append_request(asked_row(asked))
        self.run.append_decision(asked.record)
        self.narrator.asked(asked)
        return asked

    async def set_link(self, replica: Replica, bytes_per_second: float | None) -> None:
        """Throttle a replica's link to the pool, and let its estimators follow with a few short loads."""
        await replica.switch(bytes_per_second=bytes_per_second)
        await replica.switch(policy="always")
        for _ in range(self.plan.link_probes):
            await self.ask(replica, Question(self.links[replica.name], 0), LINK, forget=True)
        await replica.switch(policy="rule")

    async def both(self, *work: Any) -> list[Any]:
        """Run one coroutine per replica at the same time; the first error ends both."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
        return [task.result() for task in tasks]


def asked_row(asked: Asked) -> dict[str, Any]:
    """The line of requests.jsonl: the request as its client saw it."""
    return {
        "request_id": asked.request_id,
        "replica": asked.replica,
        "arm": asked.arm,
        "question": asked.question,
        "path": asked.record.path,
        "prompt_tokens": asked.record.prompt_tokens,
        "ttft_seconds": asked.ttft_seconds,
        "total_seconds": asked.total_seconds,
        "token_ids": list(asked.token_ids),
        "text": asked.text,
    }
