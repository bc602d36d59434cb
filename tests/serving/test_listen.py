from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.errors import EngineError
from kvferry.serving.listen import serve, serving
from kvferry.serving.server import make_app


def test_a_port_in_use_is_one_clear_error(engine: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EngineError, match=r"cannot listen.*another port"):
            serve(make_app(engine), port=taken.getsockname()[1])


def test_the_port_is_closed_behind_the_block(engine: Any, call: Callable[..., Any]) -> None:
    with serving(make_app(engine)) as url:
        assert call(url, "/health")[0] == 200
    with pytest.raises(OSError, match="refused"):
        call(url, "/health")
