"""A prefill node and a decode node, told while they work: every transport, codecs, and links of all kinds.

Real text (Python's standard library), one real model in two processes. Five scenes: over TCP in three
codecs; asked first, which between equals cannot pay; over a link so slow that raw KV loses and 4 bits win;
through shared memory; through a tier. What is declined is computed on the decode node, so that both ways to
the same answer are seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...engines.transformers.counting import token_counter
from ...engines.transformers.resolve import resolve_model
from ...errors import EngineError
from ...runs.directory import RunDirectory
from ...units import format_bytes, format_rate, format_seconds
from ..demo.workload import Library
from .roles import Role

__all__ = ["DemoPlan", "DemoSummary", "run_demo"]

_START_SECONDS = 240.0
_LINE_SECONDS = 240.0
_SLOWER = 3.0
"""How much longer raw KV takes over the slow link than its prefill."""
_ANSWER_TOKENS = 16


class DemoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is done."""

    prompt_tokens: int = 1024
    quick: bool = False
    """Without the slow link."""


class DemoSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen: the decode node's lines, each with its scene, and the checks."""

    model: str
    prompt_tokens: int
    link: dict[str, float]
    """Of TCP, measured: round_trip_seconds, bytes_per_second."""
    slow_bytes_per_second: float | None
    handoffs: tuple[dict[str, Any], ...]
    checks: dict[str, bool]
    interesting: str = "tcp-1"

    def told(self) -> list[str]:
        """Lines for a person."""
        rate, trip = self.link["bytes_per_second"], self.link["round_trip_seconds"]
        lines = [
            f"{self.model}, prompts of {self.prompt_tokens} tokens; "
            f"TCP on this host: {format_rate(rate)}, round trip {format_seconds(trip)}, measured",
            "",
        ]
        lines += [_told(one) for one in self.handoffs]
        lines.append("")
        lines += [f"[{'ok' if held else 'FAILED'}] {check}" for check, held in self.checks.items()]
        return lines


async def run_demo(
    *,
    plan: DemoPlan,
    model: str,
    run: RunDirectory,
    seed: int,
    cache_dir: Path,
    say: Callable[[str], None],
) -> DemoSummary:
    """Play the scenes and return the summary.

    Raises KvferryError when a process does not start or dies. Processes are ended on every way out.
    """
    folder = await asyncio.to_thread(lambda: resolve_model(model, cache_dir, say=say))
    prompts = await asyncio.to_thread(lambda: _prompts(run.path, folder, seed, plan.prompt_tokens))
    stage = _Stage(plan, model, run, prompts, say)
    try:
        return await stage.play()
    finally:
        await stage.close()


