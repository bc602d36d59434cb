from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvferry.errors import UsageError
from kvferry.serving.listen import check_port, reserved, serve, serving
from kvferry.serving.server import make_app


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_one_clear_error(taken: int) -> None:
    with pytest.raises(UsageError, match=r"cannot listen.*another port"), reserved("127.0.0.1", taken):
        pass


def test_a_host_without_an_address_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="another address"), reserved("no.such.host.invalid", 0):
        pass


def test_of_two_that_reserved_a_port_the_second_to_listen_is_told(engine: Any) -> None:
    with reserved("127.0.0.1", 0) as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with reserved("127.0.0.1", mine.getsockname()[1]) as other:
            other.listen()
            with pytest.raises(UsageError, match="cannot listen"):
                serve(make_app(engine), mine)


def test_a_reserved_port_refuses_until_it_is_served() -> None:
    with (
        reserved("127.0.0.1", 0) as listener,
        socket.socket() as caller,
        pytest.raises(ConnectionRefusedError),
    ):
        caller.connect(listener.getsockname())


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_cannot_be_is_named(port: int) -> None:
    with pytest.raises(UsageError, match=f"--port {port}: write 1 to 65535"):
        check_port(port, "--port")


@pytest.mark.parametrize("port", [-1, 65_536])
def test_such_a_port_is_never_bound(port: int) -> None:
    with pytest.raises(UsageError, match="65535"), reserved("127.0.0.1", port):
        pass


def test_the_port_is_closed_behind_the_block(engine: Any, call: Callable[..., Any]) -> None:
    with serving(make_app(engine)) as url:
        assert call(url, "/health")[0] == 200
    with pytest.raises(OSError, match="refused"):
        call(url, "/health")
