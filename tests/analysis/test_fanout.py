from __future__ import annotations

from importlib.util import find_spec

import pytest

from kvferry.analysis.fanout import fan_out
from kvferry.errors import MissingExtra, UsageError


def test_one_process_works_in_order() -> None:
    assert list(fan_out(abs, [3, -1, -2])) == [3, 1, 2]


def test_several_processes_give_the_same() -> None:
    items = list(range(-5, 5))
    assert list(fan_out(abs, items, workers=2)) == [abs(item) for item in items]


def test_an_error_of_the_work_arrives() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(fan_out(int, ["1", "x"], workers=2))


def test_no_workers_are_refused() -> None:
    with pytest.raises(UsageError, match="--workers"):
        list(fan_out(abs, [1], workers=0))


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_ray_missing_names_what_to_install() -> None:
    with pytest.raises(MissingExtra, match="ray"):
        list(fan_out(abs, [1], ray_address="127.0.0.1:1"))
