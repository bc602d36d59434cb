"""The demo with vLLM from beginning to end: two servers and a Valkey, every way to a ready prompt in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engines.transformers.counting import token_counter
from ...engines.transformers.resolve import resolve_model
from ...errors import MissingExtra
from ...runs.decisions import DecisionRecord
from ...runs.directory import RunDirectory
from ...runs.vllm_demo_summary import VllmDemoSummary
from ...store.open import open_tier
from ...store.tier import Tier
from ...store.valkey.server import EmbeddedServer
from ..demo.replicas import Asked
from ..demo.stage import Narrator, asked_row
from ..demo.workload import Library, Prefix, Question
from .exposition import counters
from .installed import vllm_version
from .plan import VllmPlan
from .pool import break_block, until_published
from .replica import VllmReplica
from .server import server_cores
from .summary import summarise

__all__ = ["SETTINGS", "run_vllm_demo"]

_POOL_BYTES = 6 << 30

SETTINGS: Mapping[str, Any] = {
    # A demo has few requests: none is held out or spent on exploring, and a lost pool is tried again soon.
    "gate": {"holdout_share": 0.0, "explore_share": 0.0},
    # And two engines on two cores leave the Valkey server waiting for its turn now and then.
    "timeouts": {"probe": "2s", "backoff_first": "200ms", "backoff_most": "2s"},
}


@dataclass(slots=True)
class _Stage:
    """The demo in progress."""

    plan: VllmPlan
    replicas: Sequence[VllmReplica]
    prefixes: Mapping[str, Sequence[Prefix]]
    """By replica: what it computes, publishes and is asked for locally."""
    handed: Mapping[str, Sequence[Prefix]]
    """By replica: what it computes for the other one."""
    pool: Tier
    run: RunDirectory
    narrator: Narrator
    asked: list[Asked] = field(default_factory=list)
    prefilled: list[DecisionRecord] = field(default_factory=list)
    """Of requests that only computed a prompt for the other server."""

    def others(self, replica: VllmReplica) -> Sequence[Prefix]:
        """What the other replica has published."""
        return next(found for name, found in self.prefixes.items() if name != replica.name)

    async def ask(
        self,
        replica: VllmReplica,
        prefix: Prefix,
        arm: str,
        *,
        forget: bool = True,
        fields: Mapping[str, Any] | None = None,
        transfer: Mapping[str, Any] | None = None,
    ) -> None:
        """One request, recorded; with `forget` the server's own prefix cache is emptied before.

        There is one question for each prefix, so that all arms have the same prompts.
        """
        if forget:
            await replica.server.forget()
        asked = await replica.ask(
            Question(prefix, 0),
            arm=arm,
            answer_tokens=self.plan.answer_tokens,
            fields=fields,
            transfer=transfer,
        )
        self.asked.append(asked)
        self.run.append_request(asked_row(asked))
        self.run.append_decision(asked.record)
        self.narrator.asked(asked)

    async def hand_over(self, giver: VllmReplica, taker: VllmReplica, prefix: Prefix) -> None:
        """The prefill on one server, the answer on the other; and once more where the prefill was made."""
        # No server has seen this prompt: none has to forget it, and both can be givers at the same time.
        params, record = await giver.prefill(Question(prefix, 0))
        self.prefilled.append(record)
        self.run.append_decision(record)
        ours = dict(params.get("kvferry") or {})
        transfer = {name: value for name, value in params.items() if name != "kvferry"}
        await self.ask(taker, prefix, "handoff", forget=False, fields=ours, transfer=transfer)
        await self.ask(giver, prefix, "local", forget=False)

    async def both(self, play: Callable[[VllmReplica], Coroutine[Any, Any, None]]) -> None:
        """Play on both servers at the same time; the first error ends both."""
        async with asyncio.TaskGroup() as group:
            for replica in self.replicas:
                group.create_task(play(replica))

    def blocks(self, prefix: Prefix) -> tuple[str, ...]:
        """The prompt's blocks, as records name them."""
        return next(a.record.keys for a in self.asked if a.question == Question(prefix, 0).name)


