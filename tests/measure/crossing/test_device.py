"""What device hours are stated of."""

from __future__ import annotations

import torch

from kvferry.measure.crossing.device import device_name


def test_threads_of_a_cpu_are_counted() -> None:
    assert device_name(torch.device("cpu")).split(" ", 1)[1].startswith("CPU thread")
