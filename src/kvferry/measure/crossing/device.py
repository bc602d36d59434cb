"""What a training or a task computes on, as it is called where device hours are stated."""

from __future__ import annotations

import torch

__all__ = ["device_name"]


def device_name(device: torch.device) -> str:
    """What it is called, for a statement of device hours."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' * (threads != 1)}"