async def run_vllm_demo(
    *,
    plan: VllmPlan,
    model: str,
    run: RunDirectory,
    seed: int,
    cache_dir: Path,
    narrator: Narrator,
) -> VllmDemoSummary:
    """Play all steps, write the run directory, and return the summary.

    Raises MissingExtra without vLLM, KvferryError when a process does not start or dies. Processes are
    ended on every way out.
    """
    version = vllm_version()
    if version is None:
        raise MissingExtra("the demo with vLLM", "vllm")
    folder = await asyncio.to_thread(lambda: resolve_model(model, cache_dir, say=narrator.note))
    library = Library(seed, token_counter(folder))
    server = await asyncio.to_thread(lambda: EmbeddedServer(max_memory_bytes=_POOL_BYTES))
    replicas = [
        VllmReplica(name, model=folder, core=core, folder=run.path, settings={**SETTINGS, "pool": server.url})
        for name, core in zip(("A", "B"), server_cores(2), strict=True)
    ]
    try:
        with closing(open_tier(server.url)) as pool:
            stage = _Stage(
                plan=plan,
                replicas=replicas,
                prefixes={r.name: library.draw(plan.prefixes, plan.prefix_tokens) for r in replicas},
                handed={r.name: library.draw(plan.handed, plan.prefix_tokens) for r in replicas},
                pool=pool,
                run=run,
                narrator=narrator,
            )
            narrator.step(1, "an embedded Valkey and two vLLM servers start, one core each", 0)
            await stage.both(lambda replica: replica.server.start())
            unpublished = await _play(stage, server)
            metrics = {r.name: counters(await r.server.metrics()) for r in replicas}
        return summarise(
            model=model,
            plan=plan.name,
            vllm=version,
            asked=stage.asked,
            prefilled=stage.prefilled,
            metrics=metrics,
            unpublished_blocks=unpublished,
        )
    finally:
        ends: list[Awaitable[None]] = [replica.server.stop() for replica in replicas]
        await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.to_thread(server.stop)


async def _play(stage: _Stage, server: EmbeddedServer) -> int:
    """Every step on both servers at once. How many blocks were never published."""
    plan, step = stage.plan, stage.narrator.step

    async def fill(replica: VllmReplica) -> None:
        for prefix in stage.prefixes[replica.name]:
            await stage.ask(replica, prefix, "cold")
            # The second request for it publishes it: nothing is carried on the first.
            for _ in range(plan.local_rounds):
                await stage.ask(replica, prefix, "local", forget=False)

    async def share(replica: VllmReplica) -> None:
        for _ in range(plan.pool_rounds):
            for prefix in stage.others(replica):
                await stage.ask(replica, prefix, "pool")

    async def give(replica: VllmReplica) -> None:
        other = next(taker for taker in stage.replicas if taker is not replica)
        for prefix in stage.handed[replica.name]:
            await stage.hand_over(replica, other, prefix)

    async def tell(replica: VllmReplica) -> None:
        for i in range(plan.told):
            prefix = stage.others(replica)[i % plan.prefixes]
            await stage.ask(replica, prefix, "told", fields={"max_load_tokens": 0})

    async def stumble(replica: VllmReplica) -> None:
        for i in range(plan.broken):
            prefix = stage.others(replica)[i % plan.prefixes]
            blocks = stage.blocks(prefix)
            await asyncio.to_thread(break_block, stage.pool, blocks[len(blocks) // 2])
            await stage.ask(replica, prefix, "broken")

    async def go_on(replica: VllmReplica) -> None:
        for i in range(plan.killed):
            await stage.ask(replica, stage.others(replica)[i % plan.prefixes], "killed")

    filled = 2 * plan.prefixes * (1 + plan.local_rounds)
    step(2, "cold prefill, then hits of the server's own prefix cache, which also publish", filled)
    await stage.both(fill)
    every = [block for found in stage.prefixes.values() for p in found for block in stage.blocks(p)]
    unpublished = await until_published(stage.pool, every)
    if unpublished:
        stage.narrator.note(f"{unpublished} of {len(every)} blocks did not reach the pool")
    step(3, "each loads what the other has published", 2 * plan.prefixes * plan.pool_rounds)
    await stage.both(share)
    step(4, "prefill on one server, decode on the other, through kv_transfer_params", 6 * plan.handed)
    await stage.both(give)
    step(5, "told to recompute: kv_transfer_params say max_load_tokens 0", 2 * plan.told)
    await stage.both(tell)
    step(6, "a block in the middle is garbage: the load ends half-way", 2 * plan.broken)
    await stage.both(stumble)
    step(7, "the Valkey server is killed (SIGKILL)", 2 * plan.killed)
    await asyncio.to_thread(server.kill)
    await stage.both(go_on)
    return unpublished
