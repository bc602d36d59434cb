"""Routes for operators and experiments: switches, decisions, metrics.

    GET, POST /kvferry/settings          run-time switches
    GET  /kvferry/decisions?since=N      records of finished requests
    GET  /metrics                        Prometheus text

A replica of ours has them beside OpenAI's routes; an engine with a server of its own gets them on a port of
their own. There is no authentication: they are meant for the loopback interface or a private network.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import InputError
from .answers import HANDLERS, decode, json_answer, read_body
from .contract import Controls

__all__ = ["control_routes", "make_control_app"]


def control_routes(controls: Controls) -> list[Route]:
    """The routes over `controls`."""
    server = _Controls(controls)
    return [
        Route("/kvferry/settings", server.settings),
        Route("/kvferry/settings", server.change, methods=["POST"]),
        Route("/kvferry/decisions", server.decisions),
        Route("/metrics", server.metrics),
    ]


def make_control_app(controls: Controls) -> Starlette:
    """An application of these routes alone."""
    return Starlette(routes=control_routes(controls), exception_handlers=HANDLERS)


class _Controls:
    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    async def settings(self, request: Request) -> Response:
        return json_answer(await run_in_threadpool(self._controls.settings))

    async def change(self, request: Request) -> Response:
        changes = decode(await read_body(request))
        if not isinstance(changes, dict):
            raise InputError('the body is not an object; write {"name": value}')
        return json_answer(await run_in_threadpool(self._controls.change, changes))

    async def decisions(self, request: Request) -> Response:
        given = request.query_params.get("since", "0")
        if not given.isdecimal():
            raise InputError(f"since: {given!r} is not a number of a record; write 0 or more")
        records, following = await run_in_threadpool(self._controls.decisions, int(given))
        return json_answer({"decisions": list(records), "next": following})

    async def metrics(self, request: Request) -> Response:
        text = await run_in_threadpool(self._controls.metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