class _Stage:
    def __init__(
        self,
        plan: DemoPlan,
        model: str,
        run: RunDirectory,
        prompts: Sequence[Path],
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._model, self._run, self._say = plan, model, run, say
        self._prompts = prompts
        self._roles: list[Role] = []
        self._seen: list[dict[str, Any]] = []
        self._link: Mapping[str, float] = {}

    async def close(self) -> None:
        await asyncio.gather(*(role.stop() for role in self._roles), return_exceptions=True)

    async def play(self) -> DemoSummary:
        first, second, third = self._prompts
        self._say("1. over TCP: raw, 8 bits, 4 bits; the prefill is done, so only its transfer counts")
        count = 4 if self._plan.quick else 7
        decode, address = await self._receiver("tcp", "tcp://127.0.0.1:0", count, ("raw", "int8", "int4"))
        codecs = ("raw", "int8", "int4")
        await self._hand_over("tcp", decode, address, (first, second, third), codecs, ("--probe",))
        self._say("2. asked first: the same prefill on an equal node, and a transfer on top, cannot pay")
        await self._hand_over("ask", decode, address, (first,), ("raw",), ("--ask-first",))
        slow = None
        if not self._plan.quick:
            slow = self._slow_rate()
            self._say(f"3. a link of {format_rate(slow)}: raw KV loses to local prefill, 4 bits win")
            await self._hand_over(
                "slow", decode, address, (second, third, first), ("raw", "raw", "int4"),
                ("--limit", f"{slow:.0f}B/s"),
            )  # fmt: skip
        await decode.ended(_LINE_SECONDS)
        self._say("4. through shared memory of one host")
        decode, address = await self._receiver("shm", "shm://", 1, ("raw",))
        await self._hand_over("shm", decode, address, (first,), ("raw",), ())
        self._say("5. through a tier: left there by one, found by the other")
        tier = self._run.path / "tier"
        tier.mkdir()
        decode, address = await self._receiver("tier", f"files://{tier.resolve()}", 1, ("raw",))
        await self._hand_over("tier", decode, address, (first,), ("raw",), ())
        return self._summary(slow)

    async def _receiver(self, scene: str, listen: str, count: int, codecs: Sequence[str]) -> tuple[Role, str]:
        arguments = ["receive", "--listen", listen, "--model", self._model, "--count", str(count)]
        arguments += ["--answer-tokens", str(_ANSWER_TOKENS), "--deadline", "10min", "--id", scene]
        arguments += ["--record", str(self._run.path / f"decode-{scene}")]
        for codec in codecs:
            arguments += ["--codec", codec]
        role = await self._start(f"decode-{scene}", arguments)
        return role, str((await role.line(_START_SECONDS))["address"])

    async def _hand_over(
        self,
        scene: str,
        decode: Role,
        address: str,
        prompts: Sequence[Path],
        codecs: Sequence[str],
        options: Sequence[str],
    ) -> None:
        arguments = ["send", "--to", address, "--model", self._model, "--deadline", "10min", "--id", scene]
        for prompt in prompts:
            arguments += ["--file", str(prompt)]
        for codec in codecs:
            arguments += ["--codec", codec]
        prefill = await self._start(f"prefill-{scene}", [*arguments, *options])
        for prompt in prompts:
            sent, seen = await asyncio.gather(
                prefill.line(_LINE_SECONDS + _START_SECONDS), decode.line(_LINE_SECONDS + _START_SECONDS)
            )
            seen |= {"scene": scene, "prompt": prompt.stem}
            seen["remote_prefill_seconds"] = sent["prefill_seconds"]
            if sent["bytes_per_second"] is not None and not self._link:
                self._link = {name: sent[name] for name in ("bytes_per_second", "round_trip_seconds")}
            self._seen.append(seen)
            self._run.append_request({name: seen[name] for name in seen if name != "text"})
            self._say(f"    {_told(seen)}")
        await prefill.ended(_LINE_SECONDS)

    async def _start(self, name: str, arguments: Sequence[str]) -> Role:
        role = await Role.start(name, arguments, log=self._run.path / f"{name}.log")
        self._roles.append(role)
        return role

    def _slow_rate(self) -> float:
        """Bytes a second at which raw KV takes `_SLOWER` times as long as computing it here."""
        raw = next(seen for seen in self._seen if seen["codec"] == "raw")
        local = float(raw["predicted"]["local_prefill_seconds"])
        if not local > 0.0:
            raise EngineError("the decode node does not know what a prefill takes it")
        return float(raw["bytes"]) / (_SLOWER * local)

    def _summary(self, slow: float | None) -> DemoSummary:
        by_id = {seen["id"]: seen for seen in self._seen}
        crossed = [seen for seen in self._seen if seen["taken"]]
        local = by_id["ask"]
        exact = [by_id["tcp-1"], by_id["shm"], by_id["tier"]]
        checks = {
            "what crossed is booked as hand-off, and as nothing else": all(
                set(seen["ledger"]) == {"handoff", "not_cacheable"} for seen in crossed
            ),
            "every transport brought a whole prefill": all(seen["taken"] for seen in exact),
            "a raw hand-off is ready before the prefill would have been": all(
                seen["ready_seconds"] < seen["predicted"]["local_prefill_seconds"]
                for seen in exact
                if seen["taken"]
            ),
            "asking an equal node first was declined": not local["taken"] and local["cause"] == "declined",
            "over every transport the answer is that of local prefill": all(
                seen["token_ids"] == local["token_ids"] for seen in exact
            ),
        }
        if slow is not None:
            checks["over the slow link raw was declined once the link was known"] = (
                by_id["slow-2"]["cause"] == "declined"
            )
            checks["over the slow link 4 bits were taken, and were faster"] = by_id["slow-3"]["taken"] and (
                by_id["slow-3"]["ready_seconds"] < by_id["slow-3"]["predicted"]["local_prefill_seconds"]
            )
        return DemoSummary(
            model=self._model,
            prompt_tokens=self._plan.prompt_tokens,
            link=dict(self._link),
            slow_bytes_per_second=slow,
            handoffs=tuple(self._seen),
            checks=checks,
        )


def _told(seen: Mapping[str, Any]) -> str:
    """One hand-off as a line."""
    predicted = (seen["predicted"] or {}).get("local_prefill_seconds")
    prefill = "" if predicted is None else f"; local prefill would take {format_seconds(predicted)}"
    what = f"{seen['id']:8} {seen['codec']:5} {format_bytes(seen['bytes']):>10}"
    if seen["taken"]:
        return (
            f"{what}  taken ({seen['reason']}), ready after {format_seconds(seen['ready_seconds'])}, "
            f"longest leg {seen['dominant_leg'].replace('_', ' ')}{prefill}"
        )
    took = format_seconds(seen["local_prefill_seconds"])
    return f"{what}  {seen['cause']} ({seen['reason'] or seen['detail']}): computed here in {took}"


def _prompts(run: Path, folder: Path, seed: int, tokens: int) -> list[Path]:
    """Three documents as files."""
    home = run / "prompts"
    home.mkdir()
    found = []
    for prefix in Library(seed, token_counter(folder)).draw(3, tokens):
        path = home / f"{prefix.name}.txt"
        path.write_text(prefix.document, encoding="utf-8")
        found.append(path)
    return found
