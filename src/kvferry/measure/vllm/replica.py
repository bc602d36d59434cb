"""A vLLM server with kvferry in it, as one of the demo's replicas: asks, and reads what kvferry recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...errors import EngineError
from ...runs.decisions import DecisionRecord, decode_record
from ...serving.client import Reply
from ..demo.replicas import Asked
from ..demo.workload import Question
from .server import VllmServer, ferry_transfer

__all__ = ["VllmReplica"]

_RECORD_SECONDS = 10.0
_POLL_SECONDS = 0.02


class VllmReplica:
    """One of the demo's two replicas. `folder` gets the server's log and kvferry's records."""

    def __init__(
        self, name: str, *, model: Path, core: int, folder: Path, settings: Mapping[str, Any]
    ) -> None:
        self.name = name
        self._records = folder / f"replica-{name}"
        self.server = VllmServer(
            name,
            model=model,
            core=core,
            log=folder / f"replica-{name}.log",
            transfer=ferry_transfer({**settings, "replica": name, "record": str(self._records.resolve())}),
        )
        self._read = 0
        self._asked = 0
        self._known: dict[str, DecisionRecord] = {}

    async def ask(
        self,
        question: Question,
        *,
        arm: str,
        answer_tokens: int,
        fields: Mapping[str, Any] | None = None,
        transfer: Mapping[str, Any] | None = None,
    ) -> Asked:
        """One chat request, streamed and timed, with its record. Raises EngineError when there is none.

        `transfer` is what stands in its kv_transfer_params beside our own fields.
        """
        self._asked += 1
        request_id = f"{self.name}-{self._asked:04d}"
        reply: Reply = await self.server.client.chat(
            question.messages,
            max_tokens=answer_tokens,
            temperature=0,
            ignore_eos=True,
            request_id=request_id,
            kv_transfer_params={
                **(transfer or {}),
                "kvferry": {**(fields or {}), "decision_id": request_id},
            },
        )
        if reply.ttft_seconds is None:
            raise EngineError(f"vLLM server {self.name} answered {request_id} without a token")
        found = await self._record(request_id)
        return Asked(
            arm=arm,
            question=question.name,
            request_id=request_id,
            replica=self.name,
            ttft_seconds=reply.ttft_seconds,
            total_seconds=reply.total_seconds,
            token_ids=tuple(reply.token_ids),
            text=reply.text,
            # vLLM has given the request a longer name of its own.
            record=msgspec.structs.replace(found, request_id=request_id, arm_label=arm),
        )

    async def prefill(self, question: Question) -> tuple[Mapping[str, Any], DecisionRecord]:
        """Make the prefill for another server: the kv_transfer_params to send it, and the record."""
        self._asked += 1
        request_id = f"{self.name}-{self._asked:04d}"
        answer = await self.server.client.post(
            "/v1/chat/completions",
            {
                "messages": list(question.messages),
                "max_tokens": 1,
                "temperature": 0,
                "ignore_eos": True,
                "request_id": request_id,
                "kv_transfer_params": {"do_remote_decode": True, "kvferry": {"decision_id": request_id}},
            },
        )
        params = answer.get("kv_transfer_params")
        if not isinstance(params, dict):
            raise EngineError(f"vLLM server {self.name} answered {request_id} without kv_transfer_params")
        found = await self._record(request_id)
        return params, msgspec.structs.replace(found, request_id=request_id, arm_label="prefill")

    async def _record(self, decision_id: str) -> DecisionRecord:
        for _ in range(int(_RECORD_SECONDS / _POLL_SECONDS)):
            self._take_up()
            found = self._known.pop(decision_id, None)
            if found is not None:
                return found
            await asyncio.sleep(_POLL_SECONDS)
        raise EngineError(
            f"vLLM server {self.name} recorded no decision for {decision_id}: is kvferry off there? "
            f"Its log says why ({self._records}.log)"
        )

    def _take_up(self) -> None:
        path = self._records / "decisions.jsonl"
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                record = decode_record(line)
                self._known[record.decision_id] = record
