"""`kvferry handoff`: what is wrong with a command line is said before a model is read."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from kvferry.cli.handoff import app
from kvferry.errors import InputError

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["send", "--to", "tcp://127.0.0.1:1", "--file", "/nowhere/prompt"], "--file /nowhere/prompt"),
        (
            ["send", "--to", "tcp://h:1", "--file", __file__, "--codec", "int3"],
            "raw, fp16, bf16, fp8, int8, int4",
        ),
        (["send", "--to", "tcp://h:1", "--file", __file__, "--deadline", "soon"], "--deadline"),
        (["send", "--to", "tcp://h:1", "--file", __file__, "--limit", "5"], "--limit"),
        (["receive", "--count", "0"], "--count 0"),
        (["receive", "--answer-tokens", "0"], "--answer-tokens 0"),
        (["receive", "--grace", "5"], "--grace"),
        (["receive", "--codec", "bf16", "--dtype", "float16"], "write raw"),
        (["receive", "--threads", "0"], "--threads 0"),
        (["send", "--to", "tcp://h:1", "--file", __file__, "--map", "x"], "--map and --receiver go together"),
    ],
)
def test_a_wrong_option_is_named(words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        app(words, exit_on_error=False, print_error=False, result_action="return_value")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "tcp://:x", "nothing", "shm://a/b"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    from kvferry.clock import MonotonicClock
    from kvferry.errors import KvferryError
    from kvferry.handoff.transports.address import listen

    with pytest.raises(KvferryError, match=address.split(":")[0]):
        listen(address, handoff_id="a", namespace=bytes(32), secret=bytes(32), clock=MonotonicClock())
