"""The demo with vLLM keeps every record that its servers leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kvferry.config import load
from kvferry.measure.demo.replicas import Asked
from kvferry.measure.demo.workload import Prefix
from kvferry.measure.vllm.plan import QUICK
from kvferry.measure.vllm.run import _Stage
from kvferry.runs import RunDirectory
from kvferry.runs.decisions import DecisionRecord

from .test_summary import asked


class Server:
    """A replica that answers at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def prefill(self, question: Any) -> tuple[dict[str, Any], DecisionRecord]:
        return {"kvferry": {}}, asked("cold").record

    async def ask(self, question: Any, *, arm: str, **_: Any) -> Asked:
        return asked(arm)


class Silent:
    def asked(self, asked: Asked) -> None:
        pass


def test_a_prefill_for_the_other_server_is_kept(tmp_path: Path) -> None:
    loaded = load(env={})
    giver, taker = Server("A"), Server("B")
    with RunDirectory.create(tmp_path, command=[], config=loaded.config, origins=loaded.origins) as run:
        stage = _Stage(
            plan=QUICK,
            replicas=(giver, taker),  # type: ignore[arg-type]
            prefixes={},
            handed={},
            pool=None,  # type: ignore[arg-type]
            run=run,
            narrator=Silent(),  # type: ignore[arg-type]
        )
        asyncio.run(stage.hand_over(giver, taker, Prefix("heapq", "text")))  # type: ignore[arg-type]
    assert len(stage.prefilled) == 1
    assert len(stage.asked) == 2
    assert len(list(run.decisions())) == len(stage.prefilled) + len(stage.asked)
