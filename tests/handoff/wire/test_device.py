"""KV that has to be copied to the host and back: the path of a device, walked here by the CPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from crossing import CLOCK, SECRET, TOKENS, Engine, Pair, Receiver, manifest_of, numbers

from kvferry.handoff.wire.sender import send

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


class Device(Engine):
    """An engine whose KV is a tensor behind a copy."""

    def open(self, manifest: Any, layers: Any, deadline: float) -> Any:
        import torch

        from kvferry.handoff.wire.device import DeviceKv

        super().open(manifest, layers, deadline)
        self.tensor = torch.zeros(self.kv.shape)
        return DeviceKv(self.tensor, manifest.chunk_tokens)


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_a_devices_kv_crosses_through_two_staging_buffers(pair: Pair, codec: str) -> None:
    import torch

    from kvferry.handoff.wire.device import DeviceKv

    kv, engine = numbers(), Device(codec=codec)
    receiver = Receiver(pair.listener.accept, engine)
    sent = send(
        DeviceKv(torch.from_numpy(kv), 32),
        manifest_of(codec=codec),
        pair.dial,
        secret=SECRET,
        deadline=CLOCK.now() + 20,
        clock=CLOCK,
    )
    received = receiver.result()
    assert received.cause is None
    carried = engine.tensor[:, :, :, :TOKENS].numpy()
    assert np.abs(carried - kv).max() <= (0.0 if codec == "raw" else 0.03)
    assert sent.legs.device_to_host_seconds > 0.0
    assert received.receiver.host_to_device_seconds > 0.0
