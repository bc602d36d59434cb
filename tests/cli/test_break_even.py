from __future__ import annotations

import json

import pytest

from kvferry.cli.main import main

EXAMPLE = ("break-even", "--bytes", "256MiB", "--overhead", "4ms", "--recompute", "60ms")


def test_one_bandwidth_gives_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EXAMPLE, "--bandwidth", "8GiB/s", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["load_seconds"] == 0.03525
    assert shown["recompute_seconds"] == 0.06
    assert round(shown["break_even_bytes_per_second"] / 2**30, 2) == 4.46
    assert shown["carry"] is True


def test_no_bandwidth_gives_the_break_even_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EXAMPLE, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["load_seconds"], shown["carry"]) == (None, None)


def test_several_bandwidths_give_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EXAMPLE, "--bandwidth", "8GiB/s", "--bandwidth", "2GiB/s", "--json"]) == 0
    assert [one["load_seconds"] for one in json.loads(capsys.readouterr().out)] == [0.03525, 0.129]


def test_the_text_says_which_way_wins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EXAMPLE, "--bandwidth", "8GiB/s", "--bandwidth", "2GiB/s"]) == 0
    shown = capsys.readouterr().out
    assert "loading wins above 4.464 GiB/s" in shown
    assert "load 35.25 ms  carry" in shown
    assert "load 129 ms    recompute" in shown


def test_a_load_that_never_wins_has_no_break_even(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["break-even", "--bytes", "1MiB", "--overhead", "4ms", "--recompute", "3ms", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["break_even_bytes_per_second"] is None
